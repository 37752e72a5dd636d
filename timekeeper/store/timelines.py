# SPDX-License-Identifier: Apache-2.0
"""The records of a budget's time line, and its checkpoints: states from which it can be continued."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from typing import Final

import msgspec
from sqlalchemy import Select, delete, func, insert, or_, select
from sqlalchemy.orm import Session

from slicekeeper import typed_json
from slicekeeper.units import EPOCH, MS_PER_DAY, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_record import Debt, GrantRecord, Records, Withdrawal
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.hierarchy import IN_FORCE
from timekeeper.core.posting import PostingKind
from timekeeper.store import debts, hierarchy_links, rates
from timekeeper.store.budget_rules import ruling_of_each
from timekeeper.store.db.chunks import chunks
from timekeeper.store.db.models import BudgetGrant, BudgetRule, Checkpoint, Membership, Namespace, WorkloadRow

_STRETCH: Final = 10_000
"""Minimum number of pods that begin in a stretch."""

_KIND_IN: Final[dict[str, PostingKind]] = {
    "grant": "allowance",
    "refund": "refund",
    "adjustment": "allowance",
    "transfer": "transfer-in",
}
"""The kind of posting for each kind of movement into a budget; `_KIND_OUT` is for movements out of one."""

_KIND_OUT: Final[dict[str, PostingKind]] = {"adjustment": "withdrawal", "transfer": "transfer-out"}

_DAYS: Final = 40
"""One checkpoint a day is kept for this many days, then one a month (30 days)."""


def records(
    session: Session, keys: Collection[AccountId], after: Instant | None, *, carry: bool, until: Instant | None = None
) -> dict[AccountId, Records]:
    """Return the records of some budgets after an instant (None: all), with the pods that began up to another one.

    The budgets belong to one cluster. `carry` is whether time over budget is owed if the ledger has no rule for it.
    """
    # `+ 0` keeps databases from using the index of the start, which would read all earlier pods.
    begun = WorkloadRow.started_at + 0
    query = _claims(keys).order_by(begun, WorkloadRow.pod_uid)
    if after is not None:
        query = query.where(or_(WorkloadRow.ended_at.is_(None), WorkloadRow.ended_at > after))
    if until is not None:
        query = query.where(begun <= until)
    found = without_claims(session, keys, after, carry=carry)
    book = rates.read(session)
    pods: dict[AccountId, list[Claim]] = {key: [] for key in keys}
    for key, pod, start, end, shares in session.execute(query):
        pods[key].append(book.claim(pod, start, end, shares))
    return {key: replace(mine, claims=pods[key]) for key, mine in found.items()}


def stretches(
    session: Session, keys: Collection[AccountId], *, carry: bool
) -> Iterator[tuple[Instant | None, dict[AccountId, Records]]]:
    """Yield all records of some budgets, one stretch of time after the other, each with its end (None for the last).

    A stretch contains the pods that run in it, so they are never all in memory. `carry` is as for `records`.
    """
    found = without_claims(session, keys, None, carry=carry)
    book = rates.read(session)
    pods: dict[AccountId, list[Claim]] = {key: [] for key in keys}
    count, last = 0, EPOCH
    for key, pod, start, end, shares in session.execute(
        _claims(keys).order_by(WorkloadRow.started_at, WorkloadRow.pod_uid).execution_options(yield_per=1000)
    ):
        if count >= _STRETCH and start > last:
            yield last, {one: replace(mine, claims=pods[one]) for one, mine in found.items()}
            pods = {one: [c for c in mine if c.end is None or c.end > last] for one, mine in pods.items()}
            count = 0
        pods[key].append(book.claim(pod, start, end, shares))
        count, last = count + 1, start
    yield None, {one: replace(mine, claims=pods[one]) for one, mine in found.items()}


def first_starts(session: Session, keys: Collection[AccountId]) -> dict[AccountId, Instant]:
    """Return when each budget's first pod began, for budgets that had any."""
    found = {key: first_start(session, key) for key in keys}
    return {key: at for key, at in found.items() if at is not None}


def first_start(session: Session, key: AccountId) -> Instant | None:
    """Return when a budget's first pod began. An index answers this for one budget, but not for a group."""
    return session.execute(select(func.min(WorkloadRow.started_at)).where(WorkloadRow.namespace_id == key)).scalar()


