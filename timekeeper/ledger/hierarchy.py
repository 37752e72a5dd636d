# SPDX-License-Identifier: Apache-2.0
"""Create and change teams and organisations, and move budgets below others.

A pod is charged to its namespace and to every budget above it, or to none of them. A budget is moved below another one
from now on; earlier charges stay where they are.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Session

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.units import Instant
from timekeeper.core.budget_record import Link, Rule
from timekeeper.core.hierarchy import IN_FORCE, MOST_LEVELS, Tree, parents_at
from timekeeper.core.refusal import HierarchyCycle, HierarchyTooDeep, ParentRefused, VersionMismatch
from timekeeper.ledger import settlement
from timekeeper.ledger.account import AccountRef, ensure_account, refuse_off
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import change_budget, refuse_kept
from timekeeper.ledger.budget_rule import SET, Change, rule_detail
from timekeeper.ledger.executed_request import KeyedRequest, repeated
from timekeeper.ledger.settlement import CHECKPOINT_LAG_MS
from timekeeper.store import accounts, hierarchy_links, movements
from timekeeper.store.accounts import BudgetAccount, HolderKind

_AHEAD: Final = "a wrong clock had written it for an instant that is still to come"
"""Reason, in the audit log, of a link that replaces one ahead of all clocks."""


def put_parent_budget(
    books: Books,
    name: str,
    kind: HolderKind,
    rule: Rule,
    *,
    actor: str,
    if_match: frozenset[str] | None,
    reason: str = SET,
    asked: KeyedRequest | None = None,
) -> bool:
    """Create a team or an organisation, or change its budget; return whether it was created.

    Raises LedgerError if the name belongs to another kind, `if_match` does not contain the budget's version, the budget
    is closed, or an object keeps it.
    """

    def change(session: Session) -> bool:
        if repeated(books, session, accounts.parent_uid(name), asked):
            return False
        account = accounts.find(session, books.cluster, accounts.parent_uid(name))
        if account is not None:
            refuse_kept(session, account)
        return change_parent_budget(books, session, name, kind, rule, actor=actor, if_match=if_match, reason=reason)[1]

    return books.database.write(change)


def change_parent_budget(
    books: Books,
    session: Session,
    name: str,
    kind: HolderKind,
    rule: Rule,
    *,
    actor: str,
    if_match: frozenset[str] | None,
    reason: str,
) -> tuple[BudgetAccount, bool]:
    """Create a team or an organisation, or change its budget, as `put_parent_budget` does."""
    uid = accounts.parent_uid(name)
    account = accounts.find(session, books.cluster, uid)
    if account is None:
        if if_match is not None:
            raise VersionMismatch(f"budget of {kind} {name}: there is none yet")
        account = accounts.open_account(session, books.cluster, uid, name, rule, rule.since, kind=kind, actor=actor)
        settlement.settle_in(books, session, account.id, rule.since, rule.since)
        detail = {**rule_detail(rule), "reason": reason}
        books.audit(session, actor=actor, action=kind, about=account, detail=detail, now=rule.since)
        return account, True
    _require_kind(account, kind)
    change_budget(books, session, account, rule, actor=actor, if_match=if_match, reason=reason)
    return account, False


def patch_parent_budget(
    books: Books,
    name: str,
    kind: HolderKind | None,
    change: Change,
    *,
    actor: str,
    if_match: frozenset[str] | None,
    reason: str = SET,
    asked: KeyedRequest | None = None,
) -> None:
    """Change the budget of a team or an organisation.

    Raises Unknown if there is none of that name, LedgerError as `put_parent_budget` does.
    """

    def work(session: Session) -> None:
        account = accounts.require_parent(session, books.cluster, name)
        if repeated(books, session, account.uid, asked):
            return
        refuse_kept(session, account)
        _require_kind(account, kind or account.kind)
        change_budget(books, session, account, change, actor=actor, if_match=if_match, reason=reason)

    books.database.write(work)


def _require_kind(account: BudgetAccount, kind: str) -> None:
    if account.kind != kind:
        message = f"kind: {account.name} is {_a(account.kind)}, not {_a(kind)}; choose another name"
        raise ParentRefused(message, "kind")


def set_parent(
    books: Books,
    ref: AccountRef,
    above: str | None,
    *,
    reason: str,
    actor: str,
    now: Instant,
    asked: KeyedRequest | None = None,
) -> bool:
    """Move a namespace or a team below another budget from now on, or below none; return False if it is there already.

    Raises Unknown if there is no such parent, Conflicting if it is an organisation, would be above itself, the chain
    would be too long, or an object names its parent.
    """

    def change(session: Session) -> bool:
        if repeated(books, session, ref.uid, asked):
            return False
        if above is not None:
            refuse_off(ref)
        account = ensure_account(books, session, ref, now)
        refuse_kept(session, account, what="parent")
        return move_below(books, session, account, above, reason=reason, actor=actor, now=now)

    return books.database.write(change)


def move_below(
    books: Books, session: Session, child: BudgetAccount, above: str | None, *, reason: str, actor: str, now: Instant
) -> bool:
    """Move an account below another budget, or below none, as `set_parent` does."""
    tree = hierarchy_links.tree(session, [child.id], IN_FORCE)
    target = None if above is None else accounts.require_parent(session, books.cluster, above)
    other = hierarchy_links.tree(session, [] if target is None else [target.id], IN_FORCE)
    links = {link.child: link for link in (*tree.links, *other.links)}
    ahead = {link.child for link in links.values() if link.since > now + CLOCK_SKEW_MS}
    wanted = None if target is None else target.id
    if tree.parents.get(child.id) == wanted and child.id not in ahead:
        return False
    if target is not None:
        _refuse_unless_hierarchy(session, child, target, tree)
    # From now on the two are settled together, from a checkpoint that both must have.
    for account in (child, target):
        if account is not None:
            settlement.pin(books, session, account.id, Instant(now - CHECKPOINT_LAG_MS), now)
    # Not before the link in force, by any clock that may be right, so that no cycle can exist in between.
    since = max([now, *(link.since for link in links.values() if link.child not in ahead)])
    # Nor before, or at the instant of, a refund that went up the chain as it was.
    refunded = movements.last_movement(session, tree.below(child.id), Instant(since + CLOCK_SKEW_MS))
    since = max(since, Instant(refunded + 1))
    # A wrong clock wrote the links that are further ahead. They were meant to take effect immediately, and later links
    # rely on them: so they apply from now on too, those further up first.
    parents = parents_at(links.values(), IN_FORCE) | {child.id: wanted}
    moved = Tree(frozenset(parents), tuple(Link(one, parent, since) for one, parent in parents.items()))
    for one in sorted(ahead | {child.id}, key=lambda one: (len(moved.chain(one)), one)):
        mine = one == child.id
        why, by = (reason, actor) if mine else (_AHEAD, "timekeeper")
        _append_link(books, session, Link(one, parents.get(one), since), reason=why, actor=by, now=now)
    settlement.settle_all(books, session, dict.fromkeys(ahead | {child.id}, since), since)
    return True


def _append_link(books: Books, session: Session, link: Link, *, reason: str, actor: str, now: Instant) -> None:
    """Append a link, and write it into the audit log."""
    hierarchy_links.put(session, link, actor=actor)
    accounts.bump_version(session, link.child)
    named = accounts.by_id(session, [link.child, *([] if link.parent is None else [link.parent])])
    detail = {
        "parent": "" if link.parent is None else named[link.parent].name,
        "effectiveAt": link.since,
        "reason": reason,
    }
    books.audit(session, actor=actor, action="parent", about=named[link.child], detail=detail, now=now)


def _refuse_unless_hierarchy(session: Session, child: BudgetAccount, target: BudgetAccount, tree: Tree) -> None:
    """Refuse links that would not form a hierarchy."""
    if child.kind == "organisation":
        raise ParentRefused(
            f"parent: {child.title} cannot be under {target.title}; only teams and namespaces have a parent"
        )
    chain = hierarchy_links.tree(session, [target.id], IN_FORCE).chain(target.id)
    if child.id in chain:
        raise HierarchyCycle(
            f"parent: {target.title} is already under {child.title}, so this would be a cycle; "
            f"move {target.title} elsewhere first"
        )
    levels = len(chain) + tree.height(child.id)
    if levels > MOST_LEVELS:
        raise HierarchyTooDeep(
            f"parent: under {target.title} the chain of {child.title} would have {levels} budgets; "
            f"at most {MOST_LEVELS} are allowed, so choose a parent higher up"
        )


def _a(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
