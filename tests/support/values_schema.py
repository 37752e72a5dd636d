# SPDX-License-Identifier: Apache-2.0
"""The schema of the chart's values, `values.schema.json`: made of the settings' and the policy's own types."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import cache
from typing import Any, Final

import msgspec
import yaml
from support.chart import CHART, documents

from slicekeeper.config.policy import NamespacePolicy, NamespaceRule
from slicekeeper.config.settings import PARTS, RESOURCE, SHARD, Settings

FILE = CHART / "values.schema.json"
_NAME_OR_PATTERN: Final = r"^([a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?|[-a-z0-9!\]]*[*?\[][-a-z0-9*?!\[\]]*)$"
_RESOURCE_OR_PREFIX: Final = (
    rf"^({RESOURCE.pattern}|[a-z0-9]([-a-z0-9.]{{0,251}}[a-z0-9])?/([A-Za-z0-9][-A-Za-z0-9_.]{{0,61}})?\*)$"
)


def values() -> dict[str, Any]:
    """Return the chart's own values."""
    found: dict[str, Any] = yaml.safe_load((CHART / "values.yaml").read_text())
    return found


@cache
def schema() -> dict[str, Any]:
    """Return the schema of the values, with the settings' and the policy's own types."""
    _, known = msgspec.json.schema_components((Settings, NamespacePolicy, NamespaceRule), ref_template="#/$defs/{name}")
    for one in known.values():
        one.pop("required", None)
        if "description" in one:
            one["description"] = inspect.cleandoc(one["description"])  # Python 3.13 does so by itself
        for below in one.get("properties", {}).values():
            below.pop("default", None)
    rule = known.pop("NamespaceRule")
    policy = known["NamespacePolicy"]
    policy["properties"]["mode"] = {
        "enum": [*policy["properties"]["mode"]["enum"], False]
    }  # YAML 1.1 reads `off` as false
    entry = {**policy, "properties": {**rule["properties"], **policy["properties"]}, "required": ["match"]}
    # Helm must refuse what the parts would refuse after it has installed them; `_helpers.tpl` has what a schema cannot.
    for path, bounds in _bounds_of_policies():
        field(known, "NamespacePolicy", path).update(bounds)
    name = {**rule["properties"]["match"]["items"], "pattern": _NAME_OR_PATTERN}
    entry["properties"]["match"] = {
        "anyOf": [name, {"type": "array", "items": name, "minItems": 1, "uniqueItems": True}]
    }
    known["SchedulerSettings"]["properties"]["shards"] |= {
        "items": {"type": "string", "pattern": f"^{SHARD.pattern}$"},
        "uniqueItems": True,
    }
    resources = known["Resources"]["properties"]
    for key in ("core", "memory", "seat"):
        resources[key]["pattern"] = f"^{RESOURCE.pattern}$"
    device = {"type": "string", "pattern": _RESOURCE_OR_PREFIX}
    resources["device"]["anyOf"] = [device, {"type": "array", "items": device}]
    exempt = {"type": "string", "pattern": _NAME_OR_PATTERN}
    known["PolicySettings"]["properties"]["exemptNamespaces"]["items"] = exempt
    images = known["Images"]["properties"]
    properties = {
        "images": {
            **known["Images"],
            "properties": {
                # A host is needed: without one it would be a public registry's, in which anyone may take the name.
                "registry": {"type": "string", "pattern": r"^(|[^/]*[.:][^/]*(/.+)?|localhost(/.+)?)$"},
                "tag": images["tag"],
                "digests": _closed(**{part: {"type": "string", "pattern": "^sha256:[0-9a-f]{64}$"} for part in PARTS}),
            },
        },
        "mode": {"enum": ["observe", "enforce"]},
        "policy": _closed(default={"$ref": "#/$defs/NamespacePolicy"}, namespaces={"type": "array", "items": entry}),
        "config": {"$ref": "#/$defs/Settings"},
        "kubeScheduler": _closed(
            image={"type": "string", "minLength": 1}, version={"type": "string", "pattern": r"^(v\d+\.\d+\.\d+)?$"}
        ),
        "imagePullSecrets": {
            "type": "array",
            "items": {**_closed(name={"type": "string", "minLength": 1}), "required": ["name"]},
        },
        "timekeeper": _closed(replicas={"type": "integer", "minimum": 0}),
        "databaseSecret": {"type": "string", "minLength": 1},
        "createNamespace": {"type": "boolean"},
        "components": _closed(**{name: {"type": "boolean"} for name in values()["components"]}),
        "global": {"type": "object"},
    }
    return {"$schema": "http://json-schema.org/draft-07/schema#", **_closed(**properties), "$defs": known}


def _bounds_of_policies() -> Iterator[tuple[tuple[str, ...], dict[str, Any]]]:
    """Yield the path of each text of a GpuPolicy that has a pattern, with what limits it."""
    [crd] = documents("objects/gpupolicies.yaml")
    [version] = crd["spec"]["versions"]
    waiting: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        ((), version["schema"]["openAPIV3Schema"]["properties"]["spec"])
    ]
    while waiting:
        path, below = waiting.pop()
        if "pattern" in below:
            yield path, {key: below[key] for key in ("pattern", "minLength", "maxLength") if key in below}
        waiting += [((*path, key), one) for key, one in below.get("properties", {}).items()]
        if "items" in below:
            waiting.append(((*path, "items"), below["items"]))


def field(known: dict[str, Any], name: str, path: tuple[str, ...]) -> dict[str, Any]:
    """Return the schema of one field of a type of the settings."""
    found: dict[str, Any] = known[name]
    for key in path:
        found = found["items"] if key == "items" else found["properties"][key]
        reference = next((one["$ref"] for one in [found, *found.get("allOf", [])] if "$ref" in one), "")
        if reference:
            found = known[reference.rpartition("/")[2]]
    return found


def _closed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "properties": properties}
