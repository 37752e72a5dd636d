# SPDX-License-Identifier: Apache-2.0
"""The manifests follow the settings: images and resources' names are changed in one place and hold everywhere."""

from __future__ import annotations

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner

from slicekeeper.cli.main import cli
from slicekeeper.config import manifests
from slicekeeper.config.load import load
from slicekeeper.config.policy import SidecarPolicy
from slicekeeper.config.settings import PARTS, Images, Resources, Settings
from slicekeeper.errors import SettingsError
from webhook.sidecar_container import sidecar_container

ROOT = Path(__file__).parents[4] / "manifests"
DIGEST = "sha256:" + "0123456789abcdef" * 4
RENAMED = """\
resources:
  core: gpu.example/percent
  memory: gpu.example/blocks
  seat: gpu.example/seat
  device: [nvidia.com/gpu, "gpu.example/slice-*", "other.example/*"]
webhook: {schedulerName: gpu-scheduler}
"""
DECIDED = """\
policy: {exemptNamespaces: [kube-system, infra, "infra-*"]}
timekeeper: {audience: budgets.example}
classes:
  inBudget: {name: gpu-first, value: 1000, preemptionPolicy: Never}
  overBudget: {name: gpu-lower-priority, value: -20, preemptionPolicy: PreemptLowerPriority}
"""
UNDECIDED = """\
policy: {exemptNamespaces: [kube-system, kube-public, kube-node-lease, slicekeeper-system]}
timekeeper: {audience: timekeeper}
classes:
  inBudget: {name: gpu-default-priority, value: 0, preemptionPolicy: PreemptLowerPriority}
  overBudget: {name: gpu-lower-priority, value: -100, preemptionPolicy: Never}
"""
OLD = re.compile(r"tencent\.com/vcuda-(core|memory)(?!-limit)|slicekeeper\.io/seat|nvidia\.com/mig-|gpu\.shared")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return Path(shutil.copytree(ROOT, tmp_path / "manifests"))


def configure(folder: Path, text: str) -> Settings:
    config = folder / "base/config/config.yaml"
    tree = yaml.safe_load(config.read_text())
    for section, values in yaml.safe_load(text).items():
        tree[section] = {**tree.get(section, {}), **values}
    config.write_text(yaml.safe_dump(tree))
    return load(config, {}).settings


def texts(folder: Path) -> dict[str, str]:
    files = [file for part in ("base", "components") for file in (folder / part).rglob("*.yaml")]
    return {str(file.relative_to(folder)): file.read_text() for file in files if file.name != "config.yaml"}


def images(folder: Path) -> set[str]:
    return set(re.findall(r"image: (\S+)", "\n".join(texts(folder).values())))


def test_the_checkouts_manifests_are_as_their_settings_say() -> None:
    assert manifests.write(ROOT, dry=True) == []
    assert manifests.write(ROOT / "install.yaml", dry=True) == []


def test_renamed_resources_hold_everywhere(folder: Path) -> None:
    before = texts(folder)
    resources = configure(folder, RENAMED).resources
    changed = {file.name for file in manifests.write(folder)}
    assert changed == {"admission.yaml", "guards.yaml", "kube-scheduler.yaml"}
    after = texts(folder)
    assert not any(OLD.search(text) for text in after.values())
    admission = after["base/admission.yaml"]
    places = list(manifests.found(manifests.ASKS, admission))
    assert len(places) == len(list(manifests.found(manifests.ASKS, before["base/admission.yaml"]))) >= 10
    assert {frozenset(place) for place in places} == {frozenset(manifests.names_of(resources))}
    assert "['gpu.example/slice-', 'other.example/'].exists(prefix, resource.startsWith(prefix))" in admission
    assert list(manifests.found(manifests.AMOUNTS, after["base/guards.yaml"])) == [(resources.core, resources.memory)]
    scheduler = yaml.safe_load(after["base/config/kube-scheduler.yaml"])
    assert [r["name"] for r in scheduler["extenders"][0]["managedResources"]] == [resources.core, resources.memory]
    assert all(r["ignoredByScheduler"] is False for r in scheduler["extenders"][0]["managedResources"])
    assert scheduler["profiles"] == [{"schedulerName": "gpu-scheduler"}]


