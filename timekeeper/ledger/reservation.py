# SPDX-License-Identifier: Apache-2.0
"""Open and release reservations: GPU time of a namespace that is set aside, so that nothing else can use it.

What is free is what is left, credit included, less what is set aside. A reservation is opened only if that much is
free, in the transaction that says so; so what is set aside never exceeds what there is. Movements that take time out
of a budget ask the same. Reservations are no entries of the ledger: they move nothing, they only keep.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy.orm import Session

from slicekeeper.units import GpuMilliseconds, Instant, format_instant
from timekeeper.core import reservation
from timekeeper.core.budget import BudgetState
from timekeeper.core.hierarchy import IN_FORCE, Tree
from timekeeper.core.record import AccountId, Aside, Rule, planned
from timekeeper.core.refusal import BalanceInsufficient, BudgetClosed, KeyReused, ReservationOfPod, ReservationUnknown
from timekeeper.core.reservation import Gap, Need
from timekeeper.ledger import coverage, settlement
from timekeeper.ledger.account import ensure
from timekeeper.ledger.books import Books
from timekeeper.ledger.movement import NamespaceRef, Order
from timekeeper.ledger.standing import Position
from timekeeper.store import accounts, budget_rules, memberships
from timekeeper.store import reservations as store
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.db.models import ReservationRow

CONTROLLER: Final = "controller"


@dataclass(frozen=True)
class Free:
    """What a namespace may reserve at an instant, what it has reserved, and which budget has the least free."""

    amount: GpuMilliseconds
    held: GpuMilliseconds
    tightest: AccountId
    asides: Sequence[Aside] = ()


def free_of(session: Session, position: Position, now: Instant) -> Free:
    """Return what is free according to this process; `open_for_pod` decides whether it really is."""
    together, states = position.together, position.together.at(now)
    tree = Tree(frozenset(states), tuple(together.forest.links))
    rules = {key: together.forest.records[key].rules[-1] for key in tree.chain(position.account.id)}
    asides = store.asides(session, tree.keys, max(now, states[position.account.id].at))
    held = sum(one.rest(now) for one in asides if one.budget == position.account.id)
    amount, tightest = _least(asides, tree, states, rules, now)
    return Free(amount, GpuMilliseconds(held), tightest, asides)


def gap_of(position: Position, free: Free, need: Need, now: Instant, *, alone: bool = False) -> Gap | None:
    """Return the gap in the cover of a need until its end, beside all reservations or `alone`; None if covered."""
    more = planned("new", position.account.id, need.amount, need.span, now)
    together = position.together
    asides = [*([] if alone else free.asides), more]
    budgets = [account.id for account in (position.account, *position.above)]
    return reservation.gap(together.at(now), together.forest, asides, budgets, now)


def most_of(position: Position, now: Instant) -> GpuMilliseconds:
    """Return what could be reserved without other reservations, now or in the next period; the least of the chain."""
    states, records = position.together.at(now), position.together.forest.records
    most = []
    for account in (position.account, *position.above):
        state, rule = states[account.id], records[account.id].rules[-1]
        granted = sum(bucket.left for bucket in state.grants)
        # A budget that is granted once has what is left of it.
        most.append((state.balance if rule.period == "none" else rule.amount + rule.rollover + granted) + rule.credit)
    return GpuMilliseconds(min(most))


def held(books: Books, now: Instant, namespace: AccountId | None = None) -> defaultdict[AccountId, GpuMilliseconds]:
    """Return what is reserved, by namespace; only that of one namespace if it is given."""
    with books.database.reading() as session:
        return store.held_by_namespace(session, now, namespace)


def held_below(books: Books, positions: Iterable[Position], now: Instant) -> dict[AccountId, GpuMilliseconds]:
    """Return what is reserved in budgets and in all below them."""
    everywhere = held(books, now)
    found = {}
    for position in positions:
        tree = Tree(frozenset(position.together.forest.records), tuple(position.together.forest.links))
        found[position.account.id] = GpuMilliseconds(sum(everywhere[key] for key in tree.below(position.account.id)))
    return found


def open_for_pod(books: Books, place: NamespaceRef, uid: str, name: str, need: Need, now: Instant) -> bool:
    """Reserve GPU time for a pod; return whether it is reserved.

    A pod has one reservation, however often this is called.
    """

    def change(session: Session) -> bool:
        account = ensure(books, session, place.uid, place.name, place.policy, now)
        key = f"pod:{uid}"
        if store.under(session, account.id, key) is not None:
            return True
        more = planned("new", account.id, need.amount, need.span, now)
        free, gap = _check(books, session, more, now)
        if need.amount > free or gap is not None:
            return False
        values = {"pod_uid": uid, "pod_name": name, "amount_ms": need.amount, "span_ms": need.span, "expires_at": None}
        store.add(session, _values(account.id, values, key=key, reason="", digest="", actor=CONTROLLER, now=now))
        return True

    return books.database.write(change)


def end_pods(books: Books, pods: Mapping[str, tuple[str, str]], now: Instant) -> None:
    """End the reservations of pods (namespace and name by UID); those charged more than was reserved are audited."""

    def change(session: Session) -> None:
        for row, paid in store.exceeded(session, pods):
            account = accounts.named(session, [row.namespace_id])[row.namespace_id]
            _, name = pods[str(row.pod_uid)]
            detail = {"podUid": row.pod_uid, "podName": name, "amountMs": row.amount_ms, "paidMs": paid}
            books.note(session, actor=CONTROLLER, action="reservation-exceeded", about=account, detail=detail, now=now)
        store.end_pods(session, pods, now)

    books.database.write(change)


def open_by_hand(
    books: Books, place: NamespaceRef, order: Order, *, expires_at: Instant
) -> tuple[ReservationRow, bool]:
    """Reserve GPU time until an instant; return the reservation, and False if it was opened before under its key.

    Raises Conflicting if less is free, the budget may not be spent, or the key was already used for another request.
    """

    def change(session: Session) -> tuple[int, bool]:
        account = ensure(books, session, place.uid, place.name, place.policy, order.now)
        key = key_of(order.key)
        digest = hashlib.sha256(order.body).hexdigest()
        before = store.under(session, account.id, key)
        if before is not None:
            if before.request_hash != digest:
                raise KeyReused(f"Idempotency-Key {order.key!r} was already used for another request")
            return before.id, False
        status = budget_rules.rules(session, account.id)[-1].status
        if status != "active":
            raise BudgetClosed(f"the budget of {account.name} is {status}")
        free, gap = _check(books, session, Aside(account.id, order.amount, until=expires_at), order.now)
        if order.amount > free:
            raise BalanceInsufficient(
                f"amountMs: {order.amount} GPU-ms are more than the {max(free, 0)} that {account.name} has free"
            )
        if gap is not None:
            raise BalanceInsufficient(
                f"amountMs: {gap.amount} GPU-ms would be missing from {format_instant(gap.at)} on, because "
                "the GPU time they would come from expires; ask for less, or set an earlier expiresAt"
            )
        values = {
            "pod_uid": None, "pod_name": "", "amount_ms": order.amount, "span_ms": 0, "expires_at": expires_at,
        }  # fmt: skip
        row = store.add(
            session,
            _values(account.id, values, key=key, reason=order.reason, digest=digest, actor=order.actor, now=order.now),
        )
        detail = {"id": row, "amountMs": order.amount, "expiresAt": expires_at, "reason": order.reason}
        books.note(session, actor=order.actor, action="reservation", about=account, detail=detail, now=order.now)
        return row, True

    row, made = books.database.write(change)
    return _read(books, row), made


def key_of(idempotency_key: str) -> str:
    """Return the key under which a request's reservation is stored: distinct from those of pods, and never too long."""
    return "key:" + hashlib.sha256(idempotency_key.encode()).hexdigest()


