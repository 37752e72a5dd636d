# SPDX-License-Identifier: Apache-2.0
"""The books of all namespaces: takes in records, and keeps the ledger equal to what follows from them.

The one way in is to append a record (a pod's interval, a budget rule, a grant) and to settle its namespace in the
same transaction: compute the time line from the last anchor before the change, compare with what is booked, reverse
and book the difference. So it does not matter in which order, how late or how often a record comes. What falls into a
sealed period is booked as a correction in the open one (`timekeeper.ledger.seal`); the sums come to the same.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy.orm import Session

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.errors import Conflict, NotFound
from slicekeeper.namespace_policy import NamespacePolicy
from timekeeper.core import timeline
from timekeeper.core.budget import State
from timekeeper.core.hierarchy import IN_FORCE, Tree
from timekeeper.core.posting import difference
from timekeeper.core.record import Debt, Forest, Rule
from timekeeper.ledger.budget import ANY_VERSION, Change, not_before, policy_rule, told_of, version_of
from timekeeper.ledger.intake import ORPHAN, Closing, Opening, row_of
from timekeeper.ledger.settlement import anchored, instant_of, limit_refunds, rest_of
from timekeeper.ledger.standing import Position, Together
from timekeeper.store import (
    accounts,
    audit,
    bookings,
    budget_rules,
    debts,
    memberships,
    seals,
    thresholds,
    timelines,
    workloads,
)
from timekeeper.store.accounts import Known
from timekeeper.store.budget_rules import Status
from timekeeper.store.db.database import Database
from timekeeper.store.db.models import Workload

log = logging.getLogger(__name__)

ANCHOR_EVERY = 256
ANCHOR_LAG_MS = 600_000
ANCHORS_KEPT = 64


class Books:
    """Keeps the ledger of one cluster. Safe to use from several threads.

    `carry` is what `timekeeper.debt` says: it holds where the ledger has no word of it yet, and from `follow_debt` on.
    """

    def __init__(self, database: Database, cluster: str, *, carry: bool) -> None:
        self.database = database
        self.cluster = cluster
        self._carry = carry
        self._lock = threading.Lock()
        self._trees: dict[int, tuple[int, Together]] = {}
        self._positions: dict[int, Position] = {}

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
            rows.append(row_of(opening, place.id, now))
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
            seen = max(now, end - CLOCK_SKEW_MS)  # whoever saw it over had a clock that showed as much
            ends.append(
                {"uid": closing.pod_uid, "end": end, "source": closing.source, "flags": ",".join(flags), "seen": seen}
            )
            dirty[workload.namespace_id] = min(end, dirty.get(workload.namespace_id, end))
            if closing.source == ORPHAN:
                self._note_orphan(session, workload, end, now)
        workloads.close(session, ends)
        self.settle_all(session, dirty, now)

    def _note_orphan(self, session: Session, workload: Workload, end: int, now: int) -> None:
        """Say which interval was closed although no record of the pod tells its end."""
        known = accounts.named(session, [workload.namespace_id])[workload.namespace_id]
        detail = {"podUid": workload.pod_uid, "podName": workload.pod_name, "endMs": end}
        log.warning("pod %s/%s (%s) is gone, its record too: closed", known.name, workload.pod_name, workload.pod_uid)
        self.note(session, actor="timekeeper", action="orphan-closed", about=known, detail=detail, now=now)

    def ensure(self, session: Session, uid: str, name: str, policy: NamespacePolicy, now: int) -> Known:
        """Return a namespace's account, made where there is none; or a team's or an organisation's.

        Raises NotFound where those are not there: they are made on purpose.
        """
        found = accounts.find(session, self.cluster, uid)
        if found is None and uid == accounts.parent_uid(name):
            found = accounts.require_parent(session, self.cluster, name)
        if found is None:
            rule = policy_rule(policy.budget, 0)
            found = accounts.open_account(session, self.cluster, uid, name, rule, now)
        return found

    # Settling

    def settle_in(self, session: Session, namespace: int, since: int | None, now: int) -> State:
        """Make the ledger equal to the records, and return the namespace's state then.

        `since` is the earliest instant at which the records changed; None: they have not.
        """
        return self.settle_all(session, {namespace: since}, now)[namespace]

    def settle_all(self, session: Session, dirty: Mapping[int, int | None], now: int) -> dict[int, State]:
        """Settle some namespaces, each with all that depend on it; what stands under the same root, once."""
        trees: dict[frozenset[int], tuple[Tree, list[int]]] = {}
        for namespace in sorted(dirty):
            known = next((keys for keys in trees if namespace in keys), None)
            tree = memberships.tree(session, [namespace], IN_FORCE) if known is None else trees[known][0]
            since = dirty[namespace]
            trees.setdefault(tree.keys, (tree, []))[1].extend([] if since is None else [since])
        states: dict[int, State] = {}
        for tree, instants in trees.values():
            states |= self._settle(session, tree, min(instants, default=None), now)
        return states

    def _settle(self, session: Session, tree: Tree, since: int | None, now: int) -> dict[int, State]:
        if since is not None:
            # A link that ends just then is among what changed: whom it left behind has anchors that count on it.
            tree = memberships.tree(session, tree.keys, since - 1)
            timelines.drop_anchors(session, tree.keys, since)
        tree, anchor = anchored(session, tree, since)
        until = max(now, accounts.settled_until(session, tree.keys))
        if until > now + CLOCK_SKEW_MS:
            # No replica's clock is so far ahead. What lies ahead of now is not due yet: it is taken back.
            until = now
            timelines.drop_anchors(session, tree.keys, now + 1)
            accounts.settled_at_most(session, tree.keys, now)
            tree, anchor = anchored(session, tree, now + 1 if since is None else min(since, now + 1))
        # Rows are taken from the top and in one order, so that two that write wait for each other and never in a ring.
        for root in tree.roots:
            accounts.touch(session, root)
        after = instant_of(anchor)
        forest = Forest(timelines.records(session, tree.keys, after, carry=self._carry), tree.links)
        start = timeline.begin_all(forest, until) | anchor
        outcome = timeline.advance(start, forest, until, every=ANCHOR_EVERY, settled=until - ANCHOR_LAG_MS)
        for key in sorted(tree.keys):
            wrong, missing = difference(bookings.standing(session, key, after), outcome.postings[key])
            if wrong or missing:
                floor = seals.until(session, key)
                bookings.reverse(session, key, wrong, now, floor)
                bookings.book(session, key, missing, now, floor)
            anchors = [states[key] for states in outcome.anchors if key in states]
            timelines.keep_anchors(session, key, anchors, ANCHORS_KEPT)
        for root in tree.roots:
            accounts.settled(session, root, until)
        changed = None if since is None else limit_refunds(session, tree.keys, since)
        return outcome.states if changed is None else self._settle(session, tree, changed, now)

    def pin(self, session: Session, namespace: int, at: int, now: int) -> None:
        """Settle a namespace, and keep its state at a past instant and those of all that depend on it.

        Settling can go on from there. What is due up to that instant must be booked first: nothing looks before an
        anchor again.
        """
        self.settle_in(session, namespace, None, now)
        tree, anchor = anchored(session, memberships.tree(session, [namespace], at), at)
        records = timelines.records(session, tree.keys, instant_of(anchor), carry=self._carry)
        forest = Forest(records, tree.links)
        start = timeline.begin_all(forest, now) | anchor
        begun = [key for key, state in start.items() if state.at < at]
        if begun:
            states = timeline.advance(start, forest, at).states
            for key in begun:
                timelines.keep_anchors(session, key, [states[key]], ANCHORS_KEPT)

    def settle(self, ids: Iterable[int], now: int) -> None:
        """Book what has become due by the passing of time."""
        wanted = dict.fromkeys(ids)
        if wanted:
            self.database.write(lambda session: self.settle_all(session, wanted, now))

    def come_back(self, now: int) -> None:
        """Take back what lies further ahead of now than clocks may differ: ends of pods, and what is settled.

        A ledger of an older release, or one that was kept while a clock was wrong, may have such.
        """
        latest = now + CLOCK_SKEW_MS
        with self.database.reading() as session:
            if not workloads.ended_after(session, self.cluster, latest) and not accounts.settled_after(
                session, self.cluster, latest
            ):
                return

        def change(session: Session) -> None:
            dirty: dict[int, int | None] = dict.fromkeys(accounts.settled_after(session, self.cluster, latest))
            for workload in workloads.ended_after(session, self.cluster, latest):
                known = accounts.named(session, [workload.namespace_id])[workload.namespace_id]
                detail = {"podUid": workload.pod_uid, "toldMs": workload.ended_at, "endMs": latest}
                self.note(session, actor="timekeeper", action="end-held", about=known, detail=detail, now=now)
                workloads.hold_end(session, workload, latest)
                dirty[workload.namespace_id] = latest
            self.settle_all(session, dirty, now)

        self.database.write(change)

    # Budgets

    def set_budget(
        self,
        uid: str,
        name: str,
        policy: NamespacePolicy,
        change: Change,
        *,
        actor: str,
        if_match: frozenset[str] | None,
    ) -> None:
        """Give a namespace a budget of its own from now on; whether it is suspended stays as it is.

        `change` is the rule, from `since` on, or makes it of the one in force. It is never earlier than that one, so
        of two writers whose clocks differ the later one has its way. Raises Conflict where `if_match` has not the
        budget's version and the budget is another, or it is closed.
        """

        def work(session: Session) -> None:
            rule = change if isinstance(change, Rule) else change(policy_rule(policy.budget, 0))
            place = self.ensure(session, uid, name, policy, rule.since)
            self.change_budget(session, place, change, actor=actor, if_match=if_match)

        self.database.write(work)

    def change_budget(
        self, session: Session, place: Known, change: Change, *, actor: str, if_match: frozenset[str] | None
    ) -> None:
        """Give whoever has an account another rule, as `set_budget` does."""
        row = budget_rules.rules(session, place.id)[-1]
        rule = change if isinstance(change, Rule) else change(row.rule)
        rule = replace(rule, open=row.rule.open, since=not_before(row.rule, rule.since))
        if row.source == "own" and rule.used != "anew" and row.rule.says_the_same(rule):
            return
        if if_match is not None and if_match.isdisjoint({version_of(row), ANY_VERSION}):
            raise Conflict(f"budget of {place.title}: it was changed meanwhile; read it again", 412, "version-mismatch")
        if row.status == "closed":
            raise Conflict(f"the budget of {place.title} is closed", 409, "budget-closed")
        self._rule(session, place, rule, row.status, actor=actor, source="own")
        self.note(session, actor=actor, action="budget", about=place, detail=told_of(rule), now=rule.since)

    def set_status(
        self, uid: str, name: str, policy: NamespacePolicy, status: Status, *, reason: str, actor: str, now: int
    ) -> None:
        """Suspend a budget, close it, or have it go on. While it is not active its pods are charged over budget.

        Raises Conflict where it is closed: that is for good.
        """

        def change(session: Session) -> None:
            place = self.ensure(session, uid, name, policy, now)
            self.change_status(session, place, status, reason=reason, actor=actor, now=now)

        self.database.write(change)

    def change_status(
        self, session: Session, place: Known, status: Status, *, reason: str, actor: str, now: int
    ) -> None:  # fmt: skip
        """Change whether a budget may be spent, as `set_status` does."""
        row = budget_rules.rules(session, place.id)[-1]
        if row.status == status:
            return
        if row.status == "closed":
            raise Conflict(f"the budget of {place.title} is closed", 409, "budget-closed")
        since = not_before(row.rule, now)
        rule = replace(row.rule, since=since, open=status == "active", used="counts")
        self._rule(session, place, rule, status, actor=actor, source=row.source)
        detail = {"status": status, "reason": reason}
        self.note(session, actor=actor, action="status", about=place, detail=detail, now=since)

    def _rule(self, session: Session, place: Known, rule: Rule, status: Status, *, actor: str, source: str) -> None:
        budget_rules.add_rule(session, place.id, rule, source=source, actor=actor, now=rule.since, status=status)
        self.settle_in(session, place.id, rule.since, rule.since)

    def follow_policy(self, policies: dict[str, NamespacePolicy], now: int) -> None:
        """Give namespaces without a budget of their own the policy's, from now on, where it has changed."""

        def change(session: Session) -> None:
            places = accounts.newest(session, self.cluster)
            current = budget_rules.current_rules(session, [place.id for place in places])
            for place in places:
                policy, row = policies.get(place.name), current[place.id]
                if policy is None or row.source == "own" or row.status == "closed":
                    continue
                rule = replace(policy_rule(policy.budget, not_before(row.rule, now)), open=row.rule.open)
                if not row.rule.says_the_same(rule):
                    self._rule(session, place, rule, row.status, actor="policy", source="policy")

        self.database.write(change)

    def follow_debt(self, now: int) -> None:
        """Have time over budget be owed, or forgiven, as the setting says, from now on where that has changed.

        The first word of it that a ledger gets holds from the start of time.
        """

        def change(session: Session) -> None:
            known = debts.of_cluster(session, self.cluster)
            if known and known[-1].carry == self._carry:
                return
            since = max(now, known[-1].since + 1) if known else 0
            debts.add(session, self.cluster, Debt(since, self._carry))
            if known:
                mine = {place.id for place in accounts.of_cluster(session, self.cluster)}
                touched = mine.intersection(timelines.touched_by(session, since))
                self.settle_all(session, dict.fromkeys(touched, since), now)
                detail = {"debt": debts.word(self._carry), "effectiveAt": since}
                self.note(session, actor="settings", action="debt", about=None, detail=detail, now=now)

        self.database.write(change)

    def note(
        self, session: Session, *, actor: str, action: str, about: Known | None, detail: Mapping[str, Any], now: int
    ) -> None:
        """Put into the audit log what is done in this transaction; `about` None: it concerns all."""
        if about is not None and about.kind == "namespace":
            detail = {**detail, audit.UID: about.uid}  # a name may be used again, the UID never
        title = "" if about is None else about.title
        audit.append(session, cluster=self.cluster, actor=actor, action=action, namespace=title, detail=detail, now=now)

    def note_thresholds(
        self, known: Known, period: int, used: int, limit: int, percents: Collection[int], now: int
    ) -> None:
        """Note which thresholds of a budget were told in a period, and put them into the audit log, once."""

        def change(session: Session) -> None:
            news = sorted(set(percents) - thresholds.told(session, known.id, period))
            thresholds.note(session, known.id, period, news, now)
            for percent in news:
                detail = {"percent": percent, "usedMs": used, "limitMs": limit, "periodStartMs": period}
                self.note(session, actor="timekeeper", action="threshold", about=known, detail=detail, now=now)

        self.database.write(change)

    # Positions

    def position(self, name: str) -> Position | None:
        """Return where a namespace stands; None where it has no account yet."""
        with self.database.reading() as session:
            known = accounts.find_name(session, self.cluster, name)
            return None if known is None else self._positions_of(session, [known])[0]

    def position_of(self, uid: str) -> Position | None:
        """Return where a namespace stands, deleted ones too; None if there is no account of that UID."""
        with self.database.reading() as session:
            known = accounts.find(session, self.cluster, uid)
            return None if known is None else self._positions_of(session, [known])[0]

    def all_positions(self, after: tuple[str, int], limit: int) -> list[Position]:
        """Return where all namespaces stand that ever had an account, by name and age, after a place (name and id)."""
        with self.database.reading() as session:
            return self._positions_of(session, accounts.accounts(session, self.cluster, after, limit))

    def positions(self, after: str = "", limit: int | None = None) -> list[Position]:
        """Return where all namespaces stand, in the order of names."""
        with self.database.reading() as session:
            return self._positions_of(session, accounts.newest(session, self.cluster, after, limit))

    def require_parent(self, name: str) -> Position:
        """Return where a team or an organisation stands.

        Raises NotFound where there is none of that name.
        """
        with self.database.reading() as session:
            known = accounts.require_parent(session, self.cluster, name)
            return self._positions_of(session, [known])[0]

    def parents(self, after: str = "", limit: int | None = None) -> list[Position]:
        """Return where teams and organisations stand, in the order of names."""
        with self.database.reading() as session:
            return self._positions_of(session, accounts.parents(session, self.cluster, after, limit))

    def children(self, position: Position) -> list[Position]:
        """Return where those stand that are directly under a team or an organisation, in the order of names."""
        with self.database.reading() as session:
            above = memberships.current(session, self.cluster)
            below = accounts.named(session, [c for c, parent in above.items() if parent == position.known.id])
            return self._positions_of(session, sorted(below.values(), key=lambda known: (known.name, known.id)))

    def _positions_of(self, session: Session, places: list[Known]) -> list[Position]:
        above = memberships.current(session, self.cluster)
        known = {place.id: place for place in places}
        known |= accounts.named(session, {*above.values()} - known.keys()) if above else {}
        return [self._position(session, place, above, known) for place in places]

    def _position(self, session: Session, place: Known, above: dict[int, int], known: dict[int, Known]) -> Position:
        chain = [place]
        while chain[-1].id in above:
            chain.append(known[above[chain[-1].id]])
        root = chain[-1]
        together = self._together(session, root)
        with self._lock:
            cached = self._positions.get(place.id)
        if cached is not None and cached.together is together:
            return cached
        position = Position(chain, together, budget_rules.rules(session, place.id))
        with self._lock:
            self._positions[place.id] = position
        return position

    def _together(self, session: Session, root: Known) -> Together:
        with self._lock:
            version, cached = self._trees.get(root.id, (0, None))
        if cached is not None and version == root.version:
            return cached
        now = memberships.tree(session, [root.id], IN_FORCE)
        tree, anchor = anchored(session, now, None)
        forest = Forest(timelines.records(session, tree.keys, instant_of(anchor), carry=self._carry), tree.links)
        settled = accounts.settled_until(session, tree.keys)
        start = timeline.begin_all(forest, settled) | anchor
        until = max(settled, *(state.at for state in start.values()))
        states = timeline.advance(start, forest, until).states
        rest = {key: rest_of(forest.records[key], until) for key in now.keys}
        together = Together({key: states[key] for key in now.keys}, Forest(rest, now.links))
        with self._lock:
            self._trees[root.id] = (root.version, together)
        return together

    def require(self, name: str) -> Position:
        """Return where a namespace stands.

        Raises NotFound where it has no account.
        """
        position = self.position(name)
        if position is None:
            raise NotFound(f"namespace {name} has no account yet", 404, "namespace-unknown")
        return position
