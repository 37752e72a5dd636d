# SPDX-License-Identifier: Apache-2.0
"""A pod of the ledger, with its charges and its usage, in the form of the wire."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from slicekeeper import names
from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.units import Instant, format_if_known, format_instant
from slicekeeper.wire.timekeeper import Workload
from timekeeper.api.views.consistent_read import read_with_bookings
from timekeeper.core import usage_report
from timekeeper.core.usage_report import Watermark, total
from timekeeper.ledger.books import Books
from timekeeper.ledger.standing import BudgetStanding
from timekeeper.store import bookings, watermarks
from timekeeper.store.db.models import WorkloadRow
from timekeeper.store.workloads import holders_of


def workload_views(books: Books, rows: Sequence[tuple[WorkloadRow, str]], now: Instant) -> list[Workload]:
    """Return pods from the ledger; running ones with their totals up to now."""
    uids = [row.pod_uid for row, _ in rows]
    running = {name for row, name in rows if row.ended_at is None or row.ended_at > now - CLOCK_SKEW_MS}
    standings, (booked, marks) = read_with_bookings(
        books.database,
        lambda: {name: books.standing(name) for name in running},
        lambda session, _: (bookings.booked_by_pod(session, uids), watermarks.read(session, uids).marks),
    )
    return [_workload(row, name, booked[row.pod_uid], marks, standings.get(name), now) for row, name in rows]


class _Charges(NamedTuple):
    """A pod's charges in GPU-milliseconds, and whether it is over budget now; for one that has ended, whether ever."""

    charged: int
    over_budget: int
    is_over: bool


def _charges_so_far(uid: str, booked: bookings.PodCharges, standing: BudgetStanding | None, now: Instant) -> _Charges:
    """Return a pod's charges up to now: what is booked, what is due but not booked yet, and its current stretch."""
    claim = None if standing is None else standing.tree_standing.running.get(uid)
    if standing is None or claim is None:
        return _Charges(booked.charged, booked.over_budget, booked.over_budget > 0)
    states, due = standing.tree_standing.charges_due(now)
    state = states[standing.account.id]
    stretch = 0
    if claim.goes_on(state.at):  # from where the time line posted its time last
        stretch = claim.gross(max(now, state.at)) - claim.gross(max(state.cut, claim.start))
    is_over = state.over_budget
    return _Charges(
        booked.charged + due[uid, "charge"] + (0 if is_over else stretch),
        booked.over_budget + due[uid, "over-budget"] + (stretch if is_over else 0),
        is_over,
    )


def _workload(
    row: WorkloadRow,
    namespace: str,
    booked: bookings.PodCharges,
    marks: dict[tuple[str, str], dict[int, Watermark]],
    standing: BudgetStanding | None,
    now: Instant,
) -> Workload:
    charges = _charges_so_far(row.pod_uid, booked, standing, now)
    archived = row.archived_at is not None
    watermarks = [marks.get((row.pod_uid, container), {}) for container in holders_of(row.holders)]
    flags = [flag for flag in row.flags.split(",") if flag]
    if row.ended_at is not None and row.heard_at is None and not any(watermarks):
        flags.append("unobserved")
    return Workload(
        namespace=namespace,
        pod_name=row.pod_name,
        pod_uid=row.pod_uid,
        node=row.node,
        gpus=[uuid for uuid in row.gpus.split(",") if uuid],
        gpu_class=row.gpu_class,
        state="running" if row.ended_at is None else "closed",
        budget_state=names.OVER_BUDGET if charges.is_over else names.IN_BUDGET,
        start=format_instant(row.started_at),
        end=format_if_known(row.ended_at),
        charged_ms=charges.charged,
        over_budget_ms=charges.over_budget,
        used_ms=row.used_ms if archived else total(map(usage_report.used, watermarks)),
        peak_memory_mib=row.peak_memory_mib if archived else total(map(usage_report.peak_memory, watermarks)),
        flags=flags,
    )
