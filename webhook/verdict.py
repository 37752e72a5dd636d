# SPDX-License-Identifier: Apache-2.0
"""The result of a review, and the status that a refusal has: its HTTP code, its reason and its message."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from slicekeeper.errors import Violation
from slicekeeper.wire.admission_types import Status
from slicekeeper.wire.json_patch import JsonPatch

_STATUS: Final = {
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
"""Refusals by a rule of the cluster are 403, by a temporary state 503, all others (the manifest is wrong) 422."""

_REASON: Final = {400: "BadRequest", 403: "Forbidden", 422: "Invalid", 503: "ServiceUnavailable"}
_MOST_VIOLATIONS: Final = 20
"""A hostile manifest must not cause an answer as long as itself."""


@dataclass(frozen=True)
class Verdict:
    """The result of a review: a patch and warnings, or violations."""

    patch: JsonPatch = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the object passes."""
        return not self.violations

    @property
    def status(self) -> int:
        """HTTP-like status of a refusal: the first violation's."""
        return _STATUS.get(self.violations[0].code, 422) if self.violations else 200


def status_of(verdict: Verdict, code: int) -> Status:
    """Return a refusal in the form that the API server shows to its user."""
    shown = verdict.violations[:_MOST_VIOLATIONS]
    causes = [{"reason": v.code, "field": v.field, "message": str(v)} for v in shown]
    more = len(verdict.violations) - len(shown)
    return {
        "code": code,
        "reason": _REASON[code],
        "message": "; ".join(cause["message"] for cause in causes) + (f"; and {more} more" if more else ""),
        "details": {"causes": causes},
    }
