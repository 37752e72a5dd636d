# SPDX-License-Identifier: Apache-2.0
"""Make the ledger equal to what follows from the records.

The one way to change the ledger is to append a record (a pod's interval, a budget rule, a grant) and to settle its
account in the same transaction: compute the time line from the last checkpoint before the change, compare with what is
booked, reverse and book the difference. So it does not matter in which order, how late or how often a record comes. Of
the time since a late record, only the stretches are computed in which it may do more than move balances.
What falls into a sealed period is booked as a correction in the open one (`timekeeper.ledger.seal`); the sums come to
the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Final

from sqlalchemy.orm import Session

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.units import EPOCH, GpuMilliseconds, Instant
from timekeeper.core import timeline
from timekeeper.core.account import AccountId
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.hierarchy import IN_FORCE, Tree
from timekeeper.ledger.books import Books
from timekeeper.ledger.checkpoint import instant_of, newest_checkpoint, resume
from timekeeper.ledger.stretch import Carried, Interval, LateChange, book_difference, carry
from timekeeper.store import accounts, bookings, hierarchy_links, movements, timelines, workloads

CHECKPOINT_EVERY: Final = 256
"""Boundaries of the time line (starts and ends of pods and allowances) between two checkpoints."""

CHECKPOINT_LAG_MS: Final = 600_000
"""Minimum age of a new checkpoint: a record that is less late than this invalidates none."""

CHECKPOINTS_KEPT: Final = 64
"""Number of newest checkpoints that a budget keeps all of; `timelines.keep_checkpoints` thins out older ones."""


def settle_in(
    books: Books,
    session: Session,
    budget: AccountId,
    since: Instant | None,
    now: Instant,
    pods: Mapping[str, Interval | None] | None = None,
) -> BudgetState:
    """Make the ledger equal to the records, and return the namespace's state then.

    `since` is the earliest instant at which the records changed; None: they have not. `pods` is as for `settle_all`.
    """
    return settle_all(books, session, {budget: since}, now, pods)[budget]


def settle_all(
    books: Books,
    session: Session,
    dirty: Mapping[AccountId, Instant | None],
    now: Instant,
    pods: Mapping[str, Interval | None] | None = None,
) -> dict[AccountId, BudgetState]:
    """Settle some namespaces, each with all that depend on it; those below the same root only once.

    If only intervals of pods have changed, `pods` has them as they were before (None: new), so that a late record costs
    little.
    """
    trees: dict[frozenset[AccountId], tuple[Tree, list[Instant]]] = {}
    for namespace in sorted(dirty):
        known = next((keys for keys in trees if namespace in keys), None)
        tree = hierarchy_links.tree(session, [namespace], IN_FORCE) if known is None else trees[known][0]
        since = dirty[namespace]
        trees.setdefault(tree.keys, (tree, []))[1].extend([] if since is None else [since])
    states: dict[AccountId, BudgetState] = {}
    for tree, instants in trees.values():
        change = None
        if instants:
            change = LateChange(min(instants), IN_FORCE if pods is None else EPOCH, pods or {})
        states |= _settle(books, session, tree, change, now)
    return states


def _settle(
    books: Books, session: Session, tree: Tree, change: LateChange | None, now: Instant
) -> dict[AccountId, BudgetState]:
    """Settle budgets that depend on each other.

    Refunds count up to their pod's charge. If the new charges change what a refund counts, that is a changed record
    too, and everything is settled again from there.
    """
    since = None if change is None else change.since
    if since is not None:
        # A link that ends at that instant has changed too: budgets that it affected have checkpoints that rely on it.
        tree = hierarchy_links.tree(session, tree.keys, Instant(since - 1))
    touched = tree.keys
    tree, checkpoint, until = _continued_from(session, tree, since, now)
    # Rows are locked from the top and in one order, so that two writers wait for each other without a deadlock.
    for root in tree.roots:
        accounts.bump_version(session, root)
    carried = Carried(checkpoint)
    if change is not None:
        if change.until < IN_FORCE:
            old = timelines.checkpoints_of_all(session, tree.keys, change.since, until)
            carried = carry(books, session, tree, checkpoint, old, change, now) if old else carried
        timelines.drop_checkpoints(session, touched, change.since, carried.same_from)
    forest, start = resume(session, tree, carried.checkpoint, until, carry=books.carry)
    outcome = timeline.advance(start, forest, until, every=CHECKPOINT_EVERY, settled=Instant(until - CHECKPOINT_LAG_MS))
    book_difference(session, outcome.postings, instant_of(carried.checkpoint), now)
    for key in sorted(tree.keys):
        checkpoints = [states[key] for states in (*carried.replaced, *outcome.checkpoints) if key in states]
        timelines.keep_checkpoints(session, key, checkpoints, CHECKPOINTS_KEPT)
    for root in tree.roots:
        accounts.mark_settled(session, root, until)
    refunds = [] if since is None else _limit_refunds(session, tree.keys, since)
    if not refunds:
        return outcome.states
    return _settle(books, session, tree, LateChange(min(refunds), max(refunds), {}), now)


def _continued_from(
    session: Session, tree: Tree, since: Instant | None, now: Instant
) -> tuple[Tree, dict[AccountId, BudgetState], Instant]:
    """Return the budgets to settle after a change, from which checkpoint, and up to when."""
    tree, checkpoint = newest_checkpoint(session, tree, since)
    # A replica whose clock is ahead of ours may have settled further: what it booked is not reversed.
    until = max(now, accounts.settled_until(session, tree.keys))
    if until > now + CLOCK_SKEW_MS:
        # No replica's clock is so far ahead. What is ahead of now is not due yet: it is reversed.
        until, ahead = now, Instant(now + 1)
        timelines.drop_checkpoints(session, tree.keys, ahead)
        accounts.limit_settled(session, tree.keys, now)
        tree, checkpoint = newest_checkpoint(session, tree, ahead if since is None else min(since, ahead))
    return tree, checkpoint, until


def _limit_refunds(session: Session, keys: Collection[AccountId], since: Instant) -> list[Instant]:
    """Limit refunds to what their pods are charged to the budget according to the current records.

    Of several, the first ones count. Only those that a change at `since` can affect are examined. Returns the instants
    at which a refund changed.
    """
    changed: list[Instant] = []
    found = movements.refunds(session, keys, since)
    charged = bookings.booked_by_pod(session, sorted(found)) if found else {}
    for pod, rows in found.items():
        left: int = charged[pod].charged
        for row in rows:
            beyond = max(row.amount_ms - left, 0)
            left = max(left - row.amount_ms, 0)
            if beyond != row.taken_back_ms:
                movements.take_back(session, row.id, GpuMilliseconds(beyond))
                changed.append(row.valid_from)
    return changed


def pin(books: Books, session: Session, budget: AccountId, at: Instant, now: Instant) -> None:
    """Settle a namespace, and keep its state at a past instant and those of all that depend on it.

    Settling can continue from there. What is due up to that instant must be booked first, because nothing before an
    checkpoint is examined again.
    """
    settle_in(books, session, budget, None, now)
    tree, checkpoint = newest_checkpoint(session, hierarchy_links.tree(session, [budget], at), at)
    forest, start = resume(session, tree, checkpoint, now, carry=books.carry)
    begun = [key for key, state in start.items() if state.at < at]
    if begun:
        states = timeline.advance(start, forest, at).states
        for key in begun:
            timelines.keep_checkpoints(session, key, [states[key]], CHECKPOINTS_KEPT)


def settle(books: Books, ids: Iterable[AccountId], now: Instant) -> None:
    """Book what has become due by the passing of time."""
    wanted = dict.fromkeys(ids)
    if wanted:
        books.database.write(lambda session: settle_all(books, session, wanted, now))


def reverse_future(books: Books, now: Instant) -> None:
    """Reverse ends of pods and settlements that are further ahead of now than clocks may differ.

    An older release, or a process with a wrong clock, may have written them.
    """
    latest = Instant(now + CLOCK_SKEW_MS)
    with books.database.reading() as session:
        if not workloads.ended_after(session, books.cluster, latest) and not accounts.settled_after(
            session, books.cluster, latest
        ):
            return

    def change(session: Session) -> None:
        dirty: dict[AccountId, Instant | None] = dict.fromkeys(accounts.settled_after(session, books.cluster, latest))
        for workload in workloads.ended_after(session, books.cluster, latest):
            account = accounts.by_id(session, [workload.namespace_id])[workload.namespace_id]
            detail = {"podUid": workload.pod_uid, "toldMs": workload.ended_at, "endMs": latest}
            books.audit(session, actor="timekeeper", action="end-held", about=account, detail=detail, now=now)
            workloads.limit_end(session, workload, latest)
            dirty[workload.namespace_id] = latest
        settle_all(books, session, dirty, now)

    books.database.write(change)
