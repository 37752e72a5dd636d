# SPDX-License-Identifier: Apache-2.0
"""Conditions in the status of objects (`metav1.Condition`)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper.kube.client import Object
from slicekeeper.units import Instant, format_seconds
from slicekeeper.untyped_json import as_list, as_map

READY: Final = "Ready"
_LONGEST_MESSAGE: Final = 1024


def condition(obj: Object, kind: str, status: str, reason: str, message: str, now: Instant) -> Object:
    """Return the current condition for `obj`; its transition time changes only with its status."""
    before = find(obj, kind)
    kept = before.get("lastTransitionTime") if before.get("status") == status else None
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message[:_LONGEST_MESSAGE],
        "observedGeneration": obj["metadata"]["generation"],
        "lastTransitionTime": kept or format_seconds(now),
    }


def find(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the condition of a type in an object's status; empty if there is none."""
    conditions = map(as_map, as_list(as_map(obj.get("status")).get("conditions")))
    return next((one for one in conditions if one.get("type") == kind), {})
