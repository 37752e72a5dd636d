# SPDX-License-Identifier: Apache-2.0
"""Since when which budget stands under which, as it was written."""

from __future__ import annotations

from collections.abc import Collection
from itertools import pairwise

from sqlalchemy import insert, or_, select
from sqlalchemy.orm import Session

from timekeeper.core.hierarchy import IN_FORCE, Tree, parents_at
from timekeeper.core.record import Link
from timekeeper.store.db.models import Membership, Namespace


def put(session: Session, child: int, parent: int | None, *, since: int, actor: str) -> None:
    """Have a budget stand under another one, or under none, from an instant on."""
    values = {"child_id": child, "parent_id": parent, "effective_at": since, "actor": actor}
    session.execute(insert(Membership).values(values))


def tree(session: Session, keys: Collection[int], after: int | None) -> Tree:
    """Return what depends on some budgets by links that were in force at any time after an instant (None: ever)."""
    found = set(keys)
    links: list[Link] = []
    while True:
        links = _links(session, found, after)
        grown = found | {link.child for link in links} | {link.parent for link in links if link.parent is not None}
        if grown == found:
            return Tree(frozenset(found), tuple(links))
        found = grown


def _links(session: Session, keys: Collection[int], after: int | None) -> list[Link]:
    """Return the links of budgets, up and down, that were in force at any time after an instant."""
    some = select(Membership.child_id).where(or_(Membership.child_id.in_(keys), Membership.parent_id.in_(keys)))
    query = select(Membership.id, Membership.child_id, Membership.parent_id, Membership.effective_at)
    rows = session.execute(query.where(Membership.child_id.in_(some)).order_by(Membership.effective_at, Membership.id))
    histories: dict[int, list[tuple[int, Link]]] = {}
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
    # What was written at one instant is followed in the order of writing: any other could close a ring.
    return [link for _, _, link in sorted(found, key=lambda one: one[:2])]


def current(session: Session, cluster: str) -> dict[int, int]:
    """Return which budget each one of a cluster stands under now."""
    query = select(Membership.child_id, Membership.parent_id, Membership.effective_at)
    query = query.join(Namespace, Namespace.id == Membership.child_id).where(Namespace.cluster == cluster)
    rows = session.execute(query.order_by(Membership.effective_at, Membership.id))
    return parents_at((Link(*row) for row in rows), IN_FORCE)
