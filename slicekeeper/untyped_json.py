# SPDX-License-Identifier: Apache-2.0
"""Read JSON of unknown shape: a value of the wrong type counts as absent."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

_SHOWN: Final = 80


def show(value: object) -> str:
    """Return a value as JSON, shortened for a message."""
    try:
        text = json.dumps(value, ensure_ascii=True)
    except (TypeError, ValueError, RecursionError):
        text = repr(type(value).__name__)
    return text if len(text) <= _SHOWN else text[: _SHOWN - 1] + "…"


def as_map(value: object) -> Mapping[str, Any]:
    """Return `value` if it is a JSON object, else an empty one."""
    return value if isinstance(value, dict) else {}


def as_list(value: object) -> list[Any]:
    """Return `value` if it is a JSON array, else an empty one."""
    return value if isinstance(value, list) else []
