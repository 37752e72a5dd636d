# SPDX-License-Identifier: Apache-2.0
"""The Helm chart says what the code says, read without Helm; what Helm makes of it is seen in the cluster suite."""

from __future__ import annotations

import json
import os
import re
from typing import Any

import pytest
import yaml
from support import chart, values_schema

from slicekeeper import __version__
from slicekeeper.cli.check.installed import COMPARED
from slicekeeper.config.foreign_dialects import DIALECTS
from slicekeeper.config.load import keys
from slicekeeper.config.patterns import problem_of
from slicekeeper.config.policy_entry import policy_of
from slicekeeper.config.settings import Settings
from slicekeeper.config.yaml_file import convert
from slicekeeper.errors import SettingsError

SETTINGS = convert(yaml.safe_load((chart.CHART / "files/config.yaml").read_text()), Settings, "config.yaml")


def test_the_rendered_file_is_the_charts() -> None:
    helm = chart.program()
    if helm is None:
        pytest.skip("no helm on PATH, nor built by the cluster suite, which checks this too")
    assert chart.stale(helm) == [], "render it again: make manifests"


def test_the_rendered_file_has_the_objects_of_the_templates_and_no_others() -> None:
    installed = {(o["kind"], o["metadata"]["name"]) for o in chart.installed()}
    templates = {(o["kind"], o["metadata"]["name"]) for o in chart.documents()}
    classes = {("PriorityClass", c.name) for c in (SETTINGS.classes.in_budget, SETTINGS.classes.over_budget)}
    assert installed - classes <= templates, "render it again: make manifests"


def test_settings_that_other_objects_contain_are_the_codes_defaults() -> None:
    for key in (key for key in keys() if key.dotted.startswith(COMPARED)):
        assert key.of(SETTINGS) == key.of(Settings()), key.dotted


def test_names_of_other_gpu_sharing_systems_are_the_codes() -> None:
    told = yaml.safe_load((chart.CHART / "files/foreign-dialects.yaml").read_text())
    kinds = ("resources", "annotations", "labels")
    ours = {
        name: {kind: list(getattr(one, kind)) for kind in kinds if getattr(one, kind)} for name, one in DIALECTS.items()
    }
    assert told == ours


def test_the_charts_version_is_the_releases() -> None:
    told = yaml.safe_load((chart.CHART / "Chart.yaml").read_text())
    assert (told["version"], told["appVersion"]) == (__version__, __version__)


def test_each_component_is_a_value_and_changes_a_template() -> None:
    texts = "".join(file.read_text() for file in chart.TEMPLATES.rglob("*.*"))
    assert set(re.findall(r"\.Values\.components\.(\w+)", texts)) == set(values_schema.values()["components"])


def test_the_schema_of_the_values_is_the_settings_and_the_policys() -> None:
    text = json.dumps(values_schema.schema(), indent=2) + "\n"
    if os.environ.get("UPDATE_GOLDEN"):
        values_schema.FILE.write_text(text)
    assert json.loads(values_schema.FILE.read_text()) == json.loads(text), "make it again with UPDATE_GOLDEN=1"


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
    return values_schema.field(values_schema.schema()["$defs"], "NamespacePolicy", tuple(path.split(".")))


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
    one, several = values_schema.schema()["properties"]["policy"]["properties"]["namespaces"]["items"]["properties"][
        "match"
    ]["anyOf"]
    assert several["items"] == one
    assert several["uniqueItems"]
    assert _fits(one, match) == (not problem_of(match))


def test_helm_refuses_names_of_shards_that_no_part_would_take() -> None:
    shards = values_schema.schema()["$defs"]["SchedulerSettings"]["properties"]["shards"]
    assert shards["uniqueItems"]
    taken = re.compile(shards["items"]["pattern"])
    assert [name for name in ("b", "team-x", "1", "", "Team_x", "-b", "b.c", "b" * 41) if taken.search(name)] == [
        "b",
        "team-x",
        "1",
    ]


@pytest.mark.parametrize(
    ("name", "prefix_too"),
    [
        ("a.example/b", True), ("a.example/mig-1g.5gb", True), ("nvidia.com/mig-*", False), ("nvidia.com/*", False),
        ("gpu", None), ("a.example/-b", None), ("a.example/-*", None), ("A.example/b", None), ("a.example/b'", None),
    ],
)  # fmt: skip
def test_the_schema_knows_names_of_resources(name: str, prefix_too: bool | None) -> None:
    fields = values_schema.schema()["$defs"]["Resources"]["properties"]
    assert _fits(fields["core"], name) is bool(prefix_too)
    assert _fits(fields["device"]["anyOf"][0], name) is (prefix_too is not None)
    for resources, taken in (({"core": name}, bool(prefix_too)), ({"device": name}, prefix_too is not None)):
        try:
            convert({"resources": resources}, Settings, "here")
        except SettingsError:
            assert not taken
        else:
            assert taken
