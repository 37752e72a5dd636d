# SPDX-License-Identifier: Apache-2.0
"""The loop that keeps ledger and cluster in step. It holds nothing that a restart could lose.

Each look: intervals that the pods' records open or close go into the books in one transaction; then finalizers of
paid pods go; then budget states flip where a namespace ran out or got more. All of it is decided from records, so
a crash between any two steps is made good by the next look.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.errors import NotFound, ServiceError, Unavailable
from slicekeeper.kube.client import NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.kube.watch import Watch
from slicekeeper.namespace_policy import PolicyBook, PolicyFile
from slicekeeper.settings import Settings
from slicekeeper.units import MS_PER_HOUR, format_instant
from timekeeper import interval, marks, retention, sealing
from timekeeper.books import ORPHAN, Books, Closing, Opening, Position
from timekeeper.cluster import Namespaces, Nodes, Pods
from timekeeper.counters import CLOCK_SKEW_MS
from timekeeper.evictions import Evictions
from timekeeper.gates import Gates
from timekeeper.intake import Intake, charged_request, holders_of, namespace_of
from timekeeper.released import Released
from timekeeper.store import workloads
from timekeeper.store.failures import may_succeed_later, out_of_room
from timekeeper.store.leadership import Leadership
from timekeeper.store.models import Workload
from timekeeper.strays import Strays
from timekeeper.thresholds import Thresholds

log = logging.getLogger(__name__)

SHORTEST_PAUSE = 0.2
"""Real seconds between two looks: what comes meanwhile is booked together, and a look costs more than its pods."""

KUBELET_MS = 300_000
KUBELET_SECONDS = 10.0
"""How long after a deletion's grace kubelet may still tell when the containers ended (our time, and real)."""

RETRY_SECONDS = 1.0
STUCK_SECONDS = 60.0
SEAL_MS = 60_000
"""How often periods that are to be sealed are looked for (our time)."""

SWEEP_MS = 3_600_000
"""How often what is too old is looked for (our time)."""

CONFIRM_SECONDS = 5.0