def test_requests_of_other_systems_come_to_the_webhook_if_the_settings_say_so(folder: Path) -> None:
    before = texts(folder)
    resources = configure(folder, "resources: {foreign: [kai, gpushare, kubeshare]}").resources
    assert {file.name for file in manifests.write(folder)} == {"admission.yaml"}
    admission = texts(folder)["base/admission.yaml"]
    asked = set(manifests.names_of(resources))
    assert asked > {"aliyun.com/gpu-mem", "aliyun.com/gpu-core.percentage", "nvidia.com/gpu"}
    assert {frozenset(place) for place in manifests.found(manifests.ASKS, admission)} == {frozenset(asked)}
    for shape, wanted in (
        (manifests.ANNOTATIONS, {"gpu-fraction", "gpu-memory", "slicekeeper.io/bound-at"}),
        (manifests.LABELS, {"sharedgpu/gpu_request", "slicekeeper.io/managed"}),
    ):
        places = list(manifests.found(shape, admission))
        assert len(places) == 4
        assert all(set(place) >= wanted for place in places)
    configure(folder, "resources: {foreign: []}")
    manifests.write(folder)
    assert texts(folder) == before


def test_namespaces_classes_and_audience_hold_everywhere(folder: Path) -> None:
    before = texts(folder)
    configure(folder, DECIDED)
    assert {file.name for file in manifests.write(folder)} == {
        "admission.yaml",
        "guards.yaml",
        "objects.yaml",
        "priority-classes.yaml",
        "webhook.yaml",
    }
    after = texts(folder)
    spared = ["kube-system", "infra", "slicekeeper-system"]  # our own always, and no pattern
    hooks = [hook for one in yaml.safe_load_all(after["base/admission.yaml"]) for hook in one["webhooks"]]
    for hook in hooks:
        assert hook["namespaceSelector"]["matchExpressions"][0]["values"] == spared
    guards = after["base/guards.yaml"]
    assert list(manifests.found(manifests.NAMESPACES, guards)) == [tuple(spared)] * 2
    assert [match["value"] for match in manifests.LOWER.finditer(guards)] == ["1000", "1000"]
    made = {one["metadata"]["name"]: one for one in yaml.safe_load_all(after["base/priority-classes.yaml"])}
    assert {name: (one["value"], one["preemptionPolicy"]) for name, one in made.items()} == {
        "gpu-first": (1000, "Never"),
        "gpu-lower-priority": (-20, "PreemptLowerPriority"),
    }
    assert "audience: budgets.example," in after["base/webhook.yaml"]
    configure(folder, UNDECIDED)
    manifests.write(folder)
    assert texts(folder) == before


