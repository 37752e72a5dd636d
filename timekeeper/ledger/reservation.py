# SPDX-License-Identifier: Apache-2.0
"""Open and release reservations: GPU time of a namespace that is set aside, so that nothing else can use it.

The rest of a budget, including credit, less what is reserved, is free. A reservation is opened only if that much is
free, and that is checked in the same transaction; so what is reserved never exceeds the budget. Movements that take
time out of a budget make the same check. Reservations are not entries of the ledger: they move no GPU time.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from sqlalchemy.orm import Session

from slicekeeper.units import NO_TIME, GpuMilliseconds, Instant, format_instant
from timekeeper.core.account import AccountId
from timekeeper.core.coverage import ReservedTime, planned
from timekeeper.core.pod_need import Need
from timekeeper.core.refusal import (
    BalanceInsufficient,
    BudgetClosed,
    EnforcementNotSafe,
    InstantPast,
    ReservationOfPod,
    ReservationUnknown,
)
from timekeeper.ledger import coverage
from timekeeper.ledger.account import AccountRef, ensure_account, refuse_off
from timekeeper.ledger.books import Books
from timekeeper.ledger.executed_request import KeyedRequest, repeated
from timekeeper.ledger.movement import Order, executed
from timekeeper.ledger.standing import BudgetStanding
from timekeeper.store import accounts, budget_rules, idempotent_rows
from timekeeper.store import reservations as store
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.db.models import ReservationRow

CONTROLLER: Final = "controller"


def reserved(books: Books, now: Instant, budget: AccountId | None = None) -> Mapping[AccountId, GpuMilliseconds]:
    """Return the GPU-milliseconds that are reserved, by budget; `budget` selects one."""
    with books.database.reading() as session:
        times = store.reserved(session, now, None if budget is None else [budget])
    total: defaultdict[AccountId, GpuMilliseconds] = defaultdict(lambda: NO_TIME)
    for one in times:
        total[one.budget] = GpuMilliseconds(total[one.budget] + one.rest(now))
    return total


def reserved_below(books: Books, standings: Iterable[BudgetStanding], now: Instant) -> dict[AccountId, GpuMilliseconds]:
    """Return the GPU-milliseconds that are reserved in each budget and in all below it."""
    everywhere = reserved(books, now)
    return {one.account.id: GpuMilliseconds(sum(everywhere[key] for key in one.below)) for one in standings}


def open_for_pod(books: Books, ref: AccountRef, uid: str, name: str, need: Need, now: Instant) -> bool:
    """Reserve GPU time for a pod; return whether it is reserved.

    A pod has one reservation, however often this is called.
    """

    def change(session: Session) -> bool:
        account = ensure_account(books, session, ref, now)
        key = f"pod:{uid}"
        if idempotent_rows.under(session, ReservationRow, account.id, key) is not None:
            return True
        more = planned("new", account.id, need.amount, need.span, now)
        if coverage.settled(books, session, account.id, now).lack(more) is not None:
            return False
        idempotent_rows.add(
            session,
            ReservationRow,
            namespace_id=account.id,
            idempotency_key=key,
            amount_ms=need.amount,
            opened_at=now,
            actor=CONTROLLER,
            pod_uid=uid,
            pod_name=name,
            span_ms=need.span,
        )
        return True

    return books.database.write(change)


def end_pods(books: Books, pods: Mapping[str, tuple[str, str]], now: Instant) -> None:
    """End the reservations of pods (namespace and name by UID); the audit log names those that exceeded theirs."""

    def change(session: Session) -> None:
        for row, paid in store.exceeded(session, pods):
            account = accounts.by_id(session, [row.namespace_id])[row.namespace_id]
            _, name = pods[str(row.pod_uid)]
            detail = {"podUid": row.pod_uid, "podName": name, "amountMs": row.amount_ms, "paidMs": paid}
            books.audit(session, actor=CONTROLLER, action="reservation-exceeded", about=account, detail=detail, now=now)
        store.end_pods(session, pods, now)

    books.database.write(change)


def open_by_hand(books: Books, ref: AccountRef, order: Order, *, expires_at: Instant) -> tuple[ReservationRow, bool]:
    """Reserve GPU time until an instant; return the reservation, and False if it was opened before under its key.

    Raises InvalidValue if the instant is past, and Conflicting if less is free, the budget may not be spent, or the key
    was already used for another request.
    """

    def change(session: Session) -> tuple[int, bool]:
        account = ensure_account(books, session, ref, order.now)
        key = key_of(order.key)
        before = executed(session, ReservationRow, account, order, "reservation", key)
        if before is not None:
            return before.id, False
        refuse_off(ref)
        if not ref.policy.reserves:
            raise EnforcementNotSafe(
                f"the budget of {ref.name} is enforced {ref.policy.budget.enforcement}: its pods take what there is, "
                "so nothing can be set aside; set budget.enforcement: safe in the policy file"
            )
        if expires_at <= order.now:
            message = f"expiresAt: {format_instant(expires_at)} is in the past; choose a later instant"
            raise InstantPast(message, "expiresAt")
        status = budget_rules.rules(session, account.id)[-1].status
        if status != "active":
            raise BudgetClosed(f"the budget of {account.name} is {status}")
        _check_free(books, session, account, order, expires_at)
        row = idempotent_rows.add(
            session,
            ReservationRow,
            namespace_id=account.id,
            idempotency_key=key,
            amount_ms=order.amount,
            opened_at=order.now,
            actor=order.actor,
            reason=order.reason,
            request_hash=order.digest("reservation"),
            expires_at=expires_at,
        )
        detail = {"id": row, "amountMs": order.amount, "expiresAt": expires_at, "reason": order.reason}
        books.audit(session, actor=order.actor, action="reservation", about=account, detail=detail, now=order.now)
        return row, True

    row, made = books.database.write(change)
    return _read(books, row), made


def _check_free(books: Books, session: Session, account: BudgetAccount, order: Order, until: Instant) -> None:
    """Refuse a reservation if less is free, now or later until its end."""
    cover = coverage.settled(books, session, account.id, order.now)
    gap = cover.lack(ReservedTime(account.id, order.amount, until=until))
    if gap is None:
        return
    if gap.at == cover.at:
        raise BalanceInsufficient(
            f"amountMs: {order.amount} GPU-ms are more than the {max(order.amount - gap.amount, 0)} GPU-ms that "
            f"{account.name} has free"
        )
    raise BalanceInsufficient(
        f"amountMs: {gap.amount} GPU-ms would be missing from {format_instant(gap.at)} on, because "
        "the GPU time they would come from expires; ask for less, or set an earlier expiresAt"
    )


def key_of(idempotency_key: str) -> str:
    """Return the key under which a request's reservation is stored: distinct from those of pods, and never too long."""
    return "key:" + hashlib.sha256(idempotency_key.encode()).hexdigest()


