# SPDX-License-Identifier: Apache-2.0
"""The status of an object: its budget's figures, in units that people read, and whether its spec is in force.

It is written when what people see has changed, and the figures alone at most twice a minute: a status that
changes all the time wakes every watcher.
"""

from __future__ import annotations

from typing import Final

from objects.conditions import READY, condition
from objects.status_writes import written_at
from slicekeeper.cli.output import brief, rounded
from slicekeeper.kube.client import Object
from slicekeeper.units import Instant, format_seconds, parse_instant
from slicekeeper.untyped import as_map
from slicekeeper.wire.timekeeper import Figures

FIGURES_MS: Final = 30_000
"""The shortest time between two writes of figures alone."""

_MINUTE: Final = 60_000


def status_of(obj: Object, found: Figures | None, problem: tuple[str, str] | None, now: Instant) -> Object | None:
    """Return the status to write, as a merge patch; None if the current one may stay.

    `found` is the timekeeper's budget, None if it has none; `problem` is the reason and the message if the spec is not
    in force.
    """
    old = as_map(obj.get("status"))
    generation = obj["metadata"]["generation"]
    shown: Object = dict.fromkeys(("state", "amount", "used", "left", "runOut", "runOutAt", "boundBy"))
    if found is not None:
        shown = _figures(found)
    new = {**shown, "observedGeneration": generation, "conditions": [_ready(obj, problem, now)]}
    same = {key: old.get(key) == value for key, value in new.items()}
    if all(same.values()):
        return None
    only_figures = same["observedGeneration"] and same["conditions"] and same["state"]
    if only_figures and now - written_at(obj) < FIGURES_MS:
        return None
    return {**new, "asOf": format_seconds(now)}


def _figures(found: Figures) -> Object:
    # To the minute, as in the column: the same pods must always give the same text.
    out = None if found.run_out_at is None else parse_instant(found.run_out_at) // _MINUTE * _MINUTE
    return {
        "state": found.state,
        "amount": rounded(found.amount_ms),
        "used": rounded(found.used_ms),
        "left": rounded(found.balance_ms),
        "runOut": None if out is None else brief(format_seconds(out)),
        "runOutAt": None if out is None else format_seconds(out),
        "boundBy": found.bound_by or None,
    }


def _ready(obj: Object, problem: tuple[str, str] | None, now: Instant) -> Object:
    reason, message = problem or ("Synced", "the timekeeper uses this spec")
    return condition(obj, READY, "False" if problem else "True", reason, message, now)
