# SPDX-License-Identifier: Apache-2.0
"""The status of an object: its budget's figures, in units that people read, and whether its spec is in force.

`objects.status_writes` decides when it is written.
"""

from __future__ import annotations

from typing import Final

from objects.conditions import READY, condition
from objects.status_writes import worth_writing
from slicekeeper.cli.output import brief, rounded
from slicekeeper.kube.client import Object
from slicekeeper.units import Instant, format_seconds, parse_instant
from slicekeeper.wire.timekeeper import Figures

_FIGURES: Final = ("amount", "toSpend", "used", "left", "runOut", "runOutAt", "boundBy")
_MINUTE: Final = 60_000


def status_of(obj: Object, found: Figures | None, problem: tuple[str, str] | None, now: Instant) -> Object | None:
    """Return the status to write, as a merge patch; None if the current one may stay.

    `found` is the timekeeper's budget, None if it has none; `problem` is the reason and the message if the spec is not
    in force.
    """
    generation = obj["metadata"]["generation"]
    shown: Object = dict.fromkeys(("state", *_FIGURES))
    if found is not None:
        shown = _figures(found)
    new = {**shown, "observedGeneration": generation, "conditions": [_ready(obj, problem, now)]}
    return worth_writing(obj, new, _FIGURES, now)


def _figures(found: Figures) -> Object:
    # To the minute, as in the column: the same pods must always give the same text.
    out = None if found.run_out_at is None else parse_instant(found.run_out_at) // _MINUTE * _MINUTE
    return {
        "state": found.state,
        "amount": rounded(found.amount_ms),
        "toSpend": rounded(found.to_spend_ms),
        "used": rounded(found.used_ms),
        "left": rounded(found.balance_ms),
        "runOut": None if out is None else brief(format_seconds(out)),
        "runOutAt": None if out is None else format_seconds(out),
        "boundBy": found.bound_by or None,
    }


def _ready(obj: Object, problem: tuple[str, str] | None, now: Instant) -> Object:
    reason, message = problem or ("Synced", "the timekeeper uses this spec")
    return condition(obj, READY, "False" if problem else "True", reason, message, now)
