# SPDX-License-Identifier: Apache-2.0
"""The status of a refusal, as the API server shows it to its user: HTTP code, reason and message."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slicekeeper.errors import Violation
from slicekeeper.wire.admission_types import Status

_CODE: Final = {
    "request-malformed": 400,
    "budget-unknown": 503,
    "priority-class-unknown": 503,
    **dict.fromkeys(
        (
            "budget-exhausted",
            "capability",
            "device-mount",
            "device-refused",
            "env-from",
            "host-ipc",
            "host-path",
            "host-pid",
            "limit-range",
            "node-name",
            "not-as-admitted",
            "priority-class-not-allowed",
            "privileged",
            "proc-mount",
            "reserved-annotation",
            "reserved-container",
            "reserved-env",
            "reserved-finalizer",
            "reserved-gate",
            "reserved-label",
            "reserved-resource",
            "reserved-volume",
            "scheduler-name",
            "sharing-not-allowed",
        ),
        403,
    ),
}
"""By rule. A rule of the cluster is 403, a temporary state 503, a review that is wrong itself 400; all others are 422:
the manifest is wrong."""

_REASON: Final = {400: "BadRequest", 403: "Forbidden", 422: "Invalid", 503: "ServiceUnavailable"}
_MOST_VIOLATIONS: Final = 20
"""A hostile manifest must not cause an answer as long as itself."""


def status_of(violations: Sequence[Violation]) -> Status:
    """Return the status of a refusal; its code is that of the first violation."""
    code = _CODE.get(violations[0].code, 422)
    shown = violations[:_MOST_VIOLATIONS]
    causes = [{"reason": v.code, "field": v.field, "message": str(v)} for v in shown]
    more = len(violations) - len(shown)
    return {
        "code": code,
        "reason": _REASON[code],
        "message": "; ".join(cause["message"] for cause in causes) + (f"; and {more} more" if more else ""),
        "details": {"causes": causes},
    }
