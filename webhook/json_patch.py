# SPDX-License-Identifier: Apache-2.0
"""RFC 6902 patches: `mutation` only adds, and removes nothing.

The builder writes the fewest operations that add a missing value; `apply` does what the API server does with them, for
`slicekeeper review` and to check our own output. The `jsonpatch` library would copy the whole object, and fail on a
deeply nested one; the tests compare the two.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from slicekeeper.wire.json_patch import JsonPatch, escape


class PatchBuilder:
    """Collects operations, in the order in which they must be applied."""

    def __init__(self) -> None:
        self.operations: JsonPatch = []

    def add(self, pointer: str, value: Any) -> None:
        """Add a missing member or list element."""
        self.operations.append({"op": "add", "path": pointer, "value": value})

    def replace(self, pointer: str, value: Any) -> None:
        """Replace an existing member."""
        self.operations.append({"op": "replace", "path": pointer, "value": value})

    def remove(self, pointer: str) -> None:
        """Remove an existing member."""
        self.operations.append({"op": "remove", "path": pointer})

    def member(self, parent: Mapping[str, Any], pointer: str, key: str, value: Any) -> None:
        """Set `key` of an existing map to `value`."""
        if key not in parent:
            self.add(f"{pointer}/{escape(key)}", value)
        elif parent[key] != value:
            self.replace(f"{pointer}/{escape(key)}", value)

    def members(self, parent: object, pointer: str, values: Mapping[str, Any]) -> None:
        """Set all `values` in a map, which may be missing."""
        if isinstance(parent, dict):
            for key, value in values.items():
                self.member(parent, pointer, key, value)
        elif values:
            self.add(pointer, dict(values))

    def append(self, parent: Sequence[object], pointer: str, values: Sequence[Any]) -> None:
        """Append `values` to a list; an empty one may be missing."""
        if parent:
            for value in values:
                self.add(f"{pointer}/-", value)
        elif values:
            self.add(pointer, list(values))


def parts(pointer: str) -> list[str]:
    """Return the members that a JSON pointer names, from the top down."""
    return [part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:]]


def value_at(document: Mapping[str, Any], pointer: str) -> tuple[Any, str]:
    """Return the value at a pointer (None if there is none), and its path in the form that people write."""
    node: Any = document
    path = ""
    for part in parts(pointer):
        if isinstance(node, list):
            node = node[int(part)] if part != "-" and int(part) < len(node) else None
            path += "[]" if part == "-" else f"[{part}]"
        else:
            node = node.get(part) if isinstance(node, dict) else None
            path += f"[{part}]" if "/" in part else f".{part}"
    return node, path.removeprefix(".")


def apply(document: Mapping[str, Any], patch: JsonPatch) -> dict[str, Any]:
    """Return `document` patched.

    Parts that the patch does not touch are shared with `document`, which is not changed.
    """
    result = dict(document)
    for operation in patch:
        *parents, last = parts(operation["path"])
        node: Any = result
        for part in parents:
            key: Any = int(part) if isinstance(node, list) else part
            node[key] = node = node[key].copy()
        value = operation.get("value")
        if operation["op"] == "remove":
            del node[last]  # of a mapping, always
        elif isinstance(node, dict):
            node[last] = value
        elif operation["op"] == "replace":
            node[int(last)] = value
        else:
            node.insert(len(node) if last == "-" else int(last), value)
    return result
