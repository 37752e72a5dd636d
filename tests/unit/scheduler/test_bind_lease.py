# SPDX-License-Identifier: Apache-2.0
"""Two extenders that are both asked to bind: one at a time may, and knows then what the other has bound."""

import random
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from types import SimpleNamespace

import orjson
import pytest
from support.manual_clock import ManualClock
from support.small_cluster import SmallCluster, binding, lost_after, lost_before

from scheduler.bind_lease import BINDER_LEASE
from scheduler.binder import REQUEST_SECONDS
from scheduler.extender import filter_nodes, gpu_pod
from scheduler.scheduler_process import Scheduler
from simulator.api import Api
from simulator.api_errors import ApiError
from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings, SchedulerSettings, Settings
from slicekeeper.kube.client import LEASES, NODES, PODS

LEASE_SECONDS = 15.0
RENEW_SECONDS = 2.0


class Time:
    """Real time and the wall clock, moved by hand."""

    def __init__(self):
        self.now = 1000.0
        self.clock = ManualClock(1_800_000_000_000)

    def after(self, seconds):
        self.now += seconds
        self.clock.advance(int(seconds * 1000))

    def monotonic(self):
        return self.now


@pytest.fixture
def time(monkeypatch):
    made = Time()
    monkeypatch.setattr("slicekeeper.kube.leader.real_seconds", made.monotonic)
    monkeypatch.setattr("scheduler.bind_lease.time", SimpleNamespace(monotonic=made.monotonic))
    return made


class Extender:
    """A scheduler whose watches show what the test says, when it says so."""

    def __init__(self, cluster, time, port):
        self.cluster = cluster
        self.scheduler = Scheduler(
            Settings(
                kubernetes=KubernetesSettings(server=cluster.server.url, timeout_seconds=120),
                scheduler=SchedulerSettings(bind=f"127.0.0.1:{port}", lease_seconds=LEASE_SECONDS),
            ),
            time.clock,
        )
        self.bind_lease, self.state = self.scheduler.bind_lease, self.scheduler.state
        self.state.intake.set_nodes(cluster.client.list(NODES)[0])
        self.see()

    def see(self):
        """Let the watch of pods come up to now."""
        self.state.intake.set_pods(self.cluster.client.list(PODS)[0])

    def bind(self, pod, node):
        return self.scheduler.binder.bind(binding(pod, node))


@pytest.fixture
def two(cluster, time):
    return Extender(cluster, time, 1), Extender(cluster, time, 2)


def holder(cluster):
    return cluster.client.get(LEASES, BINDER_LEASE, "slicekeeper-system")["spec"]["holderIdentity"].partition("/")[2]


def lists(cluster):
    """Count how often pods are listed from here on."""
    counted, answer = [], cluster.api.answer

    def counting(method, call):
        if method == "GET" and call.resource.plural == "pods" and not call.name:
            counted.append(call)
        return answer(method, call)

    cluster.api.answer = counting
    return counted


def test_two_leaders_do_not_give_one_gpu_twice(cluster, two, time):
    one, other = two
    first, second = cluster.pod("first"), cluster.pod("second")
    assert one.bind(first, "n0") == ""
    assert "127.0.0.1:1, which has the lease slicekeeper-binder, may bind now" in other.bind(second, "n0")
    time.after(LEASE_SECONDS + 1)
    assert "not enough is free" in other.bind(second, "n0"), "its watch has not shown the first, the list has"
    assert holder(cluster) == "127.0.0.1:2"
    assert other.bind(second, "n1") == ""
    assert "which has the lease" in one.bind(cluster.pod("third"), "n1")
    assert cluster.taken() == {"n0-0": 60, "n1-0": 60}


def test_when_binds_cease_the_lease_is_given_up_and_taken_again_without_a_list(cluster, two, time):
    one, other = two
    listed = lists(cluster)
    assert one.bind(cluster.pod("a", 10), "n0") == ""
    one.bind_lease.look()
    assert holder(cluster) == "127.0.0.1:1"
    time.after(RENEW_SECONDS)
    one.bind_lease.look()
    assert holder(cluster) == ""
    assert one.bind(cluster.pod("b", 10), "n0") == ""
    assert len(listed) == 1, "no other can have bound anything since"
    time.after(RENEW_SECONDS)
    one.bind_lease.look()
    assert other.bind(cluster.pod("c", 10), "n0") == ""
    time.after(RENEW_SECONDS)
    other.bind_lease.look()
    assert one.bind(cluster.pod("d", 10), "n0") == ""
    assert len(listed) == 3


