# SPDX-License-Identifier: Apache-2.0
"""Which user wrote a budget object's generation, as the webhook notes it on the object and the operator reads it.

The annotation carries the generation that it is about, so an earlier writer is never taken for a
later one, even if the webhook was away in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.untyped import as_map

LONGEST: Final = 1024
"""Kubernetes limits no user's name, but all annotations of an object together to 256 KiB."""

_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
"""What JSON has in place of bytes that are not UTF-8: the API server's own policy knows the user by those bytes."""


def value(generation: int, user: str) -> str | None:
    """Return the annotation of a generation that `user` writes; None if that name cannot be noted."""
    if not user or len(user) > LONGEST or _REPLACED in user:
        return None
    return f"{generation} {user}"


def writer_of(obj: Mapping[str, Any]) -> str | None:
    """Return who wrote an object's present generation, None if that is not known.

    What cannot be printed, such as a line break, is escaped: names end up in tables and logs.
    """
    metadata = as_map(obj.get("metadata"))
    generation, _, user = str(as_map(metadata.get("annotations")).get(names.CHANGED_BY, "")).partition(" ")
    if generation != str(metadata.get("generation")) or not user:
        return None
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in user)[:LONGEST]
