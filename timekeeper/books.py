# SPDX-License-Identifier: Apache-2.0
"""The books of all namespaces: takes in records, and keeps the ledger equal to what follows from them.

The one way in is to append a record (a pod's interval, a budget rule, a grant) and to settle its namespace in the
same transaction: compute the time line from the last anchor before the change, compare with what is booked, reverse
and book the difference. So it does not matter in which order, how late or how often a record comes. What falls into a
sealed period is booked as a correction in the open one (`timekeeper.sealing`); the sums come to the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, Final

from sqlalchemy.orm import Session

from slicekeeper.errors import Conflict, NotFound
from slicekeeper.namespace_policy import BudgetPolicy, NamespacePolicy
from timekeeper import ledger, timeline
from timekeeper.allowances import State
from timekeeper.records import Claim, Forest, Records, Rule
from timekeeper.store import audit, bookings, namespaces, prices, seals, workloads
from timekeeper.store.database import Database
from timekeeper.store.models import Workload
from timekeeper.store.namespaces import Known, RuleRow, Status

log = logging.getLogger(__name__)

ORPHAN: Final = "last-confirmed"
"""How an interval ends whose pod vanished without our finalizer's knowledge."""

ANCHOR_EVERY = 256
ANCHOR_LAG_MS = 600_000
ANCHORS_KEPT = 64
MAX_AMOUNT_MS = 10**14
"""3,170 GPU-years in one budget or grant; and ten thousand such grants still fit 64 bits."""


@dataclass(frozen=True)
class Opening:
    """A pod that holds GPUs, as it is when first seen."""

    pod_uid: str
    pod_name: str
    namespace: str
    namespace_uid: str
    node: str
    gpus: tuple[str, ...]
    holders: str
    gpu_class: str
    shares: Mapping[str, Fraction]
    """GPUs held per millisecond before prices, by model."""
    start: int
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Closing:
    """The end of a pod's interval."""

    pod_uid: str
    end: int
    source: str
    flags: tuple[str, ...] = ()


class Position:
    """Where a namespace stands, good until its records change: the state at any later instant follows from it."""

    def __init__(
        self, known: Known, state: State, records: Records, rules: list[RuleRow], book: prices.PriceBook
    ) -> None:
        self.known = known
        self._prices = book
        self.records = records
        self.rule = rules[-1]
        self._rules = rules
        self._lock = threading.Lock()
        self._state = state
        self._run_out: int | None = None
        self._forecast_for: int | None = None

    def at(self, now: int) -> State:
        """Return the state at an instant, at least that at which the namespace was settled."""
        with self._lock:
            if now > self._state.at:
                self._state = timeline.advance({0: self._state}, Forest({0: self.records}), now).states[0]
            return self._state

    def run_out(self, now: int) -> int | None:
        """Return when the namespace will be exhausted if the pods that run now go on."""
        state = self.at(now)
        with self._lock:
            if self._forecast_for != state.cut:
                self._run_out = timeline.run_outs({0: state}, Forest({0: self.records})).get(0)
                self._forecast_for = state.cut
        return self._run_out

    def claim(self, pod_uid: str, start: int, shares: str) -> Claim:
        """Return the claim of a pod that runs."""
        return self._prices.claim(pod_uid, start, None, shares)

    def due(self, now: int) -> int | None:
        """Return the next instant at which the namespace's state may change by itself."""
        state = self.at(now)
        instants = (self.run_out(now), timeline.next_turn({0: state}, Forest({0: self.records}), 0))
        return min((instant for instant in instants if instant is not None), default=None)


def policy_rule(budget: BudgetPolicy, since: int) -> Rule:
    """Return the rule of a policy's default budget."""
    return Rule(since, budget.amount_ms, budget.period, budget.time_zone)