def test_the_lease_is_renewed_while_binds_come_and_expires_by_ones_own_clock(cluster, two, time):
    one, other = two
    refused = "which has the lease"
    for index in range(12):
        assert one.bind(cluster.pod(f"a{index}", 1, 1), "n0") == ""
        time.after(RENEW_SECONDS - 0.5)
        one.bind_lease.look()
        assert refused in other.bind(cluster.pod(f"b{index}", 1, 1), "n0")
    time.after(LEASE_SECONDS - 2)
    assert refused in other.bind(cluster.pod("c", 1, 1), "n0")
    time.after(2)
    assert other.bind(cluster.pod("d", 1, 1), "n0") == ""


def test_one_that_is_not_asked_sees_that_the_holder_is_dead(cluster, two, time):
    one, other = two
    assert one.bind(cluster.pod("a"), "n0") == ""
    other.bind_lease.look()
    time.after(LEASE_SECONDS)
    assert other.bind(cluster.pod("b"), "n1") == ""


def test_after_a_crash_its_lease_is_its_own_at_once(cluster, two, time):
    one, _ = two
    assert one.bind(cluster.pod("a"), "n0") == ""
    again = Extender(cluster, time, 1)
    assert again.bind(cluster.pod("b"), "n1") == ""


def test_one_that_stops_lets_the_other_bind_at_once(cluster, two, time):
    one, other = two
    pod = cluster.pod("b")
    assert one.bind(cluster.pod("a"), "n0") == ""
    assert "which has the lease" in other.bind(pod, "n1")
    one.bind_lease.stop()
    time.after(1)
    assert other.bind(pod, "n1") == ""
    assert "may bind now" in one.bind(cluster.pod("c"), "n1")


@pytest.mark.parametrize("stops", [True, False])
def test_while_a_bindings_fate_is_unknown_nobody_else_binds(cluster, two, time, stops):
    one, other = two
    cluster.api.faults["binding"] = lost_before
    assert "no answer" in one.bind(cluster.pod("a"), "n0")
    del cluster.api.faults["binding"]
    time.after(30)
    one.bind_lease.look()
    if stops:
        one.bind_lease.stop()
    assert "which has the lease" in other.bind(cluster.pod("b"), "n0")
    time.after(30)
    one.bind_lease.look()
    assert other.bind(cluster.pod("c"), "n0") == ""


def test_a_bind_under_way_keeps_the_lease_however_long_it_takes(cluster, two, time):
    one, other = two
    begun, go_on = threading.Event(), threading.Event()

    def slow(_api, _call):
        begun.set()
        assert go_on.wait(60)

    cluster.api.faults["binding"] = slow
    with ThreadPoolExecutor(1) as caller:
        bind = caller.submit(one.bind, cluster.pod("a"), "n0")
        try:
            assert begun.wait(60)
            for _ in range(20):
                time.after(RENEW_SECONDS)
                one.bind_lease.look()
                assert "which has the lease" in other.bind(cluster.pod(f"b{time.now}"), "n0")
        finally:
            go_on.set()
        assert bind.result() == ""
    assert cluster.taken() == {"n0-0": 60}


@pytest.mark.parametrize("regained", [False, True])
def test_one_that_is_frozen_after_it_chose_sends_no_binding_once_its_lease_is_over(cluster, two, time, regained):
    one, other = two
    assert one.bind(cluster.pod("before", 20), "n1") == ""
    other.bind_lease.look()
    annotations, second = one.scheduler.binder._annotations, cluster.pod("second")

    def frozen(place):
        one.scheduler.binder._annotations = annotations
        time.after(LEASE_SECONDS + 1)
        assert other.bind(second, "n0") == ""
        if regained:  # and another of its own binds has caught up since
            other.bind_lease.stop()
            assert one.bind(cluster.pod("third", 20), "n1") == ""
        return annotations(place)

    one.scheduler.binder._annotations = frozen
    first = cluster.pod("first")
    assert "was lost while GPUs were chosen" in one.bind(first, "n0")
    assert cluster.taken()["n0-0"] == 60
    other.bind_lease.stop()
    time.after(1)
    assert one.bind(first, "n1") == "", "nothing is held for it on the other node"


