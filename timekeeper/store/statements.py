# SPDX-License-Identifier: Apache-2.0
"""Sums over the ledger by time, computed by the database, however many bookings there are.

A booking belongs to the period of its effective instant. At the instant at which one period ends and the next begins,
charges and expiries belong to the earlier one, and everything else to the later one.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

from sqlalchemy import CTE, BigInteger, ColumnElement, Integer, and_, case, column, func, literal, or_, select, values
from sqlalchemy.orm import Session, aliased

from slicekeeper.units import NO_TIME, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.posting import BY_SUBJECT, EntryName, PostingKind, effect
from timekeeper.store import interval_corrections, seals, timelines
from timekeeper.store.db.models import BudgetGrant, IntervalCorrectionRow, Namespace, Transaction, WorkloadRow

_ENDS = ("charge", "over-budget", "expiry")
"""Bookings at the end of what they are for: those at the instant between two periods belong to the earlier one."""

_undone = aliased(Transaction)
_kind: ColumnElement[str] = func.coalesce(_undone.kind, Transaction.kind)
"""The kind of a booking, or of the one that it reverses."""

_name: ColumnElement[str] = case(
    *(
        (and_(_kind == kind, Transaction.subject.startswith(f"{word}:")), literal(name))
        for (kind, word), name in BY_SUBJECT.items()
    ),
    else_=_kind,
)
"""What it is called, as by `posting.entry_name`."""

_LONG = 10_000
"""An interval with more bookings than this is read pod by pod."""


@dataclass(frozen=True)
class Total:
    """The bookings of one name: how many, and GPU-milliseconds less what was reversed."""

    kind: PostingKind
    name: EntryName
    correction: bool
    count: int
    amount: GpuMilliseconds


@dataclass(frozen=True)
class Charged:
    """What a pod was charged in an interval; `corrections` is the part of both that concerns sealed periods."""

    pod_uid: str
    pod_name: str
    charged: GpuMilliseconds
    over_budget: GpuMilliseconds
    corrections: GpuMilliseconds
    corrected: bool
    """Whether its interval was corrected by hand."""


def totals(session: Session, budget: AccountId, spans: Sequence[tuple[Instant, Instant]]) -> list[list[Total]]:
    """Return the totals of each of some half-open intervals."""
    found: list[list[Total]] = [[] for _ in spans]
    if not spans:
        return found
    span = span_table(spans)
    corrects = Transaction.corrects_at.is_not(None)
    query = (
        select(span.c.index, _kind, _name.label("entry_name"), corrects, func.count(), func.sum(Transaction.amount_ms))
        .select_from(span)
        .join(Transaction, _within(span.c.start, span.c.until))
        .outerjoin(_undone, _undone.id == Transaction.reverses)
        .where(Transaction.namespace_id == budget, _inside(span.c.start, span.c.until))
        .group_by(span.c.index, _kind, "entry_name", corrects)
        .order_by(span.c.index, _kind, "entry_name", corrects)
    )
    for index, kind, name, correction, count, amount in session.execute(query):
        total = GpuMilliseconds(int(amount))
        found[index].append(Total(cast(PostingKind, kind), cast(EntryName, name), bool(correction), count, total))
    return found


def span_table(spans: Sequence[tuple[Instant, Instant]]) -> CTE:
    """Return half-open intervals as a table with the columns `index`, `start` and `until`."""
    rows = [(index, start, end) for index, (start, end) in enumerate(spans)]
    columns = (column("index", Integer), column("start", BigInteger), column("until", BigInteger))
    return values(*columns).data(rows).cte("span")  # SQLite names the columns of VALUES only in a CTE


def _within(start: Any, end: Any) -> ColumnElement[bool]:
    """Return the condition that an index can answer; `_inside` excludes bookings at the two ends."""
    return and_(Transaction.effective_at >= start, Transaction.effective_at <= end)


def _inside(start: Any, end: Any) -> ColumnElement[bool]:
    """Return the condition that a booking belongs to an interval: to (start, end] if it is one of `_ENDS`."""
    ends = _kind.in_(_ENDS)
    return or_(and_(ends, Transaction.effective_at > start), and_(~ends, Transaction.effective_at < end))


def opening(session: Session, budget: AccountId, at: Instant) -> GpuMilliseconds:
    """Return a budget's booked balance at the beginning of an interval, after everything that ends at that instant."""
    sealed, sums = seals.latest(session, budget, at)
    balance: int = sums.get("budget", NO_TIME)
    query = (
        select(_kind, func.sum(Transaction.amount_ms))
        .outerjoin(_undone, _undone.id == Transaction.reverses)
        .where(Transaction.namespace_id == budget)
        .group_by(_kind)
    )
    since = query.where(Transaction.effective_at > sealed, Transaction.effective_at <= at)
    begins = query.where(Transaction.effective_at == at, _kind.not_in(_ENDS))
    for rows, sign in ((since, 1), (begins, -1)):
        for kind, amount in session.execute(rows):
            balance += sign * effect(cast(PostingKind, kind), GpuMilliseconds(int(amount)))
    return GpuMilliseconds(balance)


