# SPDX-License-Identifier: Apache-2.0
"""Settle one stretch of the time line, and carry a late change over those in which it moves nothing but balances."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from sqlalchemy.orm import Session

from slicekeeper.units import EPOCH, Instant
from timekeeper.core import timeline
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Forest
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.hierarchy import Tree
from timekeeper.core.late_change import ChangedClaim, Stretch
from timekeeper.core.posting import Posting, difference
from timekeeper.ledger.books import Books
from timekeeper.ledger.checkpoint import instant_of, resume
from timekeeper.store import bookings, rates, seals, timelines

MOST_GPUS: Final = 1_000_000
"""More than a cluster has."""

States = dict[AccountId, BudgetState]
Interval = tuple[Instant, Instant | None]


@dataclass(frozen=True)
class LateChange:
    """What changed in the records: nothing before `since`, and after `until` only the intervals of `pods`.

    `pods` has the interval of each before the change; None: it had none.
    """

    since: Instant
    until: Instant
    pods: Mapping[str, Interval | None]


@dataclass
class Carried:
    """How far a change was carried: settling continues from `checkpoint`."""

    checkpoint: States
    replaced: list[States] = field(default_factory=list)
    """The checkpoints that replace those of before, up to `same_from`."""
    same_from: Instant | None = None
    """From when on all is as it was before the change."""


def book_difference(
    session: Session,
    postings: Mapping[AccountId, Sequence[Posting]],
    after: Instant | None,
    now: Instant,
    until: Instant | None = None,
) -> None:
    """Reverse and book, so that the ledger contains exactly these postings after an instant, up to another."""
    for key in sorted(postings):
        wrong, missing = difference(bookings.valid(session, key, after, until), postings[key])
        if wrong or missing:
            floor = seals.until(session, key)
            bookings.reverse(session, key, wrong, now, floor)
            bookings.book(session, key, missing, now, floor)


def carry(
    books: Books,
    session: Session,
    tree: Tree,
    checkpoint: States,
    old: Sequence[States],
    change: LateChange,
    now: Instant,
) -> Carried:
    """Settle a late change up to the last of the checkpoints that were made before it, `old`.

    Only stretches in which it may do more than move balances are computed again. `checkpoint` is before the change.
    """
    run = _Run(books, session, tree, checkpoint, change)
    found, first = Carried(checkpoint), checkpoint
    for last in old:
        states = run.carried(first, last, found.checkpoint) or run.settled(found.checkpoint, last, now)
        if states is None:
            break
        found.checkpoint, first = states, last
        if states == last and run.over(instant_of(last) or EPOCH):
            return Carried(old[-1], found.replaced, instant_of(last))
        found.replaced.append(states)
    return found


class _Run:
    """A change on its way along the time line."""

    def __init__(self, books: Books, session: Session, tree: Tree, checkpoint: States, change: LateChange) -> None:
        self._books = books
        self._session = session
        self._tree = tree
        self._until = change.until
        after = instant_of(checkpoint)
        bare = timelines.without_claims(session, tree.keys, after, carry=books.carry)
        self._forest = Forest(bare, tree.links)
        book = rates.read(session)
        self._margin = MOST_GPUS * -(-book.highest_of_all(EPOCH) // 1)
        self._changed = []
        for key, uid, start, end, shares in timelines.intervals(session, change.pods):
            was = change.pods[uid]
            before = None if was is None else book.claim(uid, *was, shares)
            if key in tree.keys:
                self._changed.append(ChangedClaim(key, before, book.claim(uid, start, end, shares)))
        self._ends: dict[tuple[AccountId, Instant], Instant] = {}

    def carried(self, first: States, last: States, states: States) -> States | None:
        """Return the states at the end of a stretch, if the change only moves balances in it."""
        if first.keys() != self._tree.keys or self._until > (instant_of(first) or EPOCH):
            return None
        return Stretch(self._forest, first, last, self._changed, self._runs_across, self._margin).carry(states)

    def settled(self, states: States, last: States, now: Instant) -> States | None:
        """Compute a stretch, make the ledger equal to it, and return the states at its end.

        None if a budget begins later than that.
        """
        after, until = instant_of(states), instant_of(last) or EPOCH
        later = Instant(until + 1)
        forest, start = resume(self._session, self._tree, states, later, carry=self._books.carry, until=until)
        if any(state.at > until for state in start.values()):
            return None
        outcome = timeline.advance(start, forest, until)
        book_difference(self._session, outcome.postings, after, now, until)
        return outcome.states

    def over(self, at: Instant) -> bool:
        """Return whether all records after an instant are those of before."""
        return self._until <= at and all(one.over_by(at) for one in self._changed)

    def _runs_across(self, key: AccountId, since: Instant, at: Instant) -> bool:
        """Ask the database once for each end of the posted time: stretches come in the order of time."""
        if (key, since) not in self._ends:
            self._ends[key, since] = timelines.last_end(self._session, key, since, at)
        return self._ends[key, since] > at