def test_a_binding_that_does_not_reach_the_api_server_before_the_lease_is_over_never_does(cluster, two):
    one, _ = two
    assert one.bind(cluster.pod("a"), "n0") == ""
    [pool] = one.scheduler.binder._client._http._pool.pools._container.values()
    connection = next(each for each in pool.pool.queue if each is not None)
    milliseconds = connection.sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
    assert milliseconds == LEASE_SECONDS / 6 * 1000, "it may be sent until 2/3 of the lease are over, and connected to"


def test_without_an_answer_about_the_lease_nothing_is_bound(cluster, two):
    one, _ = two
    answer = cluster.api.answer

    def refuse(method, call):
        if call.resource.plural == "leases":
            raise ApiError(403, "Forbidden", "no leases for you")
        return answer(method, call)

    cluster.api.answer = refuse
    assert "lease slicekeeper-binder cannot be taken" in one.bind(cluster.pod("a"), "n0")
    assert cluster.taken() == {}


def test_an_older_list_that_the_watch_takes_late_does_not_undo_a_newer_one(cluster, two, time):
    one, other = two
    reading, go_on = threading.Event(), threading.Event()

    def old_list():
        reading.set()
        assert go_on.wait(60)
        yield from ()

    with ThreadPoolExecutor(2) as callers:
        listing = callers.submit(other.scheduler.watches._pods.on_list, old_list())
        assert reading.wait(60)
        assert one.bind(cluster.pod("a"), "n0") == ""
        one.bind_lease.stop()
        late = callers.submit(other.bind, cluster.pod("b"), "n0")
        go_on.set()
        listing.result()
        assert "not enough is free" in late.result()


WISHES = (
    {}, {}, {}, {names.GPU_EXCLUSION: "a"}, {names.GPU_EXCLUSION: "b"}, {names.GPU_ANTI_AFFINITY: "x"},
    {names.SHARING: "exclusive"},
)  # fmt: skip


