# SPDX-License-Identifier: Apache-2.0
"""Check that an object has the shape of a pod, as far as it is read or patched.

The API server sends nothing else, but `slicekeeper review` reads hand-written files, and other clients can reach the
webhook too. After this check, rules and patches need not check types again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from slicekeeper.errors import Violation
from slicekeeper.untyped_json import as_list, as_map, show

_KIND: Final = {dict: "a mapping", list: "a list", str: "a string", bool: "true or false", int: "a whole number"}
_EXAMPLE: Final = {dict: "{}", list: "[]", str: "text", bool: "false", int: "3600"}

_METADATA: Final = (("labels", dict), ("annotations", dict), ("finalizers", list))
_SPEC: Final = (
    ("volumes", list),
    ("resources", dict),
    ("priorityClassName", str),
    ("schedulerName", str),
    ("nodeName", str),
    ("hostPID", bool),
    ("hostIPC", bool),
    ("schedulingGates", list),
    ("activeDeadlineSeconds", int),
)
_CONTAINER: Final = (
    ("name", str),
    ("env", list),
    ("envFrom", list),
    ("resources", dict),
    ("securityContext", dict),
    ("volumeMounts", list),
    ("command", list),
)
_TEXT: Final = (str, type(None))
_CONTAINER_LISTS: Final = ("initContainers", "containers", "ephemeralContainers")


def malformed(pod: Mapping[str, Any]) -> Iterator[Violation]:
    """Yield every field whose type is wrong for a pod; null counts as absent."""
    yield from _fields(pod, "", (("metadata", dict), ("spec", dict)))
    yield from _fields(as_map(pod.get("metadata")), "metadata.", _METADATA)
    spec = as_map(pod.get("spec"))
    yield from _fields(spec, "spec.", _SPEC)
    for key in ("volumes", "schedulingGates"):
        yield from _entries(as_list(spec.get(key)), f"spec.{key}")
    for key in _CONTAINER_LISTS:
        if key not in spec:
            continue
        yield from _fields(spec, "spec.", ((key, list),))
        for index, container in enumerate(as_list(spec[key])):
            path = f"spec.{key}[{index}]"
            if isinstance(container, dict):
                yield from _container(container, path)
            else:
                yield _wrong(path, container, dict)


def _container(container: Mapping[str, Any], path: str) -> Iterator[Violation]:
    yield from _fields(container, f"{path}.", _CONTAINER)
    resources = container.get("resources")
    if isinstance(resources, dict):
        yield from _fields(resources, f"{path}.resources.", (("limits", dict), ("requests", dict)))
    context = container.get("securityContext")
    if isinstance(context, dict):
        yield from _fields(context, f"{path}.securityContext.", (("privileged", bool), ("capabilities", dict)))
    env = container.get("env")
    if isinstance(env, list):
        for index, entry in enumerate(env):
            if not isinstance(entry, dict):
                yield _wrong(f"{path}.env[{index}]", entry, dict)
            elif not isinstance(entry.get("name"), str):
                yield _wrong(f"{path}.env[{index}].name", entry.get("name"), str)
            elif not isinstance(entry.get("value", ""), _TEXT):
                yield _wrong(f"{path}.env[{index}].value", entry.get("value"), str)


def _entries(entries: list[Any], path: str) -> Iterator[Violation]:
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            yield _wrong(f"{path}[{index}]", entry, dict)
        elif not isinstance(entry.get("name"), str):
            yield _wrong(f"{path}[{index}].name", entry.get("name"), str)


def _fields(parent: Mapping[str, Any], prefix: str, fields: tuple[tuple[str, type], ...]) -> Iterator[Violation]:
    for key, kind in fields:
        value = parent.get(key)
        if value is not None and type(value) is not kind:
            yield _wrong(prefix + key, value, kind)


def _wrong(path: str, value: object, kind: type) -> Violation:
    name = path.rpartition(".")[2]
    return Violation(
        code="manifest-malformed",
        field=path,
        value=show(value),
        rule=f"it must be {_KIND[kind]}",
        example=f"{name}: {_EXAMPLE[kind]}",
    )