class Controller:
    """Follows the cluster's pods and keeps their charges, finalizers and budget states."""

    def __init__(
        self, settings: Settings, clock: Clock, client: KubeClient, books: Books, policy: PolicyFile,
        on_end: Callable[[str], None] = lambda _uid: None,
    ) -> None:  # fmt: skip
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
        nodes = Nodes()
        self._intake = Intake(settings, client, books.database, nodes, self.namespaces)
        self._watches = (
            Watch(client, NAMESPACES, self.namespaces),
            Watch(client, NODES, nodes),
            Watch(client, PODS, self.pods, label_selector=names.MANAGED_SELECTOR),
        )
        self._patches = ThreadPoolExecutor(8, thread_name_prefix="patch")
        self._let_go = Released(client, settings.certificates.namespace, self.pods, nodes)
        self.strays = Strays(client, self.pods, self._patches)
        margin_ms = int(settings.timekeeper.reservation_margin_seconds * 1000)
        self._gates = Gates(
            client, clock, books, self._intake, self.pods, margin_ms=margin_ms, each=self._each
        )  # fmt: skip
        self._evictions = Evictions(client, clock, books)
        self._thresholds = Thresholds(client, clock, books, self.namespaces.uid)
        self._book: PolicyBook | None = None
        self._debt_followed = False
        self._lists = 0
        self._later: dict[str, float] = {}
        self._ending: dict[str, float] = {}
        self._states: dict[str, str] = {}
        self._why: dict[str, str] = {}
        self._due: dict[str, tuple[Position, int | None]] = {}
        self._written: dict[str, tuple[str, float]] = {}
        self._confirmed = 0.0
        self._sealed = 0
        self._swept = 0
        self._looked = time.monotonic()
        self._leadership = Leadership(books.database.engine, books.cluster)
        self._leads = False

    def start(self) -> None:
        """Start to follow, in daemon threads."""
        for watch in self._watches:
            watch.start()
        threading.Thread(target=self.run, name="controller", daemon=True).start()

    def stop(self) -> None:
        """Stop after the look at hand."""
        self._stop.set()
        self._wake.set()
        for watch in self._watches:
            watch.stop()

    def nudge(self) -> None:
        """Have a look soon: a budget has changed."""
        self._wake.set()

    def namespace_uid(self, name: str) -> str:
        """Return a namespace's UID, asking the API server where the watch has not brought it.

        Raises NotFound where there is no such namespace.
        """
        uid = self.namespaces.uid(name)
        if uid is not None:
            return uid
        try:
            return str(self._client.get(NAMESPACES, name)["metadata"]["uid"])
        except NotFound as error:
            message = f"the cluster has no namespace {name}; make it first"
            raise NotFound(message, 404, "namespace-unknown") from error

    @property
    def synced(self) -> bool:
        """Whether all watches have brought their first list."""
        return all(watch.synced.is_set() for watch in self._watches)

    def trouble(self) -> str:
        """Return what is stuck, empty where nothing is."""
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
            pause = self._settings.timekeeper.controller_seconds
            if self.synced:
                try:
                    pause = min(pause, self.look() if self._lead() else pause)
                    self._looked = time.monotonic()
                except Exception as error:  # the loop outlives every error; `trouble` tells of one that stays
                    database_away = may_succeed_later(error) or out_of_room(error)
                    surprise = not (database_away or isinstance(error, ServiceError))
                    log.log(logging.ERROR if surprise else logging.WARNING, "look failed: %s", error, exc_info=surprise)
                    if database_away:
                        self._looked = time.monotonic()  # a restart would not bring it back
                    self._stop.wait(RETRY_SECONDS)
            self._clock.wait(self._wake, pause)
            self._stop.wait(max(SHORTEST_PAUSE - (time.monotonic() - begun), 0))
        self._leadership.close()

    def _lead(self) -> bool:
        """Whether this process is to look. One that has just taken over trusts nothing that it remembers."""
        led, self._leads = self._leads, False  # where nobody can know, another may have led when this one does again
        self._leads = self._leadership.held()
        if self._leads and not led:
            self.pods.mark(pod["metadata"]["uid"] for pod in self.pods.all())
            self._lists = 0
            self._debt_followed = False
            self._states.clear()
            self._written.clear()
            self._gates.start_over()
            self.strays.start_over()
            self._thresholds.start_over()
        elif not self._leads:
            there, gone = self.pods.take()  # the leader's business, but for their tokens
            for uid in (*gone, *(uid for uid, pod in there.items() if interval.is_terminal(pod))):
                self._on_end(uid)
        return self._leads

    def look(self) -> float:
        """Bring ledger and cluster in step once; return in how many seconds something is due."""
        now = self._clock.now_ms()
        self._intake.keep_inventory()
        self._follow_settings(now)
        self.strays.look(RETRY_SECONDS)
        there, gone = self._take()
        if self._lists != self.pods.lists:
            gone = self._let_go.gone() | gone
        try:
            released, done = self._account(there, gone, now)
        except Exception:
            self.pods.mark(there, gone.values())
            raise
        self._let_go.settle(done)
        if self._lists != self.pods.lists:
            self._look_for_absent(now)
        self._release(released)
        self._settle_due(now)
        self._gates.look(there, done, self._policy.of, now)
        self._flip(there, now)
        self.strays.label(there.values(), self._each)
        warned = self._thresholds.look(
            [*self._books.positions(), *self._books.parents()], self._policy.of, self._policy.book.default, now
        )
        eviction = self._evict()
        self._confirm(now)
        self._seal(now)
        dues = [due for due in (eviction, warned, *(due for _, due in self._due.values())) if due is not None]
        return max(min(dues, default=now + 3_600_000) - self._clock.now_ms(), 0) / 1000

    # Pods' intervals

    def _take(self) -> tuple[dict[str, Object], dict[str, Object]]:
        now = time.monotonic()
        again = [uid for uid, at in self._later.items() if at <= now]
        for uid in again:
            del self._later[uid]
        self.pods.mark([*again, *self._ending])
        there, gone = self.pods.take()
        for uid in [uid for uid, pod in gone.items() if marks.holds_finalizer(pod)]:
            # Nothing goes that bears our finalizer: it lost our label, and is charged all the same.
            self.strays.add(gone.pop(uid))
        return there, gone

    def _follow_settings(self, now: int) -> None:
        if not self._debt_followed:
            self._books.follow_debt(now)
            self._debt_followed = True
        book = self._policy.book
        if book is not self._book:
            known = [position.known.name for position in self._books.positions()]
            self._books.follow_policy({name: book.of(name) for name in known}, now)
            self._evictions.follow_policy(known, book.of, now if self._book else 0)
            self._book = book
            self._states.clear()  # the mode may have changed, and with it whether states are written

    def _account(
        self, there: dict[str, Object], gone: dict[str, Object], now: int
    ) -> tuple[list[Object], list[str]]:  # fmt: skip
        """Book what pods' records say; return the pods of which our finalizer may go, and all that are settled."""
        with self._books.database.reading() as session:
            rows = workloads.by_uid(session, {*there, *gone})
        openings: list[Opening] = []
        closings: list[Closing] = []
        paid: list[Object] = []
        settled: list[str] = []
        for uid, pod in (there | gone).items():
            try:
                opening, closing, done = self._read(pod, rows.get(uid), now, gone=uid in gone)
            except Unavailable as error:
                log.info("pod %s/%s waits: %s", namespace_of(pod), pod["metadata"]["name"], error)
                self._later[uid] = time.monotonic() + RETRY_SECONDS
                if uid in gone:
                    self.pods.mark([], [pod])
                continue
            openings += [opening] if opening else []
            closings += [closing] if closing else []
            if done:
                settled.append(uid)
                self._ending.pop(uid, None)
                self._written.pop(uid, None)
                self._on_end(uid)
                if uid in there and marks.holds_finalizer(pod):
                    paid.append(pod)
        if openings or closings:
            policies = {opening.namespace: self._policy.of(opening.namespace) for opening in openings}
            self._books.apply(openings, closings, policies, now)
        return paid, settled

    def _read(
        self, pod: Object, row: Workload | None, now: int, *, gone: bool
    ) -> tuple[Opening | None, Closing | None, bool]:
        """Return the interval's opening and closing as far as they are news, and whether all is settled by them."""
        uid = pod["metadata"]["uid"]
        if row is not None and row.ended_at is not None:
            return None, None, True
        opening = None
        if row is not None:
            began, holders = row.started_at, holders_of(row.holders)
        else:
            start = interval.start_of(pod)
            policy = self._policy.of(namespace_of(pod))
            opening = None if start is None else self._intake.opening(pod, start, policy, now)
            if start is None or opening is None:
                over = gone or interval.is_terminal(pod) or interval.deleted_at(pod) is not None
                if over and interval.is_bound(pod):
                    charged = charged_request(pod, policy, self._settings)
                    over = not (charged.requests or charged.whole_device_gpus)
                return None, None, over
            began, holders = start.at, holders_of(opening.holders)
        end = interval.end_of(pod, holders, began, final=gone or self._overdue(pod, now))
        if end is None and gone:
            end = interval.End(max(began, self._last_confirmed(now)), ORPHAN)
        if end is None:
            return opening, None, False
        told = interval.end_of(pod, holders, 0, final=True) or end
        ahead, behind = end.at > now + CLOCK_SKEW_MS, told.at < began - CLOCK_SKEW_MS
        skewed = ["clock-skew"] if ahead or behind else []
        flags = skewed if end.source == "finished" else [f"end-{end.source}", *skewed]
        return opening, Closing(uid, end.at, end.source, tuple(flags)), True

    def _overdue(self, pod: Object, now: int) -> bool:
        """Whether kubelet has had its time to tell how a deleted pod ended."""
        uid, deletion = pod["metadata"]["uid"], interval.deleted_at(pod)
        if deletion is None or interval.is_terminal(pod):
            return deletion is not None
        since = self._ending.setdefault(uid, time.monotonic())
        return now > deletion + KUBELET_MS and time.monotonic() - since > KUBELET_SECONDS

    def _last_confirmed(self, now: int) -> int:
        with self._books.database.reading() as session:
            return min(workloads.confirmed(session, self._books.cluster) or now, now)

    def _look_for_absent(self, now: int) -> None:
        """Close intervals whose pod vanished unseen: our finalizer was taken off, or the cluster was restored."""
        lists = self.pods.lists
        with self._books.database.reading() as session:
            still_open = workloads.open_ones(session, self._books.cluster)
        closings = []
        for uid, (namespace, name) in still_open.items():
            if self.pods.find(uid) is not None:
                continue
            try:
                pod = self._client.get(PODS, name, namespace)
            except NotFound:
                pod = None
            if pod is not None and pod["metadata"]["uid"] == uid:
                self.strays.add(pod)
                continue
            closings.append(Closing(uid, self._last_confirmed(now), ORPHAN, (f"end-{ORPHAN}",)))
        if closings:
            self._books.apply([], closings, {}, now)
        self._lists = lists

    # Marks on pods

    def _release(self, pods: list[Object]) -> None:
        self._each(pods, lambda pod: marks.release(self._client, pod))

    def _each(self, pods: list[Object], act: Callable[[Object], None]) -> None:
        """Act on pods side by side; one that failed is looked at again."""

        def attempt(pod: Object) -> None:
            try:
                act(pod)
            except ServiceError as error:
                log.info("pod %s/%s again later: %s", namespace_of(pod), pod["metadata"]["name"], error)
                self._later[pod["metadata"]["uid"]] = time.monotonic() + RETRY_SECONDS

        list(self._patches.map(attempt, pods))

    def _settle_due(self, now: int) -> None:
        due = [position.known.id for position, at in self._due.values() if at is not None and at <= now]
        self._books.settle(due, now)

    def _flip(self, changed: dict[str, Object], now: int) -> None:
        """Write the budget state on the pods that bear another one."""
        turned: set[str] = set()
        for position in self._books.positions():
            name = position.known.name
            seen = self._due.get(name)
            fresh = seen is None or seen[0] is not position or (seen[1] is not None and seen[1] <= now)
            if not fresh and name in self._states:
                continue
            self._due[name] = (position, position.due(now))
            state = position.at(now)
            wanted = names.OVER_BUDGET if state.over_budget else names.IN_BUDGET
            self._why[name] = f"namespace {name} is {wanted} since {format_instant(state.since)}"
            policy = self._policy.of(name)
            if state.over_budget and policy.evicts:
                due = format_instant(self._evictions.due(name, policy, state.since))
                self._why[name] += f"; its pods are evicted from {due} on, unless a grant or a new period comes before"
            if self._states.get(name) != wanted:
                self._states[name] = wanted
                turned.add(name)
        candidates = dict(changed)
        if turned:
            candidates |= {pod["metadata"]["uid"]: pod for pod in self.pods.all() if namespace_of(pod) in turned}
        wrong = [pod for pod in candidates.values() if self._wrong(pod)]
        self._each(wrong, lambda pod: self._write(pod, self._why[namespace_of(pod)]))

    def _wanted(self, pod: Object) -> str | None:
        """Return the state that a pod is to bear: one for which GPU time is, or will be, set aside stays in budget."""
        wanted = self._states.get(namespace_of(pod))
        return names.IN_BUDGET if wanted and self._gates.keeps_in_budget(pod) else wanted

    def _wrong(self, pod: Object) -> bool:
        namespace, uid = namespace_of(pod), pod["metadata"]["uid"]
        wanted = self._wanted(pod)
        if wanted is None or interval.is_terminal(pod) or self._policy.of(namespace).mode != "enforce":
            return False
        if marks.state_of(pod) == wanted:
            self._written.pop(uid, None)
            return False
        state, at = self._written.get(uid, ("", 0.0))
        return state != wanted or time.monotonic() - at > RETRY_SECONDS * 5

    def _write(self, pod: Object, why: str) -> None:
        wanted = self._wanted(pod) or names.IN_BUDGET
        marks.flip(self._client, self._clock, pod, wanted, why)
        self._written[pod["metadata"]["uid"]] = (wanted, time.monotonic())

    def _seal(self, now: int) -> None:
        """From time to time seal the periods that ended long enough ago, and throw away what is too old."""
        if now - self._sealed >= SEAL_MS:
            sealing.seal_due(self._books, int(self._settings.timekeeper.seal_after_hours * MS_PER_HOUR), now)
            self._sealed = now
        if now - self._swept >= SWEEP_MS:
            mine = self._settings.timekeeper
            retention.sweep(
                self._books.database, self._books.cluster, raw_days=mine.raw_days, usage_days=mine.usage_days, now=now
            )
            self._swept = now

    def _evict(self) -> int | None:
        """Evict who is to go; return when somebody is next."""
        spent = {
            name: policy
            for name, state in self._states.items()
            if state == names.OVER_BUDGET and (policy := self._policy.of(name)).evicts
        }
        return self._evictions.look(spent, self.pods.all, self._each)

    def _confirm(self, now: int) -> None:
        """Note from time to time that the watch is up, for pods that vanish unseen later."""
        if time.monotonic() - self._confirmed > CONFIRM_SECONDS and not any(w.failures for w in self._watches):
            cluster = self._books.cluster
            self._books.database.write(lambda session: workloads.confirm(session, cluster, now))
            self._confirmed = time.monotonic()
