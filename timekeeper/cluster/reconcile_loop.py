# SPDX-License-Identifier: Apache-2.0
"""The loop that keeps ledger and cluster in step. It has no state that a restart could lose.

A look is a list of steps: intervals that open or close according to the pods' records are booked in one transaction;
finalizers of charged pods are removed; budget states change when a namespace's budget is spent or gets more. If a step
fails, the next look repeats it, and the other steps still run. All decisions follow from records, so a crash between
any two steps does no harm either.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from slicekeeper import names, threads
from slicekeeper.clock import Clock
from slicekeeper.config.policy import PolicyBook
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import Settings
from slicekeeper.errors import NotFound, ServiceError
from slicekeeper.kube.client import NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.kube.pod import full_name, has_ended, has_finalizer
from slicekeeper.kube.watch import Watch
from slicekeeper.units import MS_PER_HOUR, Instant
from timekeeper.cluster import pod_patch
from timekeeper.cluster.accepted_policy import AcceptedPolicy
from timekeeper.cluster.break_glass_records import ReleasedPods
from timekeeper.cluster.budget_state import BudgetStates
from timekeeper.cluster.charge_booking import Intervals
from timekeeper.cluster.gated_pods import GatedPods
from timekeeper.cluster.hard_budget_eviction import Evictions
from timekeeper.cluster.lost_label import StrayPods
from timekeeper.cluster.node_clock import NodeClocks
from timekeeper.cluster.opening import Openings
from timekeeper.cluster.threshold_notices import Thresholds
from timekeeper.cluster.vanished_pod import VanishedPods
from timekeeper.cluster.watches import ClusterNodes, Namespaces, Pods
from timekeeper.core.account import AccountId
from timekeeper.core.refusal import LedgerError, NamespaceUnknown
from timekeeper.ledger import retention, seal, settlement
from timekeeper.ledger.books import Books
from timekeeper.ledger.budget import follow_policy
from timekeeper.ledger.debt import follow_debt
from timekeeper.store import workloads
from timekeeper.store.db.failures import is_away
from timekeeper.store.db.leadership import Leadership

log = logging.getLogger(__name__)

SHORTEST_PAUSE = 0.2
"""Real seconds between two looks: changes in between are booked together, and a look costs more than its pods."""

RETRY_SECONDS = 1.0
"""Real seconds before a look that failed is repeated."""

STUCK_SECONDS = 60.0
"""Real seconds without a finished look after which a restart may help."""

SEAL_MS = 60_000
"""Interval between searches for periods to seal (in our time)."""

FOLLOW_SECONDS = 60.0
"""Interval at which the policy is compared with the budgets' rules: another replica may have used an older policy."""

SWEEP_MS = 3_600_000
"""Interval between searches for old data (in our time)."""

CONFIRM_SECONDS = 5.0
"""Interval at which it is recorded that the watch is up: a pod that vanished unseen may end that much too early."""