class Books:
    """Keeps the ledger of one cluster. Safe to use from several threads."""

    def __init__(self, database: Database, cluster: str, *, carry: bool) -> None:
        self.database = database
        self.cluster = cluster
        self._carry = carry
        self._lock = threading.Lock()
        self._positions: dict[int, tuple[int, Position]] = {}

    # Pods

    def apply(
        self,
        openings: Collection[Opening],
        closings: Collection[Closing],
        policies: dict[str, NamespacePolicy],
        now: int,
    ) -> None:
        """Append intervals that opened and ended, and settle their namespaces, in one transaction."""
        self.database.write(lambda session: self._apply(session, openings, closings, policies, now))

    def _apply(
        self,
        session: Session,
        openings: Collection[Opening],
        closings: Collection[Closing],
        policies: dict[str, NamespacePolicy],
        now: int,
    ) -> None:
        dirty: dict[int, int] = {}
        known = workloads.by_uid(session, {o.pod_uid for o in openings})
        rows = []
        for opening in openings:
            if opening.pod_uid in known:
                continue
            place = self.ensure(session, opening.namespace_uid, opening.namespace, policies[opening.namespace], now)
            rows.append(_row(opening, place.id, now))
            dirty[place.id] = min(opening.start, dirty.get(place.id, opening.start))
        workloads.add(session, rows)
        ends: list[dict[str, Any]] = []
        ending = workloads.by_uid(session, {c.pod_uid for c in closings})
        for closing in closings:
            workload = ending.get(closing.pod_uid)
            if workload is None or workload.ended_at is not None:
                continue
            end = max(closing.end, workload.started_at)
            flags = sorted({*filter(None, workload.flags.split(",")), *closing.flags})
            ends.append({"uid": closing.pod_uid, "end": end, "source": closing.source, "flags": ",".join(flags)})
            dirty[workload.namespace_id] = min(end, dirty.get(workload.namespace_id, end))
            if closing.source == ORPHAN:
                self._note_orphan(session, workload, end, now)
        workloads.close(session, ends)
        for namespace, since in dirty.items():
            self.settle_in(session, namespace, since, now)

    def _note_orphan(self, session: Session, workload: Workload, end: int, now: int) -> None:
        """Say which interval was closed although no record of the pod tells its end."""
        name = workloads.namespace_names(session, [workload.namespace_id])[workload.namespace_id]
        detail = {"podUid": workload.pod_uid, "podName": workload.pod_name, "endMs": end}
        log.warning("pod %s/%s (%s) is gone, its record too: closed", name, workload.pod_name, workload.pod_uid)
        self.note(session, actor="timekeeper", action="orphan-closed", namespace=name, detail=detail, now=now)

    def ensure(self, session: Session, uid: str, name: str, policy: NamespacePolicy, now: int) -> Known:
        """Return a namespace's account, made where there is none."""
        found = namespaces.find(session, self.cluster, uid)
        if found is None:
            rule = policy_rule(policy.budget, 0)
            found = namespaces.open_account(session, self.cluster, uid, name, rule, now)
        return found

    # Settling

    def settle_in(self, session: Session, namespace: int, since: int | None, now: int) -> State:
        """Make the ledger equal to the records, and return the state then.

        `since` is the earliest instant at which the records changed; None: they have not.
        """
        if since is not None:
            namespaces.drop_anchors(session, namespace, since)
        anchor = namespaces.anchor_before(session, namespace, since)
        after = None if anchor is None else anchor.at
        records = namespaces.records(session, namespace, after, carry=self._carry)
        until = max([now, namespaces.settled_until(session, namespace), *(c.end or 0 for c in records.claims)])
        start = anchor or timeline.begin(records, until)
        forest = Forest({namespace: records})
        outcome = timeline.advance({namespace: start}, forest, until, every=ANCHOR_EVERY, settled=until - ANCHOR_LAG_MS)
        wrong, missing = ledger.difference(bookings.standing(session, namespace, after), outcome.postings[namespace])
        floor = seals.until(session, namespace)
        bookings.reverse(session, namespace, wrong, now, floor)
        bookings.book(session, namespace, missing, now, floor)
        namespaces.keep_anchors(session, namespace, [anchor[namespace] for anchor in outcome.anchors], ANCHORS_KEPT)
        namespaces.settled(session, namespace, until)
        return outcome.states[namespace]

    def settle(self, ids: Iterable[int], now: int) -> None:
        """Book what has become due by the passing of time."""
        wanted = list(ids)

        def change(session: Session) -> None:
            for namespace in wanted:
                self.settle_in(session, namespace, None, now)

        if wanted:
            self.database.write(change)

    # Budgets

    def set_budget(
        self, uid: str, name: str, policy: NamespacePolicy, rule: Rule, *, actor: str, if_match: str | None
    ) -> None:
        """Give a namespace a budget of its own from `rule.since` on; whether it is suspended stays as it is.

        Raises Conflict where `if_match` is not the budget's version and the budget is another, or it is closed.
        """

        def change(session: Session) -> None:
            place = self.ensure(session, uid, name, policy, rule.since)
            row = namespaces.rules(session, place.id)[-1]
            wanted = replace(rule, open=row.rule.open)
            if row.source == "own" and row.rule == replace(wanted, since=row.rule.since):
                return
            if if_match is not None and if_match != version_of(row):
                raise Conflict(f"budget of {name}: it was changed meanwhile; read it again", 412, "version-mismatch")
            if row.status == "closed":
                raise Conflict(f"the budget of {name} is closed", 409, "budget-closed")
            detail = {
                "amountMs": rule.amount, "period": rule.period, "timeZone": rule.zone,
                "creditMs": rule.credit, "rolloverMs": rule.rollover,
            }  # fmt: skip
            self._rule(session, place, wanted, row.status, actor=actor, source="own")
            self.note(session, actor=actor, action="budget", namespace=name, detail=detail, now=rule.since)

        self.database.write(change)

    def set_status(
        self, uid: str, name: str, policy: NamespacePolicy, status: Status, *, reason: str, actor: str, now: int
    ) -> None:
        """Suspend a budget, close it, or have it go on. While it is not active its pods are charged over budget.

        Raises Conflict where it is closed: that is for good.
        """

        def change(session: Session) -> None:
            place = self.ensure(session, uid, name, policy, now)
            row = namespaces.rules(session, place.id)[-1]
            if row.status == status:
                return
            if row.status == "closed":
                raise Conflict(f"the budget of {name} is closed", 409, "budget-closed")
            rule = replace(row.rule, since=now, open=status == "active")
            self._rule(session, place, rule, status, actor=actor, source=row.source)
            detail = {"status": status, "reason": reason}
            self.note(session, actor=actor, action="status", namespace=name, detail=detail, now=now)

        self.database.write(change)

    def _rule(self, session: Session, place: Known, rule: Rule, status: Status, *, actor: str, source: str) -> None:
        namespaces.add_rule(session, place.id, rule, source=source, actor=actor, now=rule.since, status=status)
        self.settle_in(session, place.id, rule.since, rule.since)

    def follow_policy(self, policies: dict[str, NamespacePolicy], now: int) -> None:
        """Give namespaces without a budget of their own the policy's, from now on, where it has changed."""

        def change(session: Session) -> None:
            places = namespaces.newest(session, self.cluster)
            current = namespaces.current_rules(session, [place.id for place in places])
            for place in places:
                policy, row = policies.get(place.name), current[place.id]
                if policy is None or row.source == "own" or row.status == "closed":
                    continue
                rule = replace(policy_rule(policy.budget, now), open=row.rule.open)
                if row.rule != replace(rule, since=row.rule.since):
                    self._rule(session, place, rule, row.status, actor="policy", source="policy")

        self.database.write(change)

    def note(
        self, session: Session, *, actor: str, action: str, namespace: str, detail: dict[str, Any], now: int
    ) -> None:
        """Put into the audit log what somebody does in this transaction."""
        audit.append(
            session, cluster=self.cluster, actor=actor, action=action, namespace=namespace, detail=detail, now=now
        )

    # Positions

    def position(self, name: str) -> Position | None:
        """Return where a namespace stands; None where it has no account yet."""
        with self.database.reading() as session:
            known = namespaces.find_name(session, self.cluster, name)
            return None if known is None else self._position(session, known)

    def positions(self, after: str = "", limit: int | None = None) -> list[Position]:
        """Return where all namespaces stand, in the order of names."""
        with self.database.reading() as session:
            places = namespaces.newest(session, self.cluster, after, limit)
            return [self._position(session, place) for place in places]

    def _position(self, session: Session, known: Known) -> Position:
        with self._lock:
            version, cached = self._positions.get(known.id, (0, None))
        if cached is not None and version == known.version:
            return cached
        anchor = namespaces.anchor_before(session, known.id, None)
        after = None if anchor is None else anchor.at
        records = namespaces.records(session, known.id, after, carry=self._carry)
        start = anchor or timeline.begin(records, known.settled_at)
        state = timeline.advance({0: start}, Forest({0: records}), max(known.settled_at, start.at)).states[0]
        rest = Records(
            claims=[c for c in records.claims if c.end is None or c.end > state.at],
            rules=records.rules,
            grants=[g for g in records.grants if g.since > state.at],
            carry=self._carry,
            withdrawals=[w for w in records.withdrawals if w.at > state.at],
        )
        position = Position(known, state, rest, namespaces.rules(session, known.id), prices.read(session))
        with self._lock:
            self._positions[known.id] = (known.version, position)
        return position

    def require(self, name: str) -> Position:
        """Return where a namespace stands.

        Raises NotFound where it has no account.
        """
        position = self.position(name)
        if position is None:
            raise NotFound(f"namespace {name} has no account yet", 404, "namespace-unknown")
        return position


def version_of(row: RuleRow) -> str:
    """Return the entity tag of a budget: it changes when the rule does, not when time is spent."""
    return f'"{row.source}-{row.id}"'


def _row(opening: Opening, namespace: int, now: int) -> dict[str, Any]:
    return {
        "pod_uid": opening.pod_uid,
        "namespace_id": namespace,
        "pod_name": opening.pod_name,
        "node": opening.node,
        "gpus": ",".join(opening.gpus),
        "holders": opening.holders,
        "gpu_class": opening.gpu_class,
        "shares": prices.encode_shares(opening.shares),
        "opened_at": now,
        "started_at": opening.start,
        "ended_at": None,
        "end_source": "",
        "flags": ",".join(opening.flags),
        "heard_at": None,
        "models": ",".join(sorted(filter(None, opening.shares)))[:253],
        "gpus_ppm": round(sum(opening.shares.values()) * 1_000_000),
    }
