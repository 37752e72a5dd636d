# SPDX-License-Identifier: Apache-2.0
"""Label and field selectors of list and watch requests."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from slicekeeper.kube.client import Object

Selector = Callable[[Object], bool]

FIELDS: Final = ("metadata.name", "metadata.namespace", "spec.nodeName", "status.phase", "involvedObject.uid")
"""What a field selector may name here."""

_SET = re.compile(r"([^\s!=,()]+)\s+(in|notin)\s+\(([^()]*)\)")
_EQUAL = re.compile(r"([^\s!=,()]+)\s*(==|=|!=)\s*([^\s!=,()]*)")
_EXISTS = re.compile(r"(!?)\s*([^\s!=,()]+)")


class SelectorError(ValueError):
    """The selector cannot be read."""


def compile_selectors(labels: str, fields: str) -> Selector:
    """Return a predicate over objects.

    Raises SelectorError.
    """
    tests = [_label_term(term) for term in _terms(labels)] + [_field_term(term) for term in _terms(fields)]
    return lambda obj: all(test(obj) for test in tests)


def _terms(text: str) -> list[str]:
    return [term.strip() for term in re.split(r",(?![^()]*\))", text) if term.strip()]


def _label(obj: Object, key: str) -> str | None:
    value = (obj["metadata"].get("labels") or {}).get(key)
    return None if value is None else str(value)


def _label_term(term: str) -> Selector:
    if match := _SET.fullmatch(term):
        key, operator, listed = match.groups()
        values = {value.strip() for value in listed.split(",")}
        return lambda obj: (_label(obj, key) in values) == (operator == "in")
    if match := _EQUAL.fullmatch(term):
        key, operator, value = match.groups()
        return lambda obj: (_label(obj, key) == value) == (operator != "!=")
    if match := _EXISTS.fullmatch(term):
        absent, key = match.groups()
        return lambda obj: (_label(obj, key) is None) == bool(absent)
    raise SelectorError(f"unable to parse label selector term {term!r}")


def _field_term(term: str) -> Selector:
    match = _EQUAL.fullmatch(term)
    if match is None or match[1] not in FIELDS:
        raise SelectorError(f"field selector {term!r} is not supported; known here: {', '.join(FIELDS)}")
    path, operator, value = match[1].split("."), match[2], match[3]

    def test(obj: Object) -> bool:
        node: object = obj
        for part in path:
            node = node.get(part) if isinstance(node, dict) else None
        return (str(node or "") == value) == (operator != "!=")

    return test