def release(
    books: Books,
    find: Callable[[Session], BudgetAccount | None],
    name: str,
    key: int,
    *,
    reason: str,
    actor: str,
    now: Instant,
    asked: KeyedRequest | None = None,
) -> ReservationRow:
    """Release a reservation that was opened by hand; a second call changes nothing. `find` returns its owner.

    Raises Unknown if the namespace has no such reservation, Conflicting if it is a pod's.
    """

    def change(session: Session) -> None:
        account = find(session)
        row = None if account is None else store.by_id(session, account.id, key)
        if account is None or row is None:
            raise ReservationUnknown(f"namespace {name} has no reservation {key}")
        if repeated(books, session, account.uid, asked):
            return
        if row.pod_uid is not None:
            raise ReservationOfPod(f"reservation {key} belongs to pod {row.pod_name} and ends with it; delete the pod")
        if row.ended_at is None and row.expires_at is not None and now < row.expires_at:
            store.release(session, key, now)
            detail = {"id": key, "amountMs": row.amount_ms, "reason": reason}
            books.audit(session, actor=actor, action="release", about=account, detail=detail, now=now)

    books.database.write(change)
    return _read(books, key)


def _read(books: Books, key: int) -> ReservationRow:
    with books.database.reading() as session:
        return session.get_one(ReservationRow, key)


def outcome_of(row: ReservationRow, now: Instant) -> str:
    """Return `open`, or how a reservation ended."""
    if row.outcome:
        return row.outcome
    return "expired" if row.expires_at is not None and row.expires_at <= now else "open"
