# SPDX-License-Identifier: Apache-2.0
"""The chart that is made of manifests; that it is the same as kustomize's is seen with Helm, in the cluster suite."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from slicekeeper.cli.main import cli
from slicekeeper.config import chart
from slicekeeper.config.patterns import problem_of
from slicekeeper.config.policy_entry import policy_of
from slicekeeper.errors import SettingsError

ROOT = Path(__file__).parents[4] / "manifests"
DEPLOYMENT = """\
apiVersion: apps/v1
kind: Deployment
metadata: {name: webhook}
spec:
  replicas: 2
  template:
    metadata: {labels: {app: webhook}}
    spec:
      containers: [{name: webhook, image: "slicekeeper.invalid/webhook:0.1.0"}]
      volumes: [{name: config, configMap: {name: slicekeeper-config}}]
"""
ROLE = "---\napiVersion: rbac.authorization.k8s.io/v1\nkind: Role\nmetadata: {name: more}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A small folder of manifests: a Deployment, a component that makes it single, one that adds a Role."""
    shutil.copytree(ROOT / "base/config", tmp_path / "base/config")
    (tmp_path / "base/webhook.yaml").write_text(DEPLOYMENT)
    for name in ("single", "more-rights", "observe"):
        (tmp_path / "components" / name).mkdir(parents=True)
        (tmp_path / "components" / name / "kustomization.yaml").touch()
    (tmp_path / "components/more-rights/role.yaml").write_text(ROLE)
    return tmp_path


def kustomize(folder: Path) -> str:
    """Stand in for kubectl: names have their hashes, and a component does what it is called."""
    wanted = yaml.safe_load((folder / "kustomization.yaml").read_text())
    [component] = [Path(path).name for path in wanted.get("components", ["base"])]
    text = DEPLOYMENT.replace("slicekeeper-config", "slicekeeper-config-abcdef2345")
    return {
        "base": text,
        "single": text.replace("replicas: 2", "replicas: 1"),
        "more-rights": text + ROLE,
    }[component]


def test_components_are_values_and_images_and_settings_are_templates(folder: Path) -> None:
    chart.write(folder, kustomize=kustomize)
    text = (folder / "chart/templates/generated/webhook.yaml").read_text()
    assert "{{- if .Values.components.single }}\n  replicas: 1\n{{- else }}\n  replicas: 2\n{{- end }}" in text
    assert 'image: {{ include "slicekeeper.image" (list "webhook" .) }}' in text
    assert "name: slicekeeper-config\n" in text
    assert "imagePullSecrets: {{ toJson .Values.imagePullSecrets }}" in text
    assert 'slicekeeper.io/config: {{ include "slicekeeper.settings" . | sha256sum }}' in text
    more = (folder / "chart/templates/generated/more-rights.yaml").read_text()
    assert "{{- if .Values.components.moreRights }}\napiVersion: rbac" in more
    schema = json.loads((folder / "chart/values.schema.json").read_text())
    assert set(schema["properties"]["components"]["properties"]) == {"single", "moreRights"}


def test_only_the_timekeepers_replicas_are_a_value_with_the_manifests_number_as_its_default(folder: Path) -> None:
    def two_parts(folder: Path) -> str:
        return f"{kustomize(folder)}---\n{DEPLOYMENT.replace('webhook', 'timekeeper')}"

    (folder / "base/timekeeper.yaml").write_text(DEPLOYMENT.replace("webhook", "timekeeper"))
    chart.write(folder, kustomize=two_parts)
    templates = folder / "chart/templates/generated"
    wanted = "replicas: {{ .Values.timekeeper.replicas | default 2 | int }}"
    assert wanted in (templates / "timekeeper.yaml").read_text()
    assert ".Values.timekeeper" not in (templates / "webhook.yaml").read_text()


