# SPDX-License-Identifier: Apache-2.0
"""Check a ledger against itself and against the records: every projection is rebuilt and compared."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from sqlalchemy import Engine, func, select
from sqlalchemy.orm import Session, aliased

from slicekeeper.units import EPOCH, Instant
from timekeeper.core import timeline
from timekeeper.core.account import AccountId
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_record import Forest
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.hierarchy import Tree
from timekeeper.core.posting import Booked, Posting, difference
from timekeeper.store import (
    accounts,
    audit_chain,
    audit_comparison,
    bookings,
    correction_check,
    hierarchy_links,
    movements,
    seals,
    sum_check,
    timelines,
)
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.db.models import Account, Entry, Transaction


@dataclass(frozen=True)
class Verification:
    """The result; if there are no differences, the ledger is right."""

    namespaces: int
    transactions: int
    entries: int
    differences: list[str]

    @property
    def summary(self) -> str:
        """One line for people."""
        verdict = f"{len(self.differences)} differences" if self.differences else "no difference"
        return f"{self.namespaces} namespaces, {self.transactions} transactions, {self.entries} entries: {verdict}"


def verify(engine: Engine, *, carry: bool) -> Verification:
    """Compare a database's projections with what its records and entries say. Reads one snapshot, writes nothing.

    `carry` is the setting `timekeeper.debt`: it applies until the ledger has recorded one.
    """
    with Session(engine) as session, session.begin():
        everyone = accounts.all_accounts(session)
        differences = [
            *_unbalanced(session),
            *_bad_reversals(session),
            *_transfers(session),
            *audit_chain.broken(session),
            *audit_comparison.differences(session),
            *correction_check.broken(session),
        ]
        known = {account.id: account for account in everyone}
        checked: set[AccountId] = set()
        for account in everyone:
            differences += _balances(session, account)
            if account.id not in checked:
                tree = hierarchy_links.tree(session, [account.id], None)
                checked |= tree.keys
                differences += _bookings(session, tree, known, carry=carry)
            differences += _refunds(session, account)
            differences += seals.broken(session, account)
        differences += sum_check.findings(session)
        return Verification(
            namespaces=len(everyone),
            transactions=session.execute(select(func.count(Transaction.id))).scalar_one(),
            entries=session.execute(select(func.count(Entry.id))).scalar_one(),
            differences=differences,
        )


def _unbalanced(session: Session) -> Iterator[str]:
    total = func.sum(Entry.amount_ms)
    for key, amount in session.execute(select(Entry.txn_id, total).group_by(Entry.txn_id).having(total != 0)):
        yield f"transaction {key}: its entries sum to {amount}, not to zero"


def _bad_reversals(session: Session) -> Iterator[str]:
    undone, undo = aliased(Entry), aliased(Entry)
    query = (
        select(Transaction.id)
        .join(undone, undone.txn_id == Transaction.reverses)
        .outerjoin(
            undo,
            (undo.txn_id == Transaction.id)
            & (undo.account_id == undone.account_id)
            & (undo.amount_ms == -undone.amount_ms),
        )
        .where(Transaction.reverses.is_not(None), undo.id.is_(None))
    )
    for key in session.scalars(query.distinct()):
        yield f"transaction {key}: it is not the opposite of what it reverses"


def _transfers(session: Session) -> Iterator[str]:
    """Yield the transfers that lack one side, or whose sides are not opposite."""
    rows = movements.transfers(session)
    given = {movements.other_side(r.namespace_id, r.idempotency_key): r for r in rows if r.amount_ms < 0}
    for row in rows:
        if row.amount_ms > 0:
            other = given.pop(row.idempotency_key, None)
            if other is None or other.amount_ms != -row.amount_ms:
                yield f"transfer {row.id}: the budget that gave the {row.amount_ms} is missing"
    for row in given.values():
        yield f"transfer {row.id}: no budget received the {-row.amount_ms}"


def _refunds(session: Session, account: BudgetAccount) -> Iterator[str]:
    """Yield the pods that were refunded more than their charge in the ledger, less reversals and corrections."""
    found = movements.refunds(session, [account.id])
    charged = bookings.booked_by_pod(session, sorted(found))
    for uid, rows in found.items():
        net = charged[uid].charged
        given, wanted = sum(row.amount_ms - row.taken_back_ms for row in rows), sum(row.amount_ms for row in rows)
        if given > net:
            yield f"{_where(account)}: pod {uid} was refunded {given}, and its net charge is {net}"
        elif given != min(wanted, net):
            right = min(wanted, net)
            yield f"{_where(account)}: of {wanted} for pod {uid}, refunds of {given} count, and {right} should"


def _balances(session: Session, account: BudgetAccount) -> Iterator[str]:
    query = (
        select(Account.kind, Account.balance_ms, func.coalesce(func.sum(Entry.amount_ms), 0))
        .outerjoin(Entry, Entry.account_id == Account.id)
        .where(Account.namespace_id == account.id)
        .group_by(Account.id, Account.kind, Account.balance_ms)
    )
    for kind, cached, rebuilt in session.execute(query):
        if cached != rebuilt:
            yield f"{_where(account)}: account {kind} holds {cached}, its entries sum to {rebuilt}"


def _bookings(
    session: Session, tree: Tree, accounts_by_id: Mapping[AccountId, BudgetAccount], *, carry: bool
) -> Iterator[str]:
    """Yield each booking and checkpoint that does not follow from the records of budgets that were settled together.

    Records and bookings are read side by side, one stretch of time after the other, because all of them together may
    not fit into memory. The time line is stopped at each checkpoint, to compare it, and where each budget was settled
    last: what falls due later is not booked yet.
    """
    settled = {key: accounts_by_id[tree.chain(key)[-1]].settled_at for key in tree.keys}
    kept = _checkpoints(session, tree)
    booked = _InOrder(bookings.valid_in_order(session, tree.keys))
    states: dict[AccountId, BudgetState] = {}
    begun = last = EPOCH
    for end, records in timelines.stretches(session, tree.keys, carry=carry):
        forest = Forest(records, tree.links)
        if not states:
            states = timeline.begin_all(_beginnings(session, forest), max(settled.values()))
            begun = min(state.at for state in states.values())
            last = max([*settled.values(), begun, *kept])
        upto = last if end is None else min(end, last)
        stops = {at for at in (*kept, *settled.values(), upto) if begun <= at <= upto}
        postings: dict[AccountId, list[Posting]] = {key: [] for key in tree.keys}
        for at in sorted(stops):
            outcome = timeline.advance(states, forest, at)
            states = outcome.states
            for key, mine in outcome.postings.items():
                postings[key] += mine if at <= max(settled[key], begun) else []
            for key, checkpoint in kept.pop(at, ()):
                if states[key] != checkpoint:
                    yield f"{_where(accounts_by_id[key])}: the anchor at {at} is not what the records give"
        found = booked.up_to(end)
        for key in sorted(tree.keys):
            yield from _compared(found[key], postings[key], accounts_by_id[key])
    for at, checkpoints in kept.items():
        for key, _ in checkpoints:
            yield f"{_where(accounts_by_id[key])}: the anchor at {at} is older than all records"


def _checkpoints(session: Session, tree: Tree) -> dict[Instant, list[tuple[AccountId, BudgetState]]]:
    found: dict[Instant, list[tuple[AccountId, BudgetState]]] = {}
    for key in tree.keys:
        for checkpoint in timelines.checkpoints(session, key):
            found.setdefault(checkpoint.at, []).append((key, checkpoint))
    return found


class _InOrder:
    """Divides bookings that come in order of time into those up to each instant, by budget."""

    def __init__(self, booked: Iterator[tuple[AccountId, Booked]]) -> None:
        self._booked = booked
        self._next = next(booked, None)

    def up_to(self, end: Instant | None) -> dict[AccountId, list[Booked]]:
        found: defaultdict[AccountId, list[Booked]] = defaultdict(list)
        while self._next is not None and (end is None or self._next[1].posting.at <= end):
            key, booked = self._next
            found[key].append(booked)
            self._next = next(self._booked, None)
        return found


def _beginnings(session: Session, forest: Forest) -> Forest:
    """Return records that begin when those of a database do."""
    starts = timelines.first_starts(session, forest.records)
    first = {key: [Claim("", at, at, 0, 1)] for key, at in starts.items()}
    return replace(forest, records={key: replace(r, claims=first.get(key, [])) for key, r in forest.records.items()})


def _compared(booked: list[Booked], wanted: list[Posting], account: BudgetAccount) -> Iterator[str]:
    wrong, missing = difference(booked, wanted)
    for one in wrong:
        yield f"{_where(account)}: transaction {one.transaction} does not follow from the records: {one.posting}"
    for posting in missing:
        yield f"{_where(account)}: missing: {posting}"


def _where(account: BudgetAccount) -> str:
    return f"{account.kind} {account.name} ({account.uid})"
