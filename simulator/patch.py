# SPDX-License-Identifier: Apache-2.0
"""Patches as an API server applies them: RFC 7386 merge patches and RFC 6902 JSON patches.

Strategic merge patches are taken as merge patches: for maps, which is all that our parts patch, they are the same.
Nothing given is changed in place.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec

MAX_OPERATIONS: Final = 10_000
"""The API server's own limit."""


class PatchError(Exception):
    """The patch does not fit the object; the message says which operation and why."""


def clone(value: Any) -> Any:
    """Return a deep copy of JSON."""
    return msgspec.json.decode(msgspec.json.encode(value))


def merge(target: Any, patch: Any) -> Any:
    """Return `target` with a merge patch applied: null removes a key, maps merge, all else is replaced."""
    if not isinstance(patch, dict):
        return clone(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def apply(target: Any, operations: Any) -> Any:
    """Return `target` with a JSON patch applied, all of it or nothing.

    Raises PatchError.
    """
    if not isinstance(operations, list) or len(operations) > MAX_OPERATIONS:
        raise PatchError(f"a JSON patch is a list of at most {MAX_OPERATIONS} operations")
    document = clone(target)
    for index, operation in enumerate(operations):
        try:
            document = _apply_one(document, operation)
        except (PatchError, KeyError, IndexError, TypeError, ValueError) as error:
            raise PatchError(f"operation {index} ({_shown(operation)}): {error}") from error
    return document


def _shown(operation: Any) -> str:
    if not isinstance(operation, dict):
        return "no object"
    return f"{operation.get('op')} {operation.get('path')}"


def _apply_one(document: Any, operation: Any) -> Any:
    kind, path = operation["op"], _pointer(operation["path"])
    if kind in ("add", "replace"):
        return _put(document, path, clone(operation["value"]), replace=kind == "replace")
    if kind == "remove":
        return _remove(document, path)[0]
    if kind == "test":
        if _get(document, path) != operation["value"]:
            raise PatchError("the value there is another one")
        return document
    if kind == "copy":
        return _put(document, path, clone(_get(document, _pointer(operation["from"]))), replace=False)
    if kind == "move":
        document, value = _remove(document, _pointer(operation["from"]))
        return _put(document, path, value, replace=False)
    raise PatchError("unknown operation")


def _pointer(text: str) -> list[str]:
    if text == "":
        return []
    if not text.startswith("/"):
        raise PatchError("a path begins with /")
    return [part.replace("~1", "/").replace("~0", "~") for part in text[1:].split("/")]


def _index(part: str, length: int) -> int:
    if not part.isascii() or not part.isdecimal() or (len(part) > 1 and part[0] == "0") or int(part) >= length:
        raise PatchError(f"no element {part!r} in a list of {length}")
    return int(part)


def _step(node: Any, part: str) -> Any:
    if isinstance(node, list):
        return node[_index(part, len(node))]
    if isinstance(node, dict) and part in node:
        return node[part]
    raise PatchError(f"{part!r} is not there")


def _get(document: Any, path: list[str]) -> Any:
    for part in path:
        document = _step(document, part)
    return document


def _put(document: Any, path: list[str], value: Any, *, replace: bool) -> Any:
    if not path:
        return value
    parent, last = _get(document, path[:-1]), path[-1]
    if replace:
        _step(parent, last)
    if isinstance(parent, list) and not replace:
        parent.insert(len(parent) if last == "-" else _index(last, len(parent) + 1), value)
    elif isinstance(parent, list):
        parent[_index(last, len(parent))] = value
    elif isinstance(parent, dict):
        parent[last] = value
    else:
        raise PatchError("the parent is neither a map nor a list")
    return document


def _remove(document: Any, path: list[str]) -> tuple[Any, Any]:
    if not path:
        raise PatchError("the whole object cannot be removed")
    parent, last = _get(document, path[:-1]), path[-1]
    _step(parent, last)
    return document, parent.pop(_index(last, len(parent)) if isinstance(parent, list) else last)
