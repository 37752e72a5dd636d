# SPDX-License-Identifier: Apache-2.0
"""What the books hold, as the wire shows it: decisions, budgets, workloads, usage."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from msgspec.structs import asdict

from slicekeeper import names
from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.namespace_policy import NamespacePolicy
from slicekeeper.settings import Settings
from slicekeeper.units import format_instant
from slicekeeper.wire.timekeeper import Budget, Decision, Figures, Parent, State, Workload
from timekeeper.core import threshold, timeline, usage
from timekeeper.core.budget import State as Standing
from timekeeper.core.budget import rule_at
from timekeeper.core.period import bounds
from timekeeper.core.record import Records
from timekeeper.ledger.books import Books, Position, policy_rule
from timekeeper.store import bookings, watermarks
from timekeeper.store.accounts import Known
from timekeeper.store.db.models import Workload as Row
from timekeeper.store.workloads import holders_of

TRIES = 5
"""Looks at pods and their namespaces until nothing was settled meanwhile."""

STALE_MS = 60_000
"""How long a decision may be believed after `asOf`."""


def standing(position: Position | None, policy: NamespacePolicy, now: int) -> Standing:
    """Return a namespace's state; one without an account stands at the beginning of its policy's budget."""
    if position is not None:
        return position.at(now)
    return timeline.begin(Records([], [policy_rule(policy.budget, 0)]), now)


def state_name(position: Position | None, state: Standing, policy: NamespacePolicy) -> State:
    """Return the state's name on the wire."""
    if position is not None and position.rule.status != "active":
        return "suspended"
    if position is not None and state.barred is not None:
        above = rule_at(position.together.forest.records[state.barred].rules, state.at)
        return "exhausted" if above.open else "suspended"
    if state.over_budget:
        return "exhausted"
    if state.balance <= 0:
        return "overdraft"
    percent = min(policy.budget.thresholds, default=0)
    limit = state.period.amount + state.granted
    return "warning" if percent and state.used * 100 >= limit * percent else "ok"


def decision(position: Position, policy: NamespacePolicy, settings: Settings, now: int, reserved: int) -> Decision:
    """Return what a namespace may do now; `reserved` is what it has set aside."""
    state = position.at(now)
    run_out = position.run_out(now)
    name = state_name(position, state, policy)
    if state.over_budget and not policy.reserves:
        chosen = policy.over_budget_class or settings.classes.over_budget.name
    else:
        chosen = policy.in_budget_class or settings.classes.in_budget.name
    bound, binding = position.binding(now)
    return Decision(
        namespace=position.known.name,
        state=name,
        balance_ms=binding.balance,
        used_ms=state.used,
        over_budget_ms=state.over,
        reserved_ms=reserved,
        enforcement=policy.budget.enforcement,
        priority_class_name=chosen,
        as_of=format_instant(now),
        since=format_instant(state.since),
        stale_after=format_instant(now + STALE_MS),
        run_out_at=None if run_out is None else format_instant(run_out),
        reason=_reason(name, position, state, policy, bound),
        bound_by=bound.name if bound != position.known else "",
    )


def _reason(name: State, position: Position, state: Standing, policy: NamespacePolicy, bound: Known) -> str:
    since = format_instant(state.since)
    if state.barred is not None and name == "suspended" and position.rule.status == "active":
        return f"the budget of {bound.title} is not active since {since}"
    if state.barred is not None and name == "exhausted":
        return f"nothing is left of the budget of {bound.title} since {since}"
    if name == "suspended":
        return f"the budget is {position.rule.status} since {since}"
    if name == "exhausted":
        return f"nothing is left of the budget since {since}"
    if name == "overdraft":
        return f"the budget is used up; {position.rule.rule.credit + state.balance} GPU-ms of credit are left"
    if name == "warning":
        found = threshold.crossed(state, policy.budget.thresholds, is_open=True)
        return f"more than {max(found, default=0)} % of the budget are used"
    return ""


def decisions_tag(decisions: Sequence[Decision]) -> str:
    """Return the entity tag of decisions: it changes when one is decided otherwise, not with each millisecond spent."""
    digest = hashlib.sha256()
    for one in decisions:
        parts = (
            one.namespace, one.state, one.since, one.priority_class_name, one.enforcement, one.run_out_at or "",
            one.bound_by,
        )  # fmt: skip
        digest.update("\0".join(parts).encode() + b"\n")
    return f'W/"{digest.hexdigest()[:32]}"'


