# SPDX-License-Identifier: Apache-2.0
"""Decode JSON into declared types, from any thread.

msgspec analyses a type at its first use. If a second thread uses the type meanwhile, the whole process ends with a
segmentation fault (msgspec 0.22). Here, only one thread at a time analyses types.
"""

from __future__ import annotations

import threading
from typing import Any, Final, TypeVar

import msgspec

T = TypeVar("T")

_DECODERS: Final[dict[Any, msgspec.json.Decoder[Any]]] = {}
_ANALYSIS: Final = threading.Lock()


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
        with _ANALYSIS:
            found = _DECODERS[kind] = msgspec.json.Decoder(kind)
    return found