def charged(
    session: Session, budget: AccountId, start: Instant, end: Instant, *, after: str = "", limit: int | None = None
) -> Iterator[Charged]:
    """Yield what pods were charged in an interval, in the order of their UIDs, beginning after a UID."""
    over = case((_kind == "over-budget", Transaction.amount_ms), else_=0)
    # A planner cannot know how many pods fill a page. A long interval is read pod by pod until the page is full, a
    # short one as a whole, however long the history is. Adding something to a column prevents the use of its index.
    if _is_long(session, budget, start, end):
        instant, subject = Transaction.effective_at + 0, Transaction.subject.expression
    else:
        instant, subject = Transaction.effective_at.expression, Transaction.subject + ""
    query = (
        select(
            Transaction.subject,
            func.max(WorkloadRow.pod_name),
            func.sum(Transaction.amount_ms),
            func.sum(over),
            func.sum(case((Transaction.corrects_at.is_not(None), Transaction.amount_ms), else_=0)),
            select(IntervalCorrectionRow.id)
            .where(IntervalCorrectionRow.pod_uid == Transaction.subject, interval_corrections.CHANGED)
            .exists(),
        )
        .outerjoin(_undone, _undone.id == Transaction.reverses)
        .outerjoin(WorkloadRow, WorkloadRow.pod_uid == Transaction.subject)
        .where(
            Transaction.namespace_id == budget,
            instant >= start,
            instant <= end,
            _inside(start, end),
            _kind.in_(("charge", "over-budget")),
            subject > after,
        )
        .group_by(Transaction.subject)
        .order_by(Transaction.subject)
        .limit(limit)
        .execution_options(yield_per=1000)
    )
    for uid, name, total, beyond, corrections, corrected in session.execute(query):
        within, over_budget = GpuMilliseconds(int(total) - int(beyond)), GpuMilliseconds(int(beyond))
        yield Charged(uid, name or "", within, over_budget, GpuMilliseconds(int(corrections)), bool(corrected))


def _is_long(session: Session, budget: AccountId, start: Instant, end: Instant) -> bool:
    """Return whether an interval has so many bookings that a page is a small part of them."""
    query = select(Transaction.effective_at).where(Transaction.namespace_id == budget, _within(start, end))
    return session.execute(query.order_by(Transaction.effective_at).offset(_LONG).limit(1)).first() is not None


def begun(session: Session, budget: AccountId, subjects: Collection[str]) -> list[tuple[Instant, GpuMilliseconds]]:
    """Return the allowances booked under some periods' names: when the first pod drew on each, and its amount.

    Without corrections, which are in later periods: what a sealed period began with does not change.
    """
    total = func.sum(Transaction.amount_ms)
    query = (
        select(Transaction.started_at, total)
        .outerjoin(_undone, _undone.id == Transaction.reverses)
        .where(Transaction.namespace_id == budget, Transaction.subject.in_(subjects), _kind == "allowance")
        .where(Transaction.corrects_at.is_(None))
        .group_by(Transaction.started_at)
        .having(total != 0)
    )
    return [(at, GpuMilliseconds(int(amount))) for at, amount in session.execute(query)]


def first_instant(session: Session, budget: AccountId) -> Instant:
    """Return the instant before which a namespace has no record."""
    opened = session.execute(select(Namespace.opened_at).where(Namespace.id == budget)).scalar_one()
    moved = session.execute(select(func.min(BudgetGrant.valid_from)).where(BudgetGrant.namespace_id == budget))
    return min(at for at in (opened, moved.scalar(), timelines.first_start(session, budget)) if at is not None)