class Controller:
    """Follows the cluster's pods and keeps their charges, finalizers and budget states."""

    def __init__(
        self,
        settings: Settings,
        clock: Clock,
        client: KubeClient,
        books: Books,
        policy: PolicyFile,
        on_end: Callable[[str], None] = lambda _uid: None,
    ) -> None:
        self._settings = settings
        self._clock = clock
        self._client = client
        self._books = books
        self._policy = policy
        self._on_end = on_end
        self._wake = threading.Event()
        self._stop = threading.Event()
        self.pods = Pods(self._wake)
        self.namespaces = Namespaces()
        self.nodes = nodes = ClusterNodes()
        self._openings = Openings(settings, client, books.database, nodes, self.namespaces)
        self._watches = (
            Watch(client, NAMESPACES, self.namespaces),
            Watch(client, NODES, nodes),
            Watch(client, PODS, self.pods, label_selector=names.MANAGED_SELECTOR),
        )
        self._patches = ThreadPoolExecutor(8, thread_name_prefix="patch")
        self._released = ReleasedPods(client, settings.certificates.namespace, self.pods, nodes)
        self._accepted = AcceptedPolicy(client, settings.certificates.namespace, policy)
        self.strays = StrayPods(client, self.pods, self._patches)
        self._intervals = Intervals(
            settings, books, policy, self.pods, self._openings, self.strays, NodeClocks(client), self._fail
        )
        self._evictions = Evictions(client, clock, books)
        self._book: PolicyBook | None = None
        self._begin()
        self._failures: list[Exception] = []
        self._confirmed = 0.0
        self._sealed = 0
        self._swept = 0
        self._looked = time.monotonic()
        self._leadership = Leadership(books.database.engine, books.cluster)
        self._leads = False

    def _begin(self) -> None:
        """Begin as after a restart, with nothing remembered: another process may have led in the meantime."""
        client, clock, books, policy = self._client, self._clock, self._books, self._policy
        self._vanished = VanishedPods(client, books, self.pods, self._intervals, self.strays, self._fail)
        margin_ms = int(self._settings.timekeeper.reservation_margin_seconds * 1000)
        self._gated_pods = GatedPods(
            client, clock, books, self._openings, self.pods, margin_ms=margin_ms, each=self._each, fail=self._fail
        )
        self._budget_states = BudgetStates(
            client, clock, books, policy, self.pods, self._gated_pods, self._evictions, self._each
        )
        self._thresholds = Thresholds(client, clock, books, self.namespaces.uid)
        self._followed = -math.inf
        self._debt_followed = False
        self._paid: set[str] = set()
        """Pods whose finalizer is to be removed."""
        self._to_label: set[str] = set()
        """Pods whose label is to be checked."""
        self._for_gated_pods: tuple[dict[str, Object], set[str]] = ({}, set())
        """Pods that have changed, and the UIDs of settled ones, for the gates."""
        self._unsettled: set[AccountId] = set()
        """Accounts in which something has fallen due."""

    def start(self) -> None:
        """Start to follow, in daemon threads."""
        for watch in self._watches:
            watch.start()
        threads.keep("controller", self.run, self._stop.is_set)

    def stop(self) -> None:
        """Stop after the current look."""
        self._stop.set()
        self._wake.set()
        for watch in self._watches:
            watch.stop()

    def nudge(self) -> None:
        """Look soon, because a budget has changed."""
        self._wake.set()

    def namespace_uid(self, name: str) -> str:
        """Return a namespace's UID, from the API server if the watch has not seen it.

        Raises NamespaceUnknown if there is no such namespace.
        """
        uid = self.namespaces.uid(name)
        if uid is not None:
            return uid
        try:
            return str(self._client.get(NAMESPACES, name)["metadata"]["uid"])
        except NotFound as error:
            message = f"the cluster has no namespace {name}; create it first"
            raise NamespaceUnknown(message) from error

    @property
    def synced(self) -> bool:
        """Whether all watches have listed once and the policy is complete; the file alone might have pods evicted."""
        return self._policy.complete.is_set() and all(watch.synced.is_set() for watch in self._watches)

    def trouble(self) -> str:
        """Return what has stopped working; empty if everything works."""
        age = time.monotonic() - self._looked
        if age > STUCK_SECONDS:
            return f"the controller has not finished a look for {age:.0f} s"
        failing = [watch for watch in self._watches if watch.failures > 20]
        return "a watch of the API server has failed more than 20 times in a row" if failing else ""

    def run(self) -> None:
        """Look, wait, look again, until `stop`."""
        while not self._stop.is_set():
            begun = time.monotonic()
            self._wake.clear()
            self._failures = []
            pause = self._settings.timekeeper.controller_seconds
            if self.synced:
                try:
                    pause = min(pause, self.look() if self._lead() else pause)
                    self._looked = time.monotonic()
                except Exception as error:  # noqa: BLE001 - the loop outlives every error; `trouble` names one that stays
                    if all(map(is_away, self._failures or [error])):
                        self._looked = time.monotonic()  # a restart would not bring the database back
                    if not self._failures:
                        _log("the look", error)
                    self._stop.wait(RETRY_SECONDS)
            self._clock.wait(self._wake, pause)
            self._stop.wait(max(SHORTEST_PAUSE - (time.monotonic() - begun), 0))
        self._leadership.close()

    def _lead(self) -> bool:
        """Whether this process leads. One that has just taken over forgets everything that it remembers."""
        led, self._leads = self._leads, False  # in case of an error: until this process leads again, another may lead
        self._leads = self._leadership.held()
        if self._leads and not led:
            self.pods.mark(pod["metadata"]["uid"] for pod in self.pods.all())
            self.strays.start_over()
            self._begin()
        elif not self._leads:
            there, gone = self.pods.take()  # only the tokens of ended pods matter in a process that does not lead
            for uid in (*gone, *(uid for uid, pod in there.items() if has_ended(pod))):
                self._on_end(uid)
        return self._leads

    def look(self) -> float:
        """Bring ledger and cluster in step once; return in how many seconds something is due.

        Raises the first error of a step after all steps have been executed.

        One look suffices because of the order: GPUs are known before the intervals that need their models, intervals
        are booked before finalizers are removed and budgets judged, and states are known before pods are evicted.
        """
        now = self._clock.now_ms()
        self._failures = []
        steps: tuple[tuple[str, Callable[[], Instant | None]], ...] = (
            ("GPUs", self._openings.keep_inventory),
            ("settings", lambda: self._follow_settings(now)),
            ("strays", lambda: self.strays.look(RETRY_SECONDS)),
            ("intervals", lambda: self._keep_intervals(now)),
            ("finalizers", self._release),
            ("dues", lambda: self._settle_due(now)),
            ("gates", lambda: self._look_at_gated_pods(now)),
            ("budget states", lambda: self._budget_states.look(now)),
            ("labels", self._label),
            ("thresholds", lambda: self._warn(now)),
            ("evictions", self._evict),
            ("watch", lambda: self._confirm(now)),
            ("seals", lambda: self._seal(now)),
        )
        dues: list[Instant] = []
        for name, step in steps:
            try:
                due = step()
                dues += [] if due is None else [due]
            except Exception as error:  # noqa: BLE001 - an error of one step does not affect the others
                self._fail(name, error)
        if self._failures:
            raise self._failures[0]
        dues += self._budget_states.dues()
        return max(min(dues, default=now + 3_600_000) - self._clock.now_ms(), 0) / 1000

    def _fail(self, what: str, error: Exception) -> None:
        """Note that the next look must repeat a part of this one."""
        _log(what, error)
        self._failures.append(error)

    # Pods' intervals

    def _follow_settings(self, now: Instant) -> None:
        if not self._debt_followed:
            follow_debt(self._books, now)
            self._debt_followed = True
        book, before = self._policy.book, self._book
        if book is before and time.monotonic() - self._followed < FOLLOW_SECONDS:
            return
        namespaces = [standing.account.name for standing in self._books.standings()]
        if self._settings.policy.accepted_file:
            self._accepted.keep()
        follow_policy(self._books, {name: book.of(name) for name in namespaces}, now, book.origin_of)
        self._followed = time.monotonic()
        if book is not before:
            self._evictions.follow_policy(namespaces, book.of, before.of if before else book.of, now)
            self._book = book
            self._budget_states.judge_again()

    def _keep_intervals(self, now: Instant) -> None:
        """Book the intervals of changed pods, and pass on what the other steps have to do."""
        there, gone = self._intervals.take()
        listed = self._vanished.due
        try:
            if listed:
                gone = self._released.gone() | gone
            paid, settled = self._intervals.book(there, gone, now)
        except Exception:
            # They are no longer marked as changed, and no event will show them again.
            self.pods.mark(there, gone.values())
            raise
        for uid in settled:
            self._budget_states.forget(uid)
            self._on_end(uid)
        self._paid |= paid
        self._budget_states.mark(there)
        self._to_label |= there.keys()
        changed, done = self._for_gated_pods
        self._for_gated_pods = changed | there, done | set(settled)
        self._released.settle(settled)
        if listed:  # after the released pods are booked, so that their ends are known
            self._vanished.look(now)

    # Marks on pods

    def _release(self) -> None:
        pods = [pod for pod in map(self.pods.find, self._paid) if pod is not None and has_finalizer(pod)]
        self._each(pods, lambda pod: pod_patch.release(self._client, pod))
        self._paid.clear()

    def _each(self, pods: list[Object], act: Callable[[Object], None]) -> None:
        """Act on pods concurrently; those for which that fails are read again soon."""

        def attempt(pod: Object) -> None:
            what = f"pod {full_name(pod)}"
            try:
                act(pod)
            except (LedgerError, ServiceError) as error:
                log.info("%s again later: %s", what, error)
            except Exception as error:  # noqa: BLE001 - an error with one pod does not affect the others
                self._fail(what, error)
            else:
                return
            self._intervals.retry(pod["metadata"]["uid"])

        list(self._patches.map(attempt, pods))

    def _label(self) -> None:
        self.strays.label([pod for pod in map(self.pods.find, self._to_label) if pod is not None], self._each)
        self._to_label.clear()

    def _settle_due(self, now: Instant) -> None:
        """Book what has fallen due, and settle again what was settled beyond the present."""
        self._unsettled |= self._budget_states.fallen_due(now)
        settlement.settle(self._books, self._unsettled, now)
        self._unsettled.clear()
        settlement.reverse_future(self._books, now)

    def _look_at_gated_pods(self, now: Instant) -> None:
        changed, done = self._for_gated_pods
        self._gated_pods.look(changed, done, self._policy.of, now)
        self._for_gated_pods = {}, set()

    def _seal(self, now: Instant) -> None:
        """From time to time, seal the periods whose grace is over, and delete old data."""
        if now - self._sealed >= SEAL_MS:
            seal.seal_due(self._books, int(self._settings.timekeeper.seal_after_hours * MS_PER_HOUR), now)
            self._sealed = now
        if now - self._swept >= SWEEP_MS:
            mine = self._settings.timekeeper
            retention.sweep(
                self._books.database, self._books.cluster, raw_days=mine.raw_days, usage_days=mine.usage_days, now=now
            )
            self._swept = now

    def _evict(self) -> Instant | None:
        """Evict the pods that are due; return when the next ones are."""
        spent = {name: policy for name in self._budget_states.over_budget() if (policy := self._policy.of(name)).evicts}
        return self._evictions.look(spent, self.pods.all, self._each)

    def _warn(self, now: Instant) -> Instant | None:
        """Announce which thresholds were crossed; return when the next one is due."""
        standings = [*self._books.standings(), *self._books.parents()]
        return self._thresholds.look(standings, self._policy.of, self._policy.book.default, now)

    def _confirm(self, now: Instant) -> None:
        """From time to time, note that the watch is up: pods that vanish unseen later still ran at that instant."""
        if time.monotonic() - self._confirmed > CONFIRM_SECONDS and not any(w.failures for w in self._watches):
            cluster = self._books.cluster
            self._books.database.write(lambda session: workloads.confirm(session, cluster, now))
            self._confirmed = time.monotonic()


def _log(what: str, error: Exception) -> None:
    """Log what failed; with a traceback if the error is unexpected."""
    unexpected = not (is_away(error) or isinstance(error, LedgerError | ServiceError))
    level = logging.ERROR if unexpected else logging.WARNING
    log.log(level, "look failed at %s: %s", what, error, exc_info=error if unexpected else None)
