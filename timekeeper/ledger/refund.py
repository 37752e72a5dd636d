# SPDX-License-Identifier: Apache-2.0
"""Refund what a pod was charged, by hand. A refund is a movement like a grant, but never exceeds the pod's charge."""

from __future__ import annotations

from sqlalchemy.orm import Session

from timekeeper.core.refusal import PodRunning, PodUnknown, RefundAboveCharge
from timekeeper.ledger import settlement
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.movement import Order, append, once
from timekeeper.store import bookings, movements, workloads
from timekeeper.store.accounts import BudgetAccount


def refund_pod(books: Books, ref: AccountRef, order: Order, *, pod_uid: str) -> bool:
    """Refund the charge of an ended pod, or a part of it.

    What is not used expires with the period, as the allowance would have from which the charge was paid.
    Raises Unknown if the namespace had no such pod, Conflicting if more than its charge would be refunded.
    """

    def book(session: Session, account: BudgetAccount) -> None:
        pod = workloads.by_uid(session, [pod_uid]).get(pod_uid)
        if pod is None or pod.namespace_id != account.id:
            raise PodUnknown(f"namespace {ref.name} had no pod {pod_uid} that held GPUs")
        if pod.ended_at is None:
            raise PodRunning(f"pod {pod_uid} is still running; refund it after it has ended")
        settlement.settle_in(books, session, account.id, None, order.now)
        charged = bookings.booked_by_pod(session, [pod_uid])[pod_uid].charged
        left = charged - movements.refunded(session, account.id, pod_uid)
        if order.amount > left:
            raise RefundAboveCharge(
                f"amountMs is {order.amount}, but at most {left} of the charge of pod {pod_uid} can be refunded"
            )
        append(books, session, account, order, "refund", counterpart=pod_uid)

    return once(books, ref, order, "refund", book)