def budget(
    name: str, position: Position | None, policy: NamespacePolicy, now: int, reserved: int, *, uid: str, gone: bool
) -> Budget:
    """Return a namespace's budget as it stands; `reserved` is what it has set aside, `gone` whether it was deleted."""
    return Budget(
        uid=uid,
        gone=gone,
        namespace=name,
        source="own" if position and position.rule.source == "own" else "policy",
        enforcement=policy.budget.enforcement,
        **_figures(position, policy, now, reserved),
    )


def parent(position: Position, now: int, reserved: int) -> Parent:
    """Return a team's or an organisation's budget as it stands; `reserved` is what is set aside below it."""
    known = position.known
    return Parent(
        name=known.name,
        kind="team" if known.kind == "team" else "organisation",
        **_figures(position, NamespacePolicy(), now, reserved),
    )


def _figures(position: Position | None, policy: NamespacePolicy, now: int, reserved: int) -> dict[str, Any]:
    state = standing(position, policy, now)
    rule = position.rule.rule if position else policy_rule(policy.budget, 0)
    around = bounds(now, *rule.calendar)
    run_out = position.run_out(now) if position else None
    bound = position.binding(now)[0] if position else None
    figures = Figures(
        amount_ms=rule.amount,
        period=rule.period,
        time_zone=rule.zone,
        anchor=None if rule.anchor is None else format_instant(rule.anchor),
        balance_ms=state.balance,
        used_ms=state.used,
        over_budget_ms=state.over,
        granted_ms=state.granted,
        state=state_name(position, state, policy),
        period_start=None if around is None else format_instant(around[0]),
        period_end=None if around is None else format_instant(around[1]),
        run_out_at=None if run_out is None else format_instant(run_out),
        credit_ms=rule.credit,
        rollover_ms=rule.rollover,
        status=position.rule.status if position else "active",
        reserved_ms=reserved,
        parent=position.above[0].name if position and position.above else None,
        bound_by="" if position is None or bound is None or bound == position.known else bound.name,
    )
    return asdict(figures)


def workload_views(books: Books, rows: Sequence[tuple[Row, str]], now: int) -> list[Workload]:
    """Return pods as the ledger has them; running ones with what they have come to by now."""
    uids = [row.pod_uid for row, _ in rows]
    running = {name for row, name in rows if row.ended_at is None or row.ended_at > now - CLOCK_SKEW_MS}
    positions = {name: books.position(name) for name in running}
    for _ in range(TRIES):  # what is settled between the two looks would be counted as booked and as due
        with books.database.reading() as session:
            booked = bookings.booked_by_pod(session, uids)
            marks = watermarks.read(session, uids).marks
        before, positions = positions, {name: books.position(name) for name in running}
        if positions == before:
            break
    return [_workload(row, name, booked, marks, positions.get(name), now) for row, name in rows]


def _workload(
    row: Row,
    namespace: str,
    booked: dict[str, tuple[int, int]],
    marks: dict[tuple[str, str], dict[int, usage.Watermark]],
    position: Position | None,
    now: int,
) -> Workload:
    charged, over = booked.get(row.pod_uid, (0, 0))
    exhausted = over > 0
    claim = None if position is None else position.together.running.get(row.pod_uid)
    if position is not None and claim is not None:
        states, due = position.together.charges_due(now)
        state = states[position.known.id]
        running = 0
        if claim.goes_on(state.at):
            running = claim.gross(max(now, state.at)) - claim.gross(max(state.cut, claim.start))
        exhausted = state.over_budget
        charged, over = charged + due[row.pod_uid, "charge"], over + due[row.pod_uid, "over-budget"]
        charged, over = (charged, over + running) if exhausted else (charged + running, over)
    used = [usage.used(marks.get((row.pod_uid, container), {})) for container in holders_of(row.holders)]
    known = [ms for ms in used if ms is not None]
    if row.used_ms is not None:  # archived
        known = [row.used_ms]
    flags = [flag for flag in row.flags.split(",") if flag]
    if (
        row.ended_at is not None
        and row.heard_at is None
        and all((row.pod_uid, container) not in marks for container in holders_of(row.holders))
    ):
        flags.append("unobserved")
    return Workload(
        namespace=namespace,
        pod_name=row.pod_name,
        pod_uid=row.pod_uid,
        node=row.node,
        gpus=[uuid for uuid in row.gpus.split(",") if uuid],
        gpu_class=row.gpu_class,
        state="running" if row.ended_at is None else "closed",
        budget_state=names.OVER_BUDGET if exhausted else names.IN_BUDGET,
        start=format_instant(row.started_at),
        end=None if row.ended_at is None else format_instant(row.ended_at),
        charged_ms=charged,
        over_budget_ms=over,
        used_ms=sum(known) if known else None,
        flags=flags,
    )