def last_end(session: Session, key: AccountId, since: Instant, after: Instant) -> Instant:
    """Return when the last of the pods ends that began before an instant and run after another; 0 if there are none."""
    query = select(func.max(func.coalesce(WorkloadRow.ended_at, IN_FORCE))).where(
        WorkloadRow.namespace_id == key,
        WorkloadRow.started_at < since,
        or_(WorkloadRow.ended_at.is_(None), WorkloadRow.ended_at > after),
    )
    return session.execute(query).scalar() or EPOCH


def intervals(session: Session, uids: Collection[str]) -> Iterator[tuple[AccountId, str, Instant, Instant | None, str]]:
    """Yield pods' budgets, UIDs, starts, ends and shares."""
    for chunk in chunks(uids):
        query = select(
            WorkloadRow.namespace_id,
            WorkloadRow.pod_uid,
            WorkloadRow.started_at,
            WorkloadRow.ended_at,
            WorkloadRow.shares,
        )
        yield from session.execute(query.where(WorkloadRow.pod_uid.in_(chunk)))


def _claims(keys: Collection[AccountId]) -> Select[AccountId, str, Instant, Instant | None, str]:
    query = select(
        WorkloadRow.namespace_id, WorkloadRow.pod_uid, WorkloadRow.started_at, WorkloadRow.ended_at, WorkloadRow.shares
    )
    return query.where(WorkloadRow.namespace_id.in_(keys))


def without_claims(
    session: Session, keys: Collection[AccountId], after: Instant | None, *, carry: bool
) -> dict[AccountId, Records]:
    """Return the records of budgets without their pods; grants and withdrawals only after an instant (None: all)."""
    moved = select(BudgetGrant).where(BudgetGrant.namespace_id.in_(keys), BudgetGrant.withdrawn_at.is_(None))
    if after is not None:
        moved = moved.where(BudgetGrant.valid_from > after)
    ruled = select(BudgetRule).where(BudgetRule.namespace_id.in_(keys))
    rules = ruling_of_each(session.scalars(ruled.order_by(BudgetRule.id)))
    grants: dict[AccountId, list[GrantRecord]] = {key: [] for key in keys}
    withdrawals: dict[AccountId, list[Withdrawal]] = {key: [] for key in keys}
    for row in session.scalars(moved.order_by(BudgetGrant.valid_from, BudgetGrant.id)):
        name, amount = f"{row.kind}:{row.id}", GpuMilliseconds(row.amount_ms - row.taken_back_ms)
        if not amount:
            continue
        if amount > 0:
            grant = GrantRecord(name, amount, row.valid_from, row.valid_to, _KIND_IN[row.kind], row.priority, row.id)
            grants[row.namespace_id].append(grant)
        else:
            withdrawals[row.namespace_id].append(
                Withdrawal(name, GpuMilliseconds(-amount), row.valid_from, _KIND_OUT[row.kind], row.id)
            )
    owed = debts.of_budgets(session, keys) or [Debt(EPOCH, carry)]
    opened = _openings(session, keys)
    return {
        key: Records([], [row.rule for row in rules[key]], grants[key], withdrawals[key], owed, opened.get(key))
        for key in keys
    }


def _openings(session: Session, keys: Collection[AccountId]) -> dict[AccountId, Instant]:
    """Return when budgets' accounts were opened."""
    query = select(Namespace.id, Namespace.opened_at).where(Namespace.id.in_(keys))
    return {row.id: row.opened_at for row in session.execute(query)}


def holders_since(session: Session, since: Instant) -> list[AccountId]:
    """Return the namespaces that have a pod which held GPUs at an instant or later."""
    query = select(WorkloadRow.namespace_id).where(or_(WorkloadRow.ended_at.is_(None), WorkloadRow.ended_at > since))
    return sorted(session.scalars(query.distinct()))


def checkpoint_before(
    session: Session, keys: Collection[AccountId], at: Instant | None
) -> dict[AccountId, BudgetState]:
    """Return the latest states of one instant before another (None: the latest of all); empty if there are none.

    A budget without one there begins later, with all its records.
    """
    query = select(Checkpoint.at, func.count()).where(Checkpoint.namespace_id.in_(keys))
    if at is not None:
        query = query.where(Checkpoint.at < at)
    # Usually the newest checkpoint has all budgets. If it lacks some, it matters whether these had begun by then, and
    # that takes several statements to find out.
    births: dict[AccountId, Instant] | None = None
    for found, count in session.execute(query.group_by(Checkpoint.at).order_by(Checkpoint.at.desc())).all():
        if count < len(keys):
            births = _births(session, keys) if births is None else births
            if count < sum(born <= found for born in births.values()):
                continue
        rows = select(Checkpoint.namespace_id, Checkpoint.state).where(
            Checkpoint.namespace_id.in_(keys), Checkpoint.at == found
        )
        states = {key: typed_json.decode(text, BudgetState) for key, text in session.execute(rows)}
        if births is None or all(born > found for key, born in births.items() if key not in states):
            return states
    return {}