def test_a_rendered_file_follows_in_its_own_shape(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    text = (ROOT / "install.yaml").read_text()
    config = yaml.safe_load((ROOT / "base/config/config.yaml").read_text())
    for section, values in yaml.safe_load(DECIDED).items():
        config[section] = {**config.get(section, {}), **values}
    objects = [obj for obj in yaml.safe_load_all(text) if obj]
    [kept] = [obj for obj in objects if obj["metadata"]["name"].startswith("slicekeeper-config")]
    old = text.partition("  config.yaml: |\n")[2].partition("\nkind: ConfigMap")[0]
    assert kept["data"]["config.yaml"].splitlines()[0] in old
    new = "".join(f"    {line}\n" for line in yaml.safe_dump(config).splitlines())
    file.write_text(text.replace(old, new.rstrip("\n"), 1))
    assert manifests.write(file) == [file]
    made = [obj for obj in yaml.safe_load_all(file.read_text()) if obj]
    hooks = [hook for obj in made for hook in obj.get("webhooks") or []]
    lists = [hook["namespaceSelector"]["matchExpressions"][0]["values"] for hook in hooks]
    assert lists == [["kube-system", "infra", "slicekeeper-system"]] * len(hooks)
    assert len(hooks) >= 6
    assert {obj["metadata"]["name"] for obj in made if obj["kind"] == "PriorityClass"} == {
        "gpu-first",
        "gpu-lower-priority",
    }
    assert "audience: budgets.example\n" in file.read_text()
    assert manifests.write(file) == []


def test_names_are_changed_again_and_back(folder: Path) -> None:
    before = texts(folder)
    configure(folder, RENAMED)
    manifests.write(folder)
    defaults = {"core": Resources().core, "memory": Resources().memory, "seat": Resources().seat}
    other = {**defaults, "core": "third.example/core", "device": "nvidia.com/gpu"}
    configure(folder, yaml.safe_dump({"resources": other}))
    manifests.write(folder)
    assert "'third.example/core'" in texts(folder)["base/admission.yaml"]
    assert "startsWith(prefix)" not in texts(folder)["base/admission.yaml"]
    back = {**defaults, "device": list(Resources().devices)}
    configure(folder, yaml.safe_dump({"resources": back, "webhook": {"schedulerName": "slicekeeper-scheduler"}}))
    manifests.write(folder)
    assert texts(folder) == before
    assert manifests.write(folder) == []


SECOND = "slicekeeper-scheduler-b"


def test_each_shard_has_a_scheduler_of_its_own(folder: Path) -> None:
    configure(folder, "scheduler: {shards: [b]}")
    files = {str(file.relative_to(folder)): file.read_text() for file in manifests.write(folder)}
    first = yaml.safe_load(files.pop("base/config/kube-scheduler.yaml"))["profiles"][0]
    assert (first["schedulerName"], nodes_of(first)) == ("slicekeeper-scheduler", ("NotIn", ["b"]))
    assert files.keys() == {f"shards/b/{name}.yaml" for name in ("kustomization", "scheduler", "kube-scheduler")}
    config = yaml.safe_load(files["shards/b/kube-scheduler.yaml"])
    assert (config["profiles"][0]["schedulerName"], nodes_of(config["profiles"][0])) == (SECOND, ("In", ["b"]))
    assert config["leaderElection"]["resourceName"] == SECOND
    objects = {obj["kind"]: obj for obj in yaml.safe_load_all(files["shards/b/scheduler.yaml"])}
    assert {obj["metadata"]["name"] for obj in objects.values()} == {"scheduler-b"}
    assert [subject["namespace"] for subject in objects["RoleBinding"]["subjects"]] == ["slicekeeper-system"]
    leases = {name for rule in objects["Role"]["rules"] for name in rule.get("resourceNames", [])}
    assert leases == {SECOND, "slicekeeper-reclaimer-b", "slicekeeper-binder-b"}
    template = objects["Deployment"]["spec"]["template"]
    assert objects["Deployment"]["spec"]["selector"]["matchLabels"].items() <= template["metadata"]["labels"].items()
    extender = next(one for one in template["spec"]["containers"] if one["name"] == "extender")
    assert extender["env"] == [{"name": "SLICEKEEPER_SCHEDULER_SHARD", "value": "b"}]
    assert manifests.write(folder) == []

    configure(folder, "scheduler: {shards: []}")
    assert [file.name for file in manifests.write(folder)] == ["kube-scheduler.yaml"]
    assert texts(folder) == texts(ROOT)


def nodes_of(profile: dict[str, Any]) -> tuple[str, list[str]]:
    [setting] = profile["pluginConfig"]
    [term] = setting["args"]["addedAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    [wanted] = term["matchExpressions"]
    assert wanted["key"] == "slicekeeper.io/shard"
    return wanted["operator"], wanted["values"]


def test_one_value_names_all_images_and_the_sidecars(folder: Path) -> None:
    assert {one.partition("/")[0] for one in images(folder)} == {"slicekeeper.invalid", "registry.k8s.io"}
    settings = configure(folder, "images: {registry: 'registry.example:5000/gpus', tag: 1.2.3}")
    manifests.write(folder)
    ours = {one for one in images(folder) if "kube-scheduler" not in one}
    assert ours == {f"registry.example:5000/gpus/{part}:1.2.3" for part in PARTS if part != "sidecar"}
    assert sidecar_container(settings, SidecarPolicy())["image"] == "registry.example:5000/gpus/sidecar:1.2.3"


def test_digests_stand_instead_of_the_tag(folder: Path) -> None:
    configured = {"registry": "registry.example", "digests": {"webhook": DIGEST, "sidecar": DIGEST}}
    settings = configure(folder, yaml.safe_dump({"images": configured}))
    manifests.write(folder)
    assert f"registry.example/webhook@{DIGEST}" in images(folder)
    assert sidecar_container(settings, SidecarPolicy())["image"] == f"registry.example/sidecar@{DIGEST}"
    configure(folder, "images: {registry: other.example, digests: {}}")
    manifests.write(folder)
    assert any(one.startswith("other.example/webhook:") for one in images(folder))


@pytest.mark.parametrize(
    ("images", "told"),
    [
        ({"registry": "slicekeeper"}, "must begin with a host"),
        ({"registry": "library/slicekeeper"}, "must begin with a host"),
        ({"registry": "https://registry.example"}, "must begin with a host"),
        ({"registry": "registry.example/"}, "must begin with a host"),
        ({"registry": "registry.example/UPPER"}, "must begin with a host"),
        ({"tag": "a b"}, "'a b' is not a tag"),
        ({"digests": {"webhok": DIGEST}}, "digests names 'webhok': it must be one of"),
        ({"digests": {"webhook": "sha256:12"}}, "the digest of webhook is 'sha256:12'"),
    ],
)
def test_what_no_image_can_be_called_is_refused(folder: Path, images: dict[str, Any], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        configure(folder, yaml.safe_dump({"images": images}))


def test_a_rendered_file_has_its_settings_in_it(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    foreign = "---\nkind: Deployment\nspec:\n  image: cert.example/webhook:9\n"
    text = (ROOT / "install.yaml").read_text() + foreign
    embedded = "resources: {core: gpu.example/percent}\n    images: {registry: registry.example}\n    webhook:\n"
    file.write_text(text.replace("    webhook:\n", f"    {embedded}", 1))
    assert manifests.write(file) == [file]
    made = [obj for obj in yaml.safe_load_all(file.read_text()) if obj]
    whole = str(made)
    assert not re.search(r"tencent\.com/vcuda-core(?!-limit)", whole)
    assert "cert.example/webhook:9" in whole
    assert "slicekeeper.invalid" not in whole
    guard = next(o for o in made if o["metadata"]["name"] == "slicekeeper-nodes" and "matchConditions" in o["spec"])
    assert "['gpu.example/percent', 'tencent.com/vcuda-memory'].exists(amount," in str(guard["spec"]).replace('"', "'")
    assert manifests.write(file) == []


def test_a_file_without_settings_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "part.yaml"
    file.write_text("kind: Service\n")
    with pytest.raises(SettingsError, match="no ConfigMap slicekeeper-config"):
        manifests.write(file)


def test_a_date_that_is_none_is_an_error_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "part.yaml"
    file.write_text("kind: 2026-13-01\n")
    with pytest.raises(SettingsError, match="part.yaml: not valid YAML: month must be"):
        manifests.write(file)
    with pytest.raises(SettingsError, match="configmap x: config.yaml is not valid YAML: month must be"):
        manifests.parse("webhook: 2026-13-01", "configmap x")


def test_the_command_writes_and_tells(folder: Path) -> None:
    configure(folder, "images: {registry: registry.example}")
    run = CliRunner().invoke
    told = run(cli, ["config", "manifests", str(folder), "--check"])
    assert (told.exit_code, told.output.count("is not as its settings say")) == (1, 9)
    done = run(cli, ["config", "manifests", str(folder)])
    assert (done.exit_code, done.output.count(": written")) == (0, 9)
    assert run(cli, ["config", "manifests", str(folder), "--check"]).exit_code == 0
    assert Images(registry="registry.example").of("webhook") in (folder / "base/webhook.yaml").read_text()
