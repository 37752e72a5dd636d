# SPDX-License-Identifier: Apache-2.0
"""Move GPU time by hand: grants, adjustments and transfers; refunds are in `refund`. All of it is in the audit log.

A movement is a record like a pod's interval: it is appended and its namespace settled in one transaction. A movement
that withdraws time is refused if less is left. If a late record shows afterwards that less was left, the balance is
below zero until the next allowance: an acknowledged movement stays.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy.orm import Session

from slicekeeper.config.policy import MAX_AMOUNT_MS
from slicekeeper.units import GpuMilliseconds, Instant, format_instant
from timekeeper.core.hierarchy import IN_FORCE
from timekeeper.core.refusal import (
    AmountOverflow,
    BalanceInsufficient,
    BudgetClosed,
    GrantBegun,
    GrantUnknown,
    InstantOrder,
    InstantPast,
    KeyReused,
    TransferRefused,
)
from timekeeper.ledger import coverage, settlement
from timekeeper.ledger.account import AccountRef, ensure_account, refuse_off
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget_rule import not_before
from timekeeper.ledger.executed_request import KeyedRequest, repeated
from timekeeper.store import budget_rules, hierarchy_links, idempotent_rows, movements
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.db.models import BudgetGrant
from timekeeper.store.idempotent_rows import Row

CLOCKS_MS: Final = 1_000
"""A grant may begin this long before now, because its sender's clock may be behind ours."""

MovementKind = Literal["grant", "refund", "adjustment", "transfer"]
OrderKind = MovementKind | Literal["interval", "reservation"]


@dataclass(frozen=True)
class Order:
    """A request to be executed once. `key` and `body` distinguish a repeated request from another one."""

    amount: GpuMilliseconds
    reason: str
    key: str
    body: bytes
    actor: str
    now: Instant

    def digest(self, kind: OrderKind) -> str:
        """Return the digest that distinguishes this request from another under the same key."""
        # Several kinds of movements are in one table. Grants have no prefix because they were there first.
        prefix = b"" if kind in ("grant", "reservation") else kind.encode() + b"\0"
        return hashlib.sha256(prefix + self.body).hexdigest()


def grant(
    books: Books, ref: AccountRef, order: Order, *, valid_from: Instant, valid_to: Instant | None, priority: int = 0
) -> bool:
    """Book a grant; return False if the same request was booked before under its key.

    Raises InvalidValue if it would begin in the past or end before it begins, and Conflicting if the key was used for
    another request, the budget is closed, or sums grow beyond all bounds.
    """

    def book(session: Session, account: BudgetAccount) -> None:
        refuse_off(ref)
        start = _start_of(order.now, valid_from, valid_to)
        append(books, session, account, order, "grant", valid_from=start, valid_to=valid_to, priority=priority)

    return once(books, ref, order, "grant", book)


def _start_of(now: Instant, valid_from: Instant, valid_to: Instant | None) -> Instant:
    """Return from when a grant counts: not before now."""
    if valid_from < now - CLOCKS_MS:
        message = f"validFrom: {format_instant(valid_from)} is in the past; leave it out to start the grant now"
        raise InstantPast(message, "validFrom")
    start = max(valid_from, now)
    if valid_to is not None and valid_to <= start:
        begin = "now" if start == now else f"validFrom, {format_instant(start)}"
        raise InstantOrder(f"validTo: {format_instant(valid_to)} is not later than {begin}; choose a later instant")
    return start


def withdraw(
    books: Books,
    find: Callable[[Session], BudgetAccount],
    key: int,
    *,
    reason: str,
    actor: str,
    now: Instant,
    asked: KeyedRequest | None = None,
) -> BudgetGrant:
    """Withdraw a grant that has not begun, and return it; a repetition changes nothing.

    `find` returns the grant's account. Raises Unknown if there is no such grant, Conflicting if it has begun, or if GPU
    time that is set aside needs it.
    """

    def change(session: Session) -> None:
        account = find(session)
        if repeated(books, session, account.uid, asked):
            return
        row = movements.grant_by_id(session, account.id, key)
        if row is None:
            raise GrantUnknown(f"{account.title} has no grant {key}")
        if row.withdrawn_at is not None:
            return
        # Settling updates the row of the root, so no other transaction reserves or books at the same time.
        if row.valid_from <= settlement.settle_in(books, session, account.id, None, now).at:
            raise GrantBegun(
                f"grant {key} began at {format_instant(row.valid_from)}; take back what is left with an adjustment"
            )
        movements.withdraw_grant(session, key, now)
        detail = {"id": key, "amountMs": row.amount_ms, "reason": reason}
        books.audit(session, actor=actor, action="withdraw", about=account, detail=detail, now=now)
        settlement.settle_in(books, session, account.id, row.valid_from, now)
        _refuse_if_uncovered(books, session, account, now)

    books.database.write(change)
    with books.database.reading() as session:
        return session.get_one(BudgetGrant, key)


def adjust(books: Books, ref: AccountRef, order: Order) -> bool:
    """Adjust a balance by hand: a negative amount deducts GPU time.

    Raises Conflicting if more would be deducted than is left.
    """

    def book(session: Session, account: BudgetAccount) -> None:
        refuse_off(ref)
        if order.amount < 0:
            _refuse_beyond_rest(books, session, account, GpuMilliseconds(-order.amount), order.now)
        append(books, session, account, order, "adjustment")
        if order.amount < 0:
            _refuse_if_uncovered(books, session, account, order.now)

    return once(books, ref, order, "adjustment", book)