def _births(session: Session, keys: Collection[AccountId]) -> dict[AccountId, Instant]:
    """Return when budgets begin: at their openings, or just before their first records and links."""
    first = select(func.min(BudgetRule.id)).where(BudgetRule.namespace_id.in_(keys)).group_by(BudgetRule.namespace_id)
    found = {key: Instant(start - 1) for key, start in first_starts(session, keys).items()}
    for column, instant, counts in (
        (
            BudgetGrant.namespace_id,
            BudgetGrant.valid_from,
            BudgetGrant.namespace_id.in_(keys) & BudgetGrant.withdrawn_at.is_(None),
        ),
        (Membership.child_id, Membership.effective_at, Membership.child_id.in_(keys) & hierarchy_links.APPLIES),
        (Membership.parent_id, Membership.effective_at, Membership.parent_id.in_(keys) & hierarchy_links.APPLIES),
        (
            BudgetRule.namespace_id,
            BudgetRule.effective_at,
            BudgetRule.namespace_id.in_(keys) & BudgetRule.id.not_in(first),
        ),
    ):
        for key, since in session.execute(select(column, func.min(instant)).where(counts).group_by(column)):
            if key is not None:
                born = Instant(since - 1)
                found[key] = min(born, found.get(key, born))
    for key, opened in _openings(session, keys).items():
        found[key] = min(opened, found.get(key, opened))
    return found


def checkpoints(session: Session, budget: AccountId) -> list[BudgetState]:
    """Return a namespace's checkpoints, oldest first."""
    query = select(Checkpoint.state).where(Checkpoint.namespace_id == budget).order_by(Checkpoint.at)
    return [typed_json.decode(text, BudgetState) for text in session.scalars(query)]


def checkpoints_of_all(
    session: Session, keys: Collection[AccountId], since: Instant, until: Instant
) -> list[dict[AccountId, BudgetState]]:
    """Return the checkpoints that all of some budgets have, from an instant up to another, oldest first."""
    found: dict[Instant, dict[AccountId, BudgetState]] = {}
    query = select(Checkpoint.namespace_id, Checkpoint.state).where(
        Checkpoint.namespace_id.in_(keys), Checkpoint.at >= since, Checkpoint.at <= until
    )
    for key, text in session.execute(query):
        state = typed_json.decode(text, BudgetState)
        found.setdefault(state.at, {})[key] = state
    return [found[at] for at in sorted(found) if len(found[at]) == len(keys)]


def drop_checkpoints(
    session: Session, keys: Collection[AccountId], since: Instant, before: Instant | None = None
) -> None:
    """Delete the checkpoints from an instant on (up to before another), because a record there has changed."""
    gone = delete(Checkpoint).where(Checkpoint.namespace_id.in_(keys), Checkpoint.at >= since)
    session.execute(gone if before is None else gone.where(Checkpoint.at < before))


def keep_checkpoints(session: Session, budget: AccountId, states: list[BudgetState], most: int) -> None:
    """Keep new checkpoints, the newest `most` of all, and of older ones the first of each day, then of each month.

    So a late record is settled from shortly before its instant, and not from the start.
    """
    if not states:
        return
    instants = [state.at for state in states]
    session.execute(delete(Checkpoint).where(Checkpoint.namespace_id == budget, Checkpoint.at.in_(instants)))
    session.execute(
        insert(Checkpoint),
        [{"namespace_id": budget, "at": s.at, "state": msgspec.json.encode(s).decode()} for s in states],
    )
    kept = select(Checkpoint.at).where(Checkpoint.namespace_id == budget).order_by(Checkpoint.at)
    gone = _superfluous(session.scalars(kept).all(), most)
    if gone:
        session.execute(delete(Checkpoint).where(Checkpoint.namespace_id == budget, Checkpoint.at.in_(gone)))


def _superfluous(instants: Sequence[Instant], most: int) -> list[Instant]:
    """Return the checkpoints to delete, out of all in the order of time."""
    gone: list[Instant] = []
    before = None
    for at in instants[: max(len(instants) - most, 0)]:
        day = at // MS_PER_DAY
        month = -(day // 30)  # negative, so that no month is mistaken for a day
        slot = day if day > instants[-1] // MS_PER_DAY - _DAYS else month
        if slot == before:
            gone.append(at)
        before = slot
    return gone
