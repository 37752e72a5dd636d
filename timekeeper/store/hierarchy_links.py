# SPDX-License-Identifier: Apache-2.0
"""The hierarchy of budgets over time: which budget is under which one, and since when.

A link replaces all earlier written ones that would begin after it: a link that was written with a clock far ahead of
all others never begins if another one was written since.
"""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise
from typing import Final

from sqlalchemy import bindparam, insert, or_, select
from sqlalchemy.orm import Session, aliased

from slicekeeper.units import Instant
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Link
from timekeeper.core.hierarchy import IN_FORCE, Tree, parents_at
from timekeeper.store.db.models import Membership, Namespace

_LATER = aliased(Membership)
APPLIES: Final = (
    ~select(_LATER.id)
    .where(
        _LATER.child_id == Membership.child_id, _LATER.id > Membership.id, _LATER.effective_at < Membership.effective_at
    )
    .exists()
)
"""Condition on a membership: no later one replaced it before it began."""

# Made once: every decision executes it, and making it took much of its CPU time.
_IN_CLUSTER: Final = (
    select(Membership.child_id, Membership.parent_id, Membership.effective_at)
    .join(Namespace, Namespace.id == Membership.child_id)
    .where(Namespace.cluster == bindparam("cluster"), APPLIES)
    .order_by(Membership.effective_at, Membership.id)
)


def put(session: Session, link: Link, *, actor: str) -> None:
    """Append a link."""
    values = {"child_id": link.child, "parent_id": link.parent, "effective_at": link.since, "actor": actor}
    session.execute(insert(Membership).values(values))


def tree(session: Session, keys: Collection[AccountId], after: Instant | None) -> Tree:
    """Return what depends on some budgets by links that were in force at any time after an instant (None: ever)."""
    found = set(keys)
    links: list[Link] = []
    while True:
        links = _links(session, found, after)
        grown = found | {link.child for link in links} | {link.parent for link in links if link.parent is not None}
        if grown == found:
            return Tree(frozenset(found), tuple(links))
        found = grown


def _links(session: Session, keys: Collection[AccountId], after: Instant | None) -> list[Link]:
    """Return the links of budgets, up and down, that were in force at any time after an instant."""
    some = select(Membership.child_id).where(or_(Membership.child_id.in_(keys), Membership.parent_id.in_(keys)))
    query = select(Membership.id, Membership.child_id, Membership.parent_id, Membership.effective_at)
    query = query.where(Membership.child_id.in_(some), APPLIES)
    rows = session.execute(query.order_by(Membership.effective_at, Membership.id))
    histories: dict[AccountId, list[tuple[int, Link]]] = {}
    for key, child, parent, since in rows:
        histories.setdefault(child, []).append((key, Link(child, parent, since)))
    found = []
    for history in histories.values():
        ends = [later.since for _, (_, later) in pairwise(history)]
        lasting = [one for one, end in zip(history, ends, strict=False) if after is None or end > after]
        found += [
            (link.since, key, link)
            for key, link in (*lasting, history[-1])
            if link.child in keys or link.parent in keys
        ]
    # Links of the same instant apply in the order of writing: another order could form a cycle.
    return [link for _, _, link in sorted(found, key=lambda one: one[:2])]


def current(session: Session, cluster: str) -> dict[AccountId, AccountId]:
    """Return which budget each one of a cluster is under now."""
    rows = session.execute(_IN_CLUSTER, {"cluster": cluster})
    return parents_at((Link(*row) for row in rows), IN_FORCE)
