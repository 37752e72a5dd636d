# SPDX-License-Identifier: Apache-2.0
"""Teams and organisations: budgets above namespaces, and who stands under whom from when on.

What a pod is charged is charged to its namespace and to every budget above it, or to none of them. A budget is put
under another one from now on; what was charged before stays where it was.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Session

from slicekeeper.errors import Conflict
from timekeeper.core import hierarchy
from timekeeper.core.hierarchy import IN_FORCE
from timekeeper.core.record import Rule
from timekeeper.ledger.books import ANCHOR_LAG_MS, Books
from timekeeper.ledger.budget import Change, told_of
from timekeeper.ledger.movement import Place
from timekeeper.store import accounts, memberships
from timekeeper.store.accounts import Kind, Known

MOST_LEVELS: Final = 4
"""Budgets in one chain: a namespace, two teams, an organisation."""

PARENT_REFUSED: Final = "parent-refused"
HIERARCHY_CYCLE: Final = "hierarchy-cycle"
HIERARCHY_TOO_DEEP: Final = "hierarchy-too-deep"


def put_parent(books: Books, name: str, kind: Kind, rule: Rule, *, actor: str, if_match: frozenset[str] | None) -> bool:
    """Make a team or an organisation, or give it another budget; return whether it was made.

    Raises Conflict where the name is another kind's, `if_match` has not the budget's version, or it is closed.
    """

    def change(session: Session) -> bool:
        known = accounts.find(session, books.cluster, accounts.parent_uid(name))
        if known is None:
            if if_match is not None:
                raise Conflict(f"budget of {kind} {name}: there is none yet", 412, "version-mismatch")
            uid = accounts.parent_uid(name)
            known = accounts.open_account(
                session, books.cluster, uid, name, rule, rule.since, kind=kind, actor=actor
            )  # fmt: skip
            books.settle_in(session, known.id, rule.since, rule.since)
            books.note(session, actor=actor, action=kind, about=known, detail=told_of(rule), now=rule.since)
            return True
        _same_kind(known, kind)
        books.change_budget(session, known, rule, actor=actor, if_match=if_match)
        return False

    return books.database.write(change)


def patch_parent(
    books: Books, name: str, kind: Kind | None, change: Change, *, actor: str, if_match: frozenset[str] | None
) -> None:
    """Make another budget of that of a team or an organisation.

    Raises NotFound where there is none of that name, Conflict as `put_parent` does.
    """

    def work(session: Session) -> None:
        known = accounts.require_parent(session, books.cluster, name)
        _same_kind(known, kind or known.kind)
        books.change_budget(session, known, change, actor=actor, if_match=if_match)

    books.database.write(work)


def _same_kind(known: Known, kind: str) -> None:
    if known.kind != kind:
        told = f"kind: {known.name} is {_a(known.kind)}, not {_a(kind)}; choose another name"
        raise Conflict(told, 409, PARENT_REFUSED, "kind")


def put_under(books: Books, place: Place, above: str | None, *, reason: str, actor: str, now: int) -> bool:
    """Put a namespace, or a team, under another budget from now on, or under none; return False where it is already.

    Raises NotFound where there is no such parent, Conflict where it is an organisation, would stand above itself, or
    the chain would be too long.
    """

    def change(session: Session) -> bool:
        known = books.ensure(session, place.uid, place.name, place.policy, now)
        return _put_under(books, session, known, above, reason=reason, actor=actor, now=now)

    return books.database.write(change)


def _put_under(
    books: Books, session: Session, child: Known, above: str | None, *, reason: str, actor: str, now: int
) -> bool:  # fmt: skip
    tree = memberships.tree(session, [child.id], IN_FORCE)
    target = None if above is None else accounts.require_parent(session, books.cluster, above)
    if tree.parents.get(child.id) == (None if target is None else target.id):
        return False
    if target is not None:
        _check(session, child, target, tree)
    for known in (child, target):
        if known is not None:
            books.pin(session, known.id, now - ANCHOR_LAG_MS, now)
    others = () if target is None else memberships.tree(session, [target.id], IN_FORCE).links
    since = max([now, *(link.since for link in (*tree.links, *others))])  # whoever's clock wrote what is in force
    memberships.put(session, child.id, None if target is None else target.id, since=since, actor=actor)
    accounts.touch(session, child.id)
    books.settle_in(session, child.id, since, since)
    detail = {"parent": above or "", "effectiveAt": since, "reason": reason}
    books.note(session, actor=actor, action="parent", about=child, detail=detail, now=now)
    return True


def _check(session: Session, child: Known, target: Known, tree: hierarchy.Tree) -> None:
    """Refuse what would be no hierarchy."""
    if child.kind == "organisation":
        raise Conflict(
            f"parent: {child.title} stands under nothing, so not under {target.title}; only teams and namespaces do",
            409, PARENT_REFUSED,
        )  # fmt: skip
    chain = memberships.tree(session, [target.id], IN_FORCE).chain(target.id)
    if child.id in chain:
        raise Conflict(
            f"parent: {target.title} stands under {child.title} itself, so that would be a ring; "
            f"move {target.title} elsewhere first",
            409, HIERARCHY_CYCLE,
        )  # fmt: skip
    height = max(tree.chain(key).index(child.id) + 1 for key in tree.keys if child.id in tree.chain(key))
    if len(chain) + height > MOST_LEVELS:
        raise Conflict(
            f"parent: under {target.title} the chain of {child.title} would have {len(chain) + height} budgets; "
            f"at most {MOST_LEVELS} stand above each other, so put it under one further up",
            409, HIERARCHY_TOO_DEEP,
        )  # fmt: skip


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
