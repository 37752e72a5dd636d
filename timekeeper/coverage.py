# SPDX-License-Identifier: Apache-2.0
"""Whether what is set aside stays covered until its end. `gap` is pure; the others read what it needs.

That enough is free now does not say that it is there later: what a grant or a period brought may expire before a pod
has used it. So the time line of those who have time set aside is followed to their ends, as if a pod that is not bound
yet were bound now, and nobody else drew on the budgets. Wherever an allowance comes or goes, what is left then must
cover what is set aside then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from sqlalchemy.orm import Session

from timekeeper import timeline
from timekeeper.allowances import State, rule_at
from timekeeper.books import Books
from timekeeper.records import Aside, Claim, Forest
from timekeeper.store import memberships, namespaces
from timekeeper.store import reservations as store
from timekeeper.store.memberships import IN_FORCE, Tree

_MOST_TURNS: Final = 200
"""Allowances that come or go and are looked at: after so many hourly budgets nothing new is to be expected."""


@dataclass(frozen=True)
class Gap:
    """Where, from when on and by how much what is set aside is not covered."""

    budget: int
    at: int
    amount: int


def gap(
    states: Mapping[int, State], forest: Forest, asides: Sequence[Aside], budgets: Collection[int], now: int
) -> Gap | None:
    """Return where what is set aside in some budgets and below them stops being covered; None: not before its end."""
    claims: dict[int, list[Claim]] = {}
    for one in asides:
        if one.claim is not None:
            claims.setdefault(one.budget, []).append(one.claim)
    kept = Forest(
        {key: replace(forest.records[key], claims=claims.get(key, []), debts=()) for key in states}, forest.links
    )
    below = {
        key: [one for one in asides if key in timeline.chain(forest.links, one.budget, now)] for key in sorted(budgets)
    }
    for _ in range(_MOST_TURNS):
        turns = [turn for key in budgets if (turn := timeline.next_turn(states, kept, key)) is not None]
        at = min(turns, default=None)
        if at is None or not any(one.rest(at) for one in asides):
            return None
        states = timeline.advance(states, kept, at).states
        for key, mine in below.items():
            owed = sum(one.rest(at) for one in mine)
            rule = rule_at(kept.records[key].rules, at)
            left = max(states[key].balance + rule.credit, 0) if rule.open else 0
            if owed > left:
                return Gap(key, at, owed - left)
    return None


def gap_of_withdrawal(books: Books, session: Session, budget: int, now: int) -> Gap | None:
    """Return where what is set aside in a budget and below it is not covered, after something was taken out."""
    tree = memberships.tree(session, [budget], IN_FORCE)
    asides = store.asides(session, tree.keys, now)
    return (
        gap_in(session, tree, books.settle_all(session, {budget: None}, now), asides, [budget], now) if asides else None
    )


def gap_in(
    session: Session,
    tree: Tree,
    states: Mapping[int, State],
    asides: Sequence[Aside],
    budgets: Collection[int],
    now: int,
) -> Gap | None:
    """Return where what is set aside in some budgets of a tree, and below them, stops being covered."""
    forest = Forest(namespaces.records(session, tree.keys, max(s.at for s in states.values()), carry=False), tree.links)
    return gap({key: states[key] for key in tree.keys}, forest, asides, budgets, now)