def test_a_second_run_changes_nothing_and_a_dry_one_only_tells(folder: Path) -> None:
    told = chart.write(folder, dry=True, kustomize=kustomize)
    assert not (folder / "chart").exists()
    assert chart.write(folder, kustomize=kustomize) == told
    assert chart.write(folder, kustomize=kustomize) == []


def test_templates_of_what_is_gone_go_and_others_stay(folder: Path) -> None:
    chart.write(folder, kustomize=kustomize)
    own = folder / "chart/templates/config.yaml"
    own.write_text("# written by hand\n")
    shutil.rmtree(folder / "components/more-rights")
    chart.write(folder, kustomize=kustomize)
    assert {path.name for path in own.parent.rglob("*.yaml")} == {"config.yaml", "webhook.yaml"}


def without_components(text: str) -> str:
    """Render templates as Helm does if no component is wanted, but for what is included."""
    lines: list[str] = []
    shown = [True]
    for line in text.splitlines():
        asked = re.fullmatch(r"\{\{- (if not|if|else|end)\b.*\}\}", line)
        if asked is None:
            made = re.sub(r"\{\{ \.Values\.\S+ \| default (\d+) \| int \}\}", r"\1", line)
            made = made.replace("{{ toJson .Values.imagePullSecrets }}", "[]")
            lines += [re.sub(r"\{\{ .* \}\}", "included", made)] if all(shown) else []
        elif asked[1] == "end":
            shown.pop()
        elif asked[1] == "else":
            shown[-1] = not shown[-1]
        else:
            shown.append(asked[1] == "if not")
    return "\n".join(lines)


def by_name(text: str) -> dict[tuple[str, str], Any]:
    """Return objects without what the chart's own values decide."""
    text = re.sub(
        r"image: .*", "image: included", re.sub(r"(slicekeeper-(config|kube-scheduler))-\w{10}\b", r"\1", text)
    )
    objects = [o for o in yaml.safe_load_all(text) if o and o["kind"] not in ("Namespace", "ConfigMap")]
    for obj in objects:
        obj["metadata"].pop("annotations", None)
        template = obj.get("spec", {}).get("template", {})
        template.get("metadata", {}).pop("annotations", None)
        assert template.get("spec", {}).pop("imagePullSecrets", []) == []
    return {(o["kind"], o["metadata"]["name"]): o for o in objects}


SHARDS = "shards.yaml"
"""The template of what the manifests have only if the settings say so."""


def test_the_checkouts_chart_is_that_of_its_manifests() -> None:
    """Components are compared in the cluster suite, which has Helm and a kubectl of a known version."""
    made = [path.read_text() for path in (ROOT / "chart/templates/generated").glob("*.yaml") if path.name != SHARDS]
    ours, theirs = by_name("\n".join(map(without_components, made))), by_name((ROOT / "install.yaml").read_text())
    stale = [key for key in {**ours, **theirs} if ours.get(key) != theirs.get(key)]
    assert stale == [], "make it again: slicekeeper config chart"


ENTRIES = [
    ("budget.amount", "20h"), ("budget.amount", "1d2h3m4s5ms"), ("budget.credit", "0s"), ("budget.grace", "5m"),
    ("budget.rollover", "90m"), ("budget.anchor", ""), ("budget.anchor", "2026-04-01T00:00:00+02:00"),
    ("budget.anchor", "2026-04-01T00:00:00.5Z"), ("backgroundRate", "1/2"), ("backgroundRate", "0.5"),
    ("sidecar.cpu", "50m"), ("sidecar.memory", "48Mi"), ("foreign.gpuMemory", ""), ("foreign.gpuMemory", "80Gi"),
]  # fmt: skip
WRONG_ENTRIES = [
    ("budget.amount", "20x"), ("budget.amount", ""), ("budget.amount", "20"), ("budget.amount", "-5h"),
    ("budget.credit", "2 h"), ("budget.grace", "soon"), ("budget.rollover", "1h30"), ("budget.anchor", "yesterday"),
    ("budget.anchor", "2026-04-01"), ("backgroundRate", "abc"), ("backgroundRate", "1/"), ("backgroundRate", "-1"),
    ("sidecar.cpu", "a lot"), ("sidecar.memory", "48 MB"), ("foreign.gpuMemory", "80 GB"),
]  # fmt: skip