def release(
    books: Books, find: Callable[[Session], BudgetAccount | None], name: str, key: int, *, actor: str, now: Instant
) -> ReservationRow:
    """Release a reservation that was opened by hand; a second call changes nothing. `find` returns its owner.

    Raises Unknown if the namespace has no such reservation, Conflicting if it is a pod's.
    """

    def change(session: Session) -> None:
        account = find(session)
        row = None if account is None else store.by_id(session, account.id, key)
        if account is None or row is None:
            raise ReservationUnknown(f"namespace {name} has no reservation {key}")
        if row.pod_uid is not None:
            raise ReservationOfPod(f"reservation {key} belongs to pod {row.pod_name} and ends with it; delete the pod")
        if row.ended_at is None and row.expires_at is not None and now < row.expires_at:
            store.release(session, key, now)
            detail = {"id": key, "amountMs": row.amount_ms}
            books.note(session, actor=actor, action="release", about=account, detail=detail, now=now)

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


def _check(books: Books, session: Session, more: Aside, now: Instant) -> tuple[int, Gap | None]:
    """Settle a budget, and return what it may reserve, and the gap in the cover of `more` until its end.

    The row of its root is updated, so two transactions cannot reserve the same time.
    """
    states = settlement.settle_all(books, session, {more.budget: None}, now)
    tree = memberships.tree(session, [more.budget], IN_FORCE)
    chain = tree.chain(more.budget)
    asides = store.asides(session, tree.keys, max(now, states[more.budget].at))
    rules = {key: budget_rules.rules(session, key)[-1].rule for key in chain}
    free = _least(asides, tree, states, rules, now)[0]
    if more.amount > free:
        return free, None
    return free, coverage.gap_in(session, tree, states, [*asides, more], chain, now)


def _least(
    asides: Sequence[Aside],
    tree: Tree,
    states: Mapping[AccountId, BudgetState],
    rules: Mapping[AccountId, Rule],
    now: Instant,
) -> tuple[GpuMilliseconds, AccountId]:
    """Return what is free in the tightest of some budgets, and which one that is; reservations below count."""
    free = []
    for key, rule in rules.items():
        state = states[key]
        below = set(tree.below(key))
        held = sum(one.rest(max(now, state.at)) for one in asides if one.budget in below)
        least = state.balance + rule.credit - held if rule.open and not state.exhausted else 0
        free.append((GpuMilliseconds(least), key))
    return min(free)


def _values(
    namespace: AccountId, values: dict[str, Any], *, key: str, reason: str, digest: str, actor: str, now: Instant
) -> dict[str, Any]:
    return {
        **values, "namespace_id": namespace, "idempotency_key": key, "reason": reason, "request_hash": digest,
        "actor": actor, "opened_at": now, "ended_at": None, "outcome": "",
    }  # fmt: skip
