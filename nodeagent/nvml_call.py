# SPDX-License-Identifier: Apache-2.0
"""Ask NVML for a value: the driver may refuse every single request."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pynvml

UNKNOWN: Final = 2**64 - 1
"""NVML's value for an unavailable number."""


def ask(function: Callable[..., Any], *arguments: Any) -> Any:
    """Return the library's answer, None if it has none."""
    try:
        answer = function(*arguments)
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None
    return None if answer == UNKNOWN else answer
