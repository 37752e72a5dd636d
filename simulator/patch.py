# SPDX-License-Identifier: Apache-2.0
"""Patches as an API server applies them: RFC 7386 merge patches and RFC 6902 JSON patches.

Strategic merge patches are taken as merge patches: for maps, which is all that our parts patch, they are the same.
Nothing given is changed in place.
"""

from __future__ import annotations

from typing import Any, Final

import msgspec
from jsonpatch import JsonPatch, JsonPatchException
from jsonpointer import JsonPointerException

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
        raise PatchError(f"a JSON patch must be a list of at most {MAX_OPERATIONS} operations")
    document = clone(target)
    for index, operation in enumerate(operations):
        try:
            document = JsonPatch([clone(operation)]).apply(document, in_place=True)
        except (JsonPatchException, JsonPointerException, KeyError, TypeError, ValueError) as error:
            raise PatchError(f"operation {index} ({_shown(operation)}): {error}") from error
    return document


def _shown(operation: Any) -> str:
    if not isinstance(operation, dict):
        return "no object"
    return f"{operation.get('op')} {operation.get('path')}"