def _field(path: str) -> dict[str, Any]:
    return chart._field(chart.schema(ROOT)["$defs"], "NamespacePolicy", tuple(path.split(".")))


def _as_parts_read(path: str, value: str) -> object:
    tree: dict[str, Any] = {}
    *above, last = path.split(".")
    below = tree
    for key in above:
        below = below.setdefault(key, {})
    below[last] = value
    return policy_of({}, tree, lambda _: "here")


def _fits(field: dict[str, Any], value: str) -> bool:
    return len(value) >= field.get("minLength", 0) and re.search(field["pattern"], value) is not None


@pytest.mark.parametrize(("path", "value"), ENTRIES)
def test_the_schema_accepts_what_the_parts_do(path: str, value: str) -> None:
    _as_parts_read(path, value)
    assert _fits(_field(path), value)


@pytest.mark.parametrize(("path", "value"), WRONG_ENTRIES)
def test_the_schema_refuses_what_the_parts_do(path: str, value: str) -> None:
    with pytest.raises(SettingsError):
        _as_parts_read(path, value)
    assert not _fits(_field(path), value)


@pytest.mark.parametrize(
    "match",
    ["team-a", "team-*", "*", "a", "[ab]-x", "[!a]*", "team-?", "Team_A", "-a", "a-", "a.b", "", "team-A*", "é"],
)
def test_the_schema_knows_names_and_patterns_of_namespaces(match: str) -> None:
    one, several = chart.schema(ROOT)["properties"]["policy"]["properties"]["namespaces"]["items"]["properties"][
        "match"
    ]["anyOf"]
    assert several["items"] == one
    assert several["uniqueItems"]
    assert _fits(one, match) == (not problem_of(match))


def test_the_checkouts_files_and_schema_are_todays() -> None:
    for name in ("config.yaml", "kube-scheduler.yaml", "policy.yaml"):
        assert (ROOT / "chart/files" / name).read_text() == (ROOT / "base/config" / name).read_text()
    schema = json.loads((ROOT / "chart/values.schema.json").read_text())
    assert schema == chart.schema(ROOT), "make it again: slicekeeper config chart"


def test_without_kubectl_it_says_so(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(folder))
    with pytest.raises(SettingsError, match="no kubectl on PATH"):
        chart.write(folder)


def test_what_kubectl_says_is_told(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = subprocess.CompletedProcess([], 1, "", "no such component")
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(SettingsError, match="no such component"):
        chart.write(folder)


def test_the_command_names_what_it_writes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess([], 0, kustomize(Path(command[-1])), "")
    )
    done = CliRunner().invoke(cli, ["config", "chart", "--check", str(folder)])
    assert (done.exit_code, "webhook.yaml: is not as the manifests say" in done.output) == (1, True)
    assert "webhook.yaml: written" in CliRunner().invoke(cli, ["config", "chart", str(folder)]).output
    done = CliRunner().invoke(cli, ["config", "chart", "--check", str(folder)])
    assert (done.exit_code, done.output) == (0, "everything is as the manifests say\n")


def test_helm_refuses_names_of_shards_that_no_part_would_take() -> None:
    shards = chart.schema(ROOT)["$defs"]["SchedulerSettings"]["properties"]["shards"]
    assert shards["uniqueItems"]
    taken = re.compile(shards["items"]["pattern"])
    assert [name for name in ("b", "team-x", "1", "", "Team_x", "-b", "b.c", "b" * 41) if taken.search(name)] == [
        "b",
        "team-x",
        "1",
    ]
