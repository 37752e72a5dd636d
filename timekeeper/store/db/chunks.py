# SPDX-License-Identifier: Apache-2.0
"""Divide the keys of a query among several statements: each may have only so many parameters."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

_MOST: Final = 500


def chunks(keys: Iterable[str]) -> Iterator[list[str]]:
    """Yield keys in order, as many at a time as one statement gets."""
    ordered = sorted(keys)
    return (ordered[start : start + _MOST] for start in range(0, len(ordered), _MOST))
