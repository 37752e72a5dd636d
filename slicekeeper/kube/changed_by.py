# SPDX-License-Identifier: Apache-2.0
"""The author of a budget object's generation: recorded on the object by the webhook, and read by the operator.

The annotation contains its generation, so an earlier author is never mistaken for a later one, even if the webhook was
down in between.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.untyped_json import as_map

LONGEST: Final = 1024
"""Kubernetes limits no user's name, but all annotations of an object together to 256 KiB."""

_REPLACED: Final = "\N{REPLACEMENT CHARACTER}"
"""JSON's replacement for bytes that are not UTF-8; the API server's own policy compares the original bytes."""


def value(generation: int, user: str) -> str | None:
    """Return the annotation of a generation written by `user`; None if that name cannot be recorded."""
    if not user or len(user) > LONGEST or _REPLACED in user:
        return None
    return f"{generation} {user}"


def writer_of(obj: Mapping[str, Any]) -> str | None:
    """Return the author of an object's current generation; None if unknown.

    Unprintable characters, such as line breaks, are escaped, because names appear in tables and logs.
    """
    metadata = as_map(obj.get("metadata"))
    generation, _, user = str(as_map(metadata.get("annotations")).get(names.CHANGED_BY, "")).partition(" ")
    if generation != str(metadata.get("generation")) or not user:
        return None
    return "".join(one if one.isprintable() else ascii(one)[1:-1] for one in user)[:LONGEST]
