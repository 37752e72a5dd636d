# SPDX-License-Identifier: Apache-2.0
"""Explains a budget's balance: every booking that moved it, the sum so far, and the record that caused it.

Bookings stand where they fall due, corrections among those of the period that they tell of. After them comes what is
not booked yet: what is due since the namespace was last settled, the allowance of a period that no pod has drawn on,
and the pods that run. So the last sum is the balance that decisions are made of, at any instant.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

from sqlalchemy import Engine
from sqlalchemy.orm import Session

from slicekeeper.units import format_instant
from timekeeper import timeline
from timekeeper.allowances import rule_at
from timekeeper.ledger import difference, effect
from timekeeper.records import Forest, Posting, Rule
from timekeeper.sealing import period_around
from timekeeper.store import bookings, memberships, namespaces, workloads
from timekeeper.store.bookings import Caused
from timekeeper.store.models import BudgetGrant, Workload
from timekeeper.timeline import CHILD


@dataclass(frozen=True)
class Line:
    """A step of the balance; `transaction` None: it is not booked yet. Instants are RFC 3339, amounts GPU-ms."""

    at: str
    transaction: int | None
    kind: str
    amount_ms: int
    balance_ms: int
    cause: str


def explain(engine: Engine, cluster: str, name: str, at: int, *, carry: bool, parent: bool = False) -> list[Line]:
    """Return the steps of a namespace's balance, or a parent's, up to an instant; the last one has the balance.

    Raises NotFound where it has no account.
    """
    with Session(engine, expire_on_commit=False) as session, session.begin():
        known = (namespaces.require_parent if parent else namespaces.require_name)(session, cluster, name)
        tree = memberships.tree(session, [known.id], None)
        forest = Forest(namespaces.records(session, tree.keys, None, carry=carry), tree.links)
        below = [key for key in tree.keys if known.id in timeline.chain(tree.links, key, at)]
        causes = _Causes(session, known.id, below, [row.rule for row in namespaces.rules(session, known.id)])
        start = timeline.begin_all(forest, at)
        outcome = timeline.advance(start, forest, max(at, *(state.at for state in start.values())))
        booked = bookings.causes(session, known.id, at)
        _, due = difference(
            [one for one in bookings.standing(session, known.id, None) if one.posting.at <= at],
            outcome.postings[known.id],
        )
        lines = [*map(causes.of_booking, booked), *(causes.of_due(posting) for posting in due)]
    state = outcome.states[known.id]
    if not state.period.booked and state.period.amount:
        lines.append(Line(format_instant(at), None, "allowance", state.period.amount, 0, "no pod has drawn on it yet"))
    for key in sorted(below):
        mine = outcome.states[key]
        for claim in () if mine.over_budget else forest.records[key].claims:
            since = max(claim.start, mine.cut)
            if claim.start <= at and (claim.end is None or claim.end > at) and claim.gross(at) > claim.gross(since):
                cause = f"{causes.pod(claim.key)} runs, since {format_instant(since)}"
                amount = claim.gross(since) - claim.gross(at)
                lines.append(Line(format_instant(at), None, "charge", amount, 0, cause))
    return list(_summed(lines))


def _summed(lines: Iterable[Line]) -> Iterator[Line]:
    balance = 0
    for line in lines:
        balance += line.amount_ms
        if line.amount_ms:
            yield replace(line, balance_ms=balance)


class _Causes:
    """The records of a namespace, for telling which of them caused a booking."""

    def __init__(self, session: Session, namespace: int, below: list[int], rules: list[Rule]) -> None:
        self._rules = rules
        self._pods: dict[str, Workload] = {
            pod.pod_uid: pod for key in below for pod in workloads.of_namespace(session, key, -1)
        }
        self._children = {
            f"{CHILD}{key}": f"all under {known.title}"
            for key, known in namespaces.named(session, memberships.tree(session, [namespace], None).keys).items()
        }
        self._grants: dict[str, BudgetGrant] = {
            f"{row.kind}:{row.id}": row
            for kind in ("grant", "refund", "adjustment", "transfer")
            for row in namespaces.grants(session, namespace, kind)
        }

    def of_booking(self, booked: Caused) -> Line:
        """Return the line of a booking."""
        posting = booked.posting
        cause = self._cause(posting)
        if booked.reverses is not None:
            cause = f"takes back transaction {booked.reverses}: {cause}"
        if booked.corrects:
            cause += f"; correction, effective {format_instant(booked.effective_at)}"
        amount = effect(posting.kind, "budget", posting.amount)
        return Line(format_instant(posting.at), booked.transaction, posting.kind, amount, 0, cause)

    def of_due(self, posting: Posting) -> Line:
        """Return the line of what is not booked yet."""
        amount = effect(posting.kind, "budget", posting.amount)
        return Line(format_instant(posting.at), None, posting.kind, amount, 0, f"{self._cause(posting)}; due")

    def pod(self, uid: str) -> str:
        """Return how a person knows a pod."""
        pod = self._pods.get(uid)
        return f"pod {uid}" if pod is None else f"pod {pod.pod_name} ({uid})"

    def _cause(self, posting: Posting) -> str:
        if posting.key in self._grants:
            row = self._grants[posting.key]
            other = f", {row.counterpart}" if row.counterpart else ""
            return f"{row.kind} {row.id} by {row.actor}{other}: {row.reason}"
        if posting.key.startswith(("period:", "debt:")):
            rule = rule_at(self._rules, posting.at if posting.kind == "allowance" else posting.at - 1)
            since = format_instant(period_around(self._rules, posting.at)[0])
            if posting.kind == "expiry":
                return f"left of {posting.key} ({rule.amount} per {rule.period}, {rule.zone})"
            return f"{rule.amount} per {rule.period}, {rule.zone}, since {since}"
        if posting.key in self._children:
            return f"{self._children[posting.key]} from {format_instant(posting.start)}"
        pod = self._pods.get(posting.key)
        ended = pod is not None and pod.ended_at == posting.at
        why = f", ended ({pod.end_source})" if pod is not None and ended else ""
        return f"{self.pod(posting.key)} from {format_instant(posting.start)}{why}"
