# SPDX-License-Identifier: Apache-2.0
"""What settling needs: from which anchor to go on, what still matters after it, how far refunds go."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from sqlalchemy.orm import Session

from timekeeper.core.budget import State
from timekeeper.core.hierarchy import Tree
from timekeeper.core.record import Records
from timekeeper.store import (
    bookings,
    memberships,
    movements,
    timelines,
)


def limit_refunds(session: Session, keys: Collection[int], since: int) -> int | None:
    """Have refunds bring no more than what their pods are charged to the budget, by what is known now.

    Of several, the first ones stand. Only those are looked at that a change at `since` can concern. Returns the
    earliest instant at which a refund changed; None if none did.
    """
    changed: list[int] = []
    found = movements.refunds(session, keys, since)
    charged = bookings.booked_by_pod(session, sorted(found)) if found else {}
    for pod, rows in found.items():
        left = charged.get(pod, (0, 0))[0]
        for row in rows:
            beyond = max(row.amount_ms - left, 0)
            left = max(left - row.amount_ms, 0)
            if beyond != row.taken_back_ms:
                movements.take_back(session, row.id, beyond)
                changed.append(row.valid_from)
    return min(changed, default=None)


def anchored(session: Session, tree: Tree, before: int | None) -> tuple[Tree, dict[int, State]]:
    """Return from which anchor before an instant (None: the latest) to go on, and what depends on a tree since.

    What is not in the anchor has not begun there.
    """
    while True:
        anchor = timelines.anchor_before(session, tree.keys, before)
        wider = memberships.tree(session, tree.keys, instant_of(anchor))
        if wider.keys == tree.keys:
            return wider, anchor
        tree = wider


def instant_of(states: Mapping[int, State]) -> int | None:
    """Return of which instant states are, None where there are none."""
    return next((state.at for state in states.values()), None)


def rest_of(records: Records, at: int) -> Records:
    """Return what of a budget's records still matters after an instant."""
    return replace(
        records,
        claims=[c for c in records.claims if c.goes_on(at)],
        grants=[g for g in records.grants if g.since > at],
        withdrawals=[w for w in records.withdrawals if w.at > at],
    )