def transfer(books: Books, source: AccountRef, target: AccountRef, order: Order, *, valid_to: Instant | None) -> bool:
    """Move GPU time from one budget to another, both or neither.

    Raises InvalidValue if it would end in the past, and Conflicting if less is left (credit cannot be transferred), or
    if one is below the other: what the lower one spends is charged to the upper one too, so the time would be paid for
    twice.
    """

    def book(session: Session, giver: BudgetAccount) -> None:
        if valid_to is not None and valid_to <= order.now:
            message = f"validTo: {format_instant(valid_to)} is in the past; choose a later instant"
            raise InstantPast(message, "validTo")
        refuse_off(source)
        refuse_off(target, "to")
        taker = ensure_account(books, session, target, order.now)
        _refuse_if_related(session, giver, taker)
        _refuse_beyond_rest(books, session, giver, order.amount, order.now)
        append(books, session, giver, order, "transfer", amount=GpuMilliseconds(-order.amount), counterpart=taker.title)
        key = movements.other_side(giver.id, order.key)
        if idempotent_rows.under(session, BudgetGrant, taker.id, key) is not None:
            raise KeyReused(f"{taker.title} already has a movement under this Idempotency-Key; send another key")
        append(books, session, taker, order, "transfer", key=key, counterpart=giver.title, valid_to=valid_to)
        _refuse_if_uncovered(books, session, giver, order.now)

    return once(books, source, order, "transfer", book)


def once(
    books: Books, ref: AccountRef, order: Order, kind: MovementKind, book: Callable[[Session, BudgetAccount], None]
) -> bool:
    """Book a movement; return False if the same request was booked before under its key."""

    def change(session: Session) -> bool:
        account = ensure_account(books, session, ref, order.now)
        if executed(session, BudgetGrant, account, order, kind) is not None:
            return False
        book(session, account)
        return True

    return books.database.write(change)


def executed(
    session: Session, table: type[Row], account: BudgetAccount, order: Order, kind: OrderKind, key: str = ""
) -> Row | None:
    """Return what the same request appended before under its key, or under `key`; None if it is new.

    Raises KeyReused if that was another request.
    """
    before = idempotent_rows.under(session, table, account.id, key or order.key)
    if before is not None and before.request_hash != order.digest(kind):
        raise KeyReused(f"Idempotency-Key {order.key!r} was already used for another request")
    return before


def _refuse_beyond_rest(
    books: Books, session: Session, account: BudgetAccount, amount: GpuMilliseconds, now: Instant
) -> None:
    """Refuse to take more than a budget has left and not reserved."""
    cover = coverage.settled(books, session, account.id, now)
    left = cover.states[account.id].balance - cover.reserved_in(account.id)
    if amount > left:
        raise BalanceInsufficient(
            f"amountMs: {amount} GPU-ms are more than the {max(left, 0)} GPU-ms that {account.title} has left and "
            "unreserved"
        )


def _refuse_if_uncovered(books: Books, session: Session, account: BudgetAccount, now: Instant) -> None:
    """Refuse to withdraw time that is needed later, when the rest has expired."""
    gap = coverage.settled(books, session, account.id, now).gap([account.id])
    if gap is not None:
        raise BalanceInsufficient(
            f"amountMs: what {account.title} has set aside would lack {gap.amount} GPU-ms from "
            f"{format_instant(gap.at)} on, because what would be left expires; take less"
        )


def _refuse_if_related(session: Session, giver: BudgetAccount, taker: BudgetAccount) -> None:
    """Refuse a transfer between a budget and one of its ancestors."""
    tree = hierarchy_links.tree(session, [giver.id], IN_FORCE)
    for lower, upper in ((giver, taker), (taker, giver)):
        if upper.id in tree.keys and lower.id in tree.keys and upper.id in tree.chain(lower.id):
            raise TransferRefused(
                f"to: {lower.title} is under {upper.title}, which already pays for what it spends; "
                f"give {taker.title} a grant instead"
            )


def append(
    books: Books,
    session: Session,
    account: BudgetAccount,
    order: Order,
    kind: MovementKind,
    *,
    amount: GpuMilliseconds | None = None,
    key: str = "",
    valid_from: Instant | None = None,
    valid_to: Instant | None = None,
    priority: int = 0,
    counterpart: str = "",
) -> None:
    """Append a movement and settle its namespace."""
    given = order.amount if amount is None else amount
    rule = budget_rules.rules(session, account.id)[-1]
    if rule.status == "closed":
        raise BudgetClosed(f"the budget of {account.title} is closed")
    # Sums of movements and charges must fit into 64 bits.
    if movements.granted_in_all(session, account.id) + abs(given) > 10_000 * MAX_AMOUNT_MS:
        raise AmountOverflow(f"movements of {account.title} would exceed what the ledger can hold")
    since = not_before(rule.rule, order.now if valid_from is None else valid_from)
    if valid_to is not None and valid_to <= since:
        raise InstantPast("validTo is in the past", "validTo")
    row = idempotent_rows.add(
        session,
        BudgetGrant,
        namespace_id=account.id,
        amount_ms=given,
        reason=order.reason,
        valid_from=since,
        valid_to=valid_to,
        idempotency_key=key or order.key,
        request_hash=order.digest(kind),
        actor=order.actor,
        booked_at=order.now,
        kind=kind,
        priority=priority,
        counterpart=counterpart,
    )
    detail = {"id": row, "amountMs": given, "reason": order.reason, "counterpart": counterpart}
    books.audit(session, actor=order.actor, action=kind, about=account, detail=detail, now=order.now)
    settlement.settle_in(books, session, account.id, since, order.now)
