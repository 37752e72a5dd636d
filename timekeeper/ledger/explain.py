# SPDX-License-Identifier: Apache-2.0
"""Explain a budget's balance: every booking that changed it, the sum so far, and the record that caused it.

The sum of everything sealed comes first, so that an explanation does not grow with the years. Later bookings follow in
the order in which they fall due, corrections among those of the period that they correct. Last is what is not booked
yet: what has fallen due since the namespace was last settled, the allowance of a period that no pod has drawn on, and
the pods that run. So the last sum is the balance that decisions are based on, at any instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from slicekeeper.units import NO_TIME, GpuMilliseconds, Instant, format_instant
from timekeeper.core import hierarchy, timeline
from timekeeper.core.account import AccountId
from timekeeper.core.accounting_period import accounting_period
from timekeeper.core.budget_state import rule_at
from timekeeper.core.posting import Posting, difference, effect, entry_name
from timekeeper.core.refusal import NamespaceUnknown
from timekeeper.core.timeline import CHILD
from timekeeper.ledger.checkpoint import instant_of, newest_checkpoint, resume
from timekeeper.store import (
    accounts,
    bookings,
    budget_rules,
    hierarchy_links,
    idempotent_rows,
    interval_corrections,
    seals,
    workloads,
)
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.bookings import Caused
from timekeeper.store.db.models import BudgetGrant, WorkloadRow


@dataclass(frozen=True)
class BalanceStep:
    """A step of the balance. Instants are RFC 3339, amounts GPU-ms.

    `transaction` None: it is not booked yet, or it is the sum of what is sealed.
    """

    at: str
    transaction: int | None
    kind: str
    amount_ms: GpuMilliseconds
    balance_ms: GpuMilliseconds
    cause: str


def explain(
    engine: Engine, cluster: str, name: str, at: Instant, *, carry: bool, parent: bool = False, uid: str = ""
) -> Iterator[BalanceStep]:
    """Yield the steps of a namespace's balance, or a parent's, up to an instant; the last one has the balance.

    `uid` is the namespace's if several had the name; without it, the newest is explained.

    What was sealed before comes first, as one sum. `carry` is as for `verify`. Raises Unknown if it has no account.
    """
    with Session(engine, expire_on_commit=False) as session, session.begin():
        if uid:
            found = accounts.find(session, cluster, uid)
            if found is None or found.title != name:
                raise NamespaceUnknown(f"namespace {name} with UID {uid} has no account")
            account = found
        else:
            account = (accounts.require_parent if parent else accounts.require_name)(session, cluster, name)
        yield from _summed(_lines(session, account, at, carry=carry))


def _lines(session: Session, account: BudgetAccount, at: Instant, *, carry: bool) -> Iterator[BalanceStep]:
    """Yield the steps, each without the balance: what is sealed, what is booked since, and what is not booked yet."""
    sealed, sums = seals.latest(session, account.id, at)
    cause = "the sum of all that is sealed up to then"
    yield BalanceStep(format_instant(sealed), None, "sealed", sums.get("budget", NO_TIME), NO_TIME, cause)
    causes = _Causes(session, account.id)
    yield from map(causes.of_booking, bookings.causes(session, account.id, sealed, at))
    # Computed from the records as settling would, up to `at`: what is not in the ledger is due.
    tree, checkpoint = newest_checkpoint(session, hierarchy_links.tree(session, [account.id], at), Instant(at + 1))
    after = instant_of(checkpoint)
    forest, start = resume(session, tree, checkpoint, at, carry=carry, until=at)
    outcome = timeline.advance(start, forest, max(at, *(state.at for state in start.values())))
    _, due = difference(bookings.valid(session, account.id, after, at), outcome.postings[account.id])
    yield from map(causes.of_due, due)
    state = outcome.states[account.id]
    if not state.period.booked and state.period.amount:
        cause = "no pod has drawn on it yet"
        yield BalanceStep(format_instant(at), None, "allowance", state.period.amount, NO_TIME, cause)
    # The time of running pods since the time line was last cut: it is taken from the balance already, but not posted
    # before the next cut.
    below = [key for key in sorted(tree.keys) if account.id in hierarchy.chain(tree.links, key, at)]
    for key in below:
        mine = outcome.states[key]
        for claim in () if mine.over_budget else forest.records[key].claims:
            since = max(claim.start, mine.cut)
            if claim.start <= at and (claim.end is None or claim.end > at) and claim.gross(at) > claim.gross(since):
                cause = f"{causes.pod(claim.key)} runs, since {format_instant(since)}"
                amount = GpuMilliseconds(claim.gross(since) - claim.gross(at))
                yield BalanceStep(format_instant(at), None, "charge", amount, NO_TIME, cause)


def _summed(lines: Iterable[BalanceStep]) -> Iterator[BalanceStep]:
    """Yield the steps that change the balance, each with the balance after it."""
    balance = 0
    for line in lines:
        balance += line.amount_ms
        if line.amount_ms:
            yield replace(line, balance_ms=GpuMilliseconds(balance))


class _Causes:
    """The records of a namespace, to find which of them caused a booking."""

    def __init__(self, session: Session, budget: AccountId) -> None:
        self._session = session
        self._rules = [row.rule for row in budget_rules.rules(session, budget)]
        self._children = {
            f"{CHILD}{key}": f"all under {account.title}"
            for key, account in accounts.by_id(session, hierarchy_links.tree(session, [budget], None).keys).items()
        }
        self._corrected = interval_corrections.newest(session, budget)
        self._grants: dict[str, BudgetGrant] = {
            f"{row.kind}:{row.id}": row
            for kind in ("grant", "refund", "adjustment", "transfer")
            for row in idempotent_rows.page(session, BudgetGrant, budget, BudgetGrant.kind == kind)
        }

    def of_booking(self, booked: Caused) -> BalanceStep:
        """Return the line of a booking."""
        posting = booked.posting
        cause = self._cause(posting, booked.pod_name, booked.ended)
        if booked.reverses is not None:
            cause = f"takes back transaction {booked.reverses}: {cause}"
        if booked.corrects:
            cause += f"; correction, effective {format_instant(booked.effective_at)}"
        amount = effect(posting.kind, posting.amount)
        return BalanceStep(
            format_instant(posting.at),
            booked.transaction,
            entry_name(posting.kind, posting.key),
            amount,
            NO_TIME,
            cause,
        )

    def of_due(self, posting: Posting) -> BalanceStep:
        """Return the line of what is not booked yet."""
        amount = effect(posting.kind, posting.amount)
        pod = self._find(posting.key)
        name = "" if pod is None else pod.pod_name
        cause = self._cause(posting, name, pod.end_source if pod and pod.ended_at == posting.at else "")
        return BalanceStep(
            format_instant(posting.at), None, entry_name(posting.kind, posting.key), amount, NO_TIME, f"{cause}; due"
        )

    def pod(self, uid: str) -> str:
        """Return a pod's name for people."""
        pod = self._find(uid)
        return _named(uid, pod.pod_name if pod else "")

    def _find(self, uid: str) -> WorkloadRow | None:
        return workloads.by_uid(self._session, [uid]).get(uid)

    def _cause(self, posting: Posting, pod_name: str, ended: str) -> str:
        if posting.key in self._grants:
            row = self._grants[posting.key]
            other = f", {row.counterpart}" if row.counterpart else ""
            return f"{row.kind} {row.id} by {row.actor}{other}: {row.reason}"
        if posting.key.startswith(("period:", "debt:")):
            # What expires, or is owed, is of the period that ended then, in which another rule may have applied.
            rule = rule_at(self._rules, posting.at if posting.kind == "allowance" else Instant(posting.at - 1))
            since = format_instant(accounting_period(self._rules, posting.at)[0])
            if posting.kind == "expiry":
                return f"left of {posting.key} ({rule.amount} per {rule.period}, {rule.zone})"
            return f"{rule.amount} per {rule.period}, {rule.zone}, since {since}"
        why = f", ended ({ended})" if ended else ""
        if posting.key in self._corrected:
            put_right = self._corrected[posting.key]
            why += f"; interval corrected by {put_right.actor}: {put_right.reason}"
        if posting.key in self._children:
            return f"{self._children[posting.key]} from {format_instant(posting.start)}"
        return f"{_named(posting.key, pod_name)} from {format_instant(posting.start)}{why}"


def _named(uid: str, name: str) -> str:
    return f"pod {name} ({uid})" if name else f"pod {uid}"
