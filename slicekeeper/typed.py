# SPDX-License-Identifier: Apache-2.0
"""Decode JSON into declared types, from any thread.

msgspec works out a type when it first meets it. A second thread that meets the type meanwhile ends the whole process
with a segmentation fault (msgspec 0.22). Here, one thread at a time works out types.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_WORKING_OUT: Final = threading.Lock()


def decode(data: bytes | str, kind: type[T]) -> T:
    """Return JSON text as `kind`. Raises msgspec.MsgspecError if it is not that."""
    found: T = _decoder(kind).decode(data)
    return found


def convert(value: object, kind: type[T], *, strict: bool = True) -> T:
    """Return decoded JSON as `kind`. Raises msgspec.ValidationError if it is not that."""
    _decoder(kind)
    return msgspec.convert(value, kind, strict=strict)


def _decoder(kind: type[T]) -> msgspec.json.Decoder[T]:
    found = _DECODERS.get(kind)
    if found is None:
        with _WORKING_OUT:
            found = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return found
