# SPDX-License-Identifier: Apache-2.0
"""The schema of GpuPolicies is the policy file's: the same fields, values and bounds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
from support.chart import documents

from slicekeeper.config.policy import NamespacePolicy

[CRD] = documents("objects/gpupolicies.yaml")
[VERSION] = CRD["spec"]["versions"]
SPEC = VERSION["schema"]["openAPIV3Schema"]["properties"]["spec"]
BOUNDS = {"minimum", "maximum", "enum"}


def theirs(schema: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the CRD allows in each field."""
    for key, below in schema["properties"].items():
        if "properties" in below:
            yield from theirs(below, f"{path}{key}.")
        else:
            yield f"{path}{key}", below


def ours(schema: dict[str, Any], known: dict[str, Any], path: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what the policy file allows in each field."""
    for key, below in schema["properties"].items():
        reference = next((one["$ref"] for one in [below, *below.get("allOf", [])] if "$ref" in one), "")
        if reference:
            yield from ours(known[reference.rpartition("/")[2]], known, f"{path}{key}.")
        else:
            yield f"{path}{key}", below


def bounds(field: dict[str, Any]) -> dict[str, Any]:
    field = {**field, **field.get("items", {})}
    return {key: sorted(value) if isinstance(value, list) else value for key, value in field.items() if key in BOUNDS}


def test_fields_types_and_bounds_are_those_of_the_file() -> None:
    (_,), known = msgspec.json.schema_components([NamespacePolicy])
    file = dict(ours(known["NamespacePolicy"], known))
    crd = dict(theirs(SPEC))
    match = crd.pop("match")
    assert (match["type"], match["x-kubernetes-list-type"], SPEC["required"]) == ("array", "set", ["match"])
    assert crd.keys() == file.keys()
    for key, field in file.items():
        assert bounds(crd[key]) == bounds(field), key
        wanted = field.get("type", "string" if "enum" in field else None)
        assert crd[key]["type"] == wanted, key


def test_no_field_has_a_default_which_would_be_a_difference_from_git() -> None:
    assert "default" not in {key for field in dict(theirs(SPEC)).values() for key in field}


def test_columns_fit_a_terminal() -> None:
    shown = [column for column in VERSION["additionalPrinterColumns"] if not column.get("priority")]
    widths = {"Mode": 7, "Budget": 6, "Namespaces": 10, "Ready": len("PartlyTaken"), "Age": 5}
    assert [column["name"] for column in shown] == list(widths)
    assert 20 + sum(3 + width for width in widths.values()) <= 80