class Story:
    """Two extenders, each asked by a kube-scheduler that believes to lead. Their watches are late and repeat events."""

    def __init__(self, cluster, time, seed):
        self.cluster, self.time, self.rng = cluster, time, random.Random(seed)
        cluster.node("n2", gpus=2)
        self.extenders = [Extender(cluster, time, port) for port in (1, 2)]
        self.events, self.shown, self.known = [], [0, 0], {}
        self.made = self.bound = 0
        self.late = []
        """Abandoned Bindings that the API server has not executed yet, each with the time of its request."""

    def delayed(self, _api, call):
        """The connection breaks before the request is executed."""
        self.late.append((call, self.time.now))
        raise ConnectionResetError

    def arrive(self, _which=0):
        """Execute one of the abandoned requests, unless it is too old for the API server."""
        if self.late:
            call, since = self.late.pop(self.rng.randrange(len(self.late)))
            if self.time.now - since < REQUEST_SECONDS:
                with suppress(ApiError):
                    Api.answer(self.cluster.api, "POST", call)
                self.happened()

    def settle(self):
        """Let each of these requests be executed now, or never: the agents see to what is left of such a case."""
        while self.late:
            self.arrive()
            self.late = self.late[: self.rng.randrange(len(self.late) + 1)]

    def happened(self):
        """Note what the API server tells its watches."""
        now = {pod["metadata"]["uid"]: pod for pod in self.cluster.pods()}
        self.events += [("DELETED", pod) for uid, pod in self.known.items() if uid not in now]
        self.events += [("MODIFIED", pod) for uid, pod in now.items() if self.known.get(uid) != pod]
        self.known = now

    # What may happen to one of the extenders, by its index.

    def new(self, _which):
        self.made += 1
        core = self.rng.choice([20, 40, 60, 90, 100, 200])
        blocks = self.rng.choice([4, 10, 20]) if core < 100 else 0
        self.cluster.pod(f"p{self.made}", core, blocks, annotations=self.rng.choice(WISHES))

    def attempt(self, which):
        """Filter and bind as kube-scheduler does, which may choose otherwise; the answer to the Binding may be lost."""
        scheduler, pods = self.extenders[which].scheduler, self.cluster.pods()
        for pod in self.rng.sample(pods, min(3, len(pods))):
            nodes = self.rng.sample(["n0", "n1", "n2"], self.rng.choice([1, 3, 3]))
            if self.rng.random() < 0.7:
                asked = gpu_pod(scheduler.state, pod)
                answer = filter_nodes(scheduler.state, scheduler.gangs, asked, orjson.dumps(nodes), best_alone=True)
                nodes = orjson.loads(answer)["NodeNames"]
            if nodes and self.rng.random() < 0.9:
                self.cluster.api.faults["binding"] = self.rng.choice(
                    [no_fault] * 6 + [lost_before, lost_after, self.delayed]
                )
                self.bound += scheduler.binder.bind(binding(pod, self.rng.choice(nodes))) == ""
            self.happened()

    def watch(self, which):
        """Show the next events, some of them again."""
        begin = max(self.shown[which] - self.rng.choice([0, 0, 3]), 0)
        end = min(begin + self.rng.choice([1, 4, 100]), len(self.events))
        for kind, pod in self.events[begin:end]:
            self.extenders[which].scheduler.watches._pods.on_event(kind, pod)
        self.shown[which] = max(end, self.shown[which])

    def relist(self, which):
        self.extenders[which].see()
        self.shown[which] = len(self.events)

    def restart(self, which):
        self.settle()
        self.extenders[which] = Extender(self.cluster, self.time, which + 1)
        self.shown[which] = len(self.events)

    def pause(self, _which):
        """Let time pass, in which both renew their leases; or so much that a lease is over, as of a frozen process."""
        seconds = self.rng.choice([0.3, RENEW_SECONDS, RENEW_SECONDS, LEASE_SECONDS])
        if seconds == LEASE_SECONDS:
            self.settle()
        self.time.after(seconds)
        for extender in self.extenders if seconds < LEASE_SECONDS else ():
            extender.bind_lease.look()

    def look(self, which):
        self.extenders[which].bind_lease.look()
        self.extenders[which].scheduler.binder.look_at_overdue()

    def end(self, _which):
        pods = self.cluster.pods()
        bound = [pod for pod in pods if pod["spec"].get("nodeName")] or pods
        if bound:
            self.cluster.end(self.rng.choice(bound)["metadata"]["name"])

    def finish(self):
        """When both know all, they know what a new one reads, and nothing that is gone holds anything."""
        self.settle()
        del self.cluster.api.faults["binding"]
        for gone in (False, True):
            for pod in self.cluster.pods() if gone else ():
                self.cluster.end(pod["metadata"]["name"])
            self.time.after(200)
            for which in (0, 1):
                self.relist(which)
                self.look(which)
            states = [one.state for one in (*self.extenders, Extender(self.cluster, self.time, 3))]
            assert all(state.version() for state in states)
            assert all(
                state.totals() == states[2].totals() and state.counts() == states[2].counts() for state in states
            )
        assert states[2].totals() == (3, 4, 400, 4 * 8192)


@pytest.mark.parametrize("seed", range(12))
def test_whatever_the_order_no_gpu_is_given_beyond_its_compute_or_memory_or_against_its_pods_wishes(
    cluster, time, seed
):
    story = Story(cluster, time, seed)
    acts = (
        3 * ["new"] + 5 * ["attempt"] + 3 * ["watch"] + 2 * ["look", "pause", "end"] + ["arrive", "relist", "restart"]
    )
    for _ in range(120):
        getattr(story, story.rng.choice(acts))(story.rng.choice([0, 0, 1]))
        story.happened()
        check(cluster)
    assert story.bound
    story.finish()


def no_fault(_api, _call):
    """Answer."""


def check(cluster: SmallCluster):
    memory: dict[str, int] = {}
    company: dict[str, list[dict[str, str]]] = {}
    for pod in cluster.pods():
        annotations = pod["metadata"]["annotations"]
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        for gpu in filter(None, annotations.get(names.gpu_annotation("c"), "").split(",")):
            memory[gpu] = memory.get(gpu, 0) + int(limits.get("tencent.com/vcuda-memory", 32)) * 256
            company.setdefault(gpu, []).append(annotations)
    assert max(cluster.taken().values(), default=0) <= 100
    assert max(memory.values(), default=0) <= 8192
    for there in company.values():
        assert len({pod.get(names.GPU_EXCLUSION) for pod in there}) == 1
        assert sum(names.GPU_ANTI_AFFINITY in pod for pod in there) <= 1
        assert len(there) == 1 or not any(names.SHARING in pod for pod in there)
