# SPDX-License-Identifier: Apache-2.0
"""JSON patches as the API server applies them, by a library and not by our own code."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import jsonpatch


def apply(document: dict[str, Any], patch: list[dict[str, Any]]) -> dict[str, Any]:
    """Return `document` patched; it and the patch stay as they were."""
    patched: dict[str, Any] = jsonpatch.apply_patch(document, deepcopy(patch))
    return patched
