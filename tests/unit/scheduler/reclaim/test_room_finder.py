# SPDX-License-Identifier: Apache-2.0
"""The view that is kept from look to look answers as one that is made of the same state now."""

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st
from support.manual_clock import ManualClock
from support.scheduled_pods import container, managed

from scheduler.pending_bindings import NoPlace
from scheduler.placement.best_fit import BestFit
from scheduler.placement.learner import Learner
from scheduler.pods import read_pod
from scheduler.reclaim.room_finder import MOST_SHAPES, RoomFinder
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory

NODES = ["n0", "n1", "n2"]
CORES = st.sampled_from([30, 60, 100, 200])
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("node"), st.sampled_from(NODES), st.integers(0, 2), st.booleans()),
        st.tuples(st.just("gone"), st.sampled_from(NODES)),
        st.tuples(st.just("pod"), st.integers(0, 3), CORES, st.sampled_from(["in-budget", "over-budget", "leaving"])),
        st.tuples(st.just("state"), st.integers(0, 3), st.sampled_from(["in-budget", "over-budget", "leaving"])),
        st.tuples(st.just("end"), st.integers(0, 3)),
        st.tuples(st.just("find"), st.integers(8, 9), CORES),
        st.tuples(st.just("reserve"), st.integers(8, 9)),
        st.tuples(st.just("time"), st.integers(1, 40)),
        st.tuples(st.just("evicted"), st.sets(st.integers(0, 3)), st.sets(st.integers(0, 3))),
    ),
    max_size=15,
)


def node(name, gpus, cordoned):
    value = inventory.encode([inventory.Gpu(f"{name}-{g}", "A100", 8192) for g in range(gpus)])
    return {"metadata": {"name": name, "annotations": {names.NODE_GPUS: value}}, "spec": {"unschedulable": cordoned}}


def pod(number, core, *, state="in-budget", on="", gpus="", label=""):
    annotations = {names.BUDGET_STATE: state if state != "leaving" else "in-budget"}
    annotations |= {names.gpu_annotation("c"): gpus} if gpus else {}
    annotations |= {names.GPU_AFFINITY: label} if label else {}
    leaving = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if state == "leaving" else {}
    metadata = {"uid": f"u{number}", **leaving}
    return managed(
        f"p{number}", container(core, 4 if core < 100 else 0), on=on, annotations=annotations, metadata=metadata
    )


class _Cluster:
    def __init__(self):
        self.clock = ManualClock()
        self.state = SchedulerState(Resources(), Learner("best-fit"), self.clock, hold_seconds=30, lost_seconds=60)
        self.kept = RoomFinder(BestFit())
        self.leaving, self.blocked = set(), set()
        self.pods = {}
        for number, name in enumerate(NODES):
            self.node(name, 1, cordoned=False)
            self.pod(number, 60, "in-budget")

    def node(self, name, gpus, cordoned):
        self.state.intake.set_node(node(name, gpus, cordoned))

    def gone(self, name):
        self.state.intake.drop_node(name)

    def pod(self, number, core, state):
        waiting = pod(number, core)
        if number in self.pods:
            return
        self.state.intake.set_pod(waiting)
        for name in NODES:
            try:
                place = self.state.bindings.choose(read_pod(waiting, Resources()), name)
            except NoPlace:
                continue
            self.state.bindings.bound(f"u{number}", name)
            self.pods[number] = core, name, ",".join(place.gpus["c"])
            self.change(number, state)
            return

    def change(self, number, state):
        if number in self.pods:
            core, name, gpus = self.pods[number]
            self.state.intake.set_pod(pod(number, core, state=state, on=name, gpus=gpus))

    def end(self, number):
        self.pods.pop(number, None)
        self.state.intake.drop_pod(f"u{number}")

    def find(self, number, core):
        self.state.intake.set_pod(pod(number, core))
        self.state.find(read_pod(pod(number, core), Resources()), b'["n0","n1","n2"]')

    def reserve(self, number):
        waiting = self.state.pod(f"u{number}")
        place = waiting and self.kept.room_after_leaving(waiting)
        if place:
            self.state.reserve([(waiting, place.hold)], self.clock.monotonic_ns() + 30 * 10**9)

    def time(self, seconds):
        self.clock.advance(seconds * 1000)

    def evicted(self, leaving, blocked):
        self.leaving, self.blocked = ({f"u{number}" for number in some} for some in (leaving, blocked))

    def check(self):
        self.kept.update(self.state.changed_nodes(everything=False), self.leaving, self.blocked)
        fresh = RoomFinder(BestFit())
        fresh.update(self.state.snapshot().views(), self.leaving, self.blocked)
        for core in (30, 60, 100, 200):
            for label in ("", "friends") if core < 100 else ("",):
                asking = read_pod(pod(99, core, label=label), Resources())
                for question in ("fits", "room_after_leaving", "may_have_room_after_leaving", "room_by_eviction"):
                    assert getattr(self.kept, question)(asking) == getattr(fresh, question)(asking), question


@settings(max_examples=30, deadline=None)
@given(STEPS)
def test_a_kept_view_answers_as_a_new_one(steps):
    cluster = _Cluster()
    actions = {"state": cluster.change}
    for kind, *values in steps:
        actions.get(kind, getattr(cluster, kind, None))(*values)
        cluster.check()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(CORES, st.sampled_from(["in-budget", "over-budget", "over-budget", "leaving"])), max_size=6),
    st.lists(CORES, min_size=1, max_size=4),
    st.integers(1, 4),
)
def test_places_for_several_hold_together_take_only_whom_they_may_and_leave_no_trace(tenants, wanted, needed):
    cluster = _Cluster()
    for number, (core, state) in enumerate(tenants):
        cluster.end(number)
        cluster.node(NODES[number % 3], 2, cordoned=False)
        cluster.pod(number, core, state)
    cluster.check()
    pods = [read_pod(pod(50 + number, core), Resources()) for number, core in enumerate(wanted)]
    seats = cluster.kept.room_for_gang(pods, needed)
    cluster.check()
    if seats is None:
        return
    assert len(seats) >= needed
    victims = {victim.uid for seat in seats for victim in seat.victims}
    there = {uid: place for place in cluster.state.snapshot().places for uid in [place.pod.uid]}
    assert all(cluster.state.pod(uid).budget_state == "over-budget" for uid in victims)
    staying = [p.hold for uid, p in there.items() if uid not in victims and not cluster.state.pod(uid).leaving]
    sums: dict[str, int] = {}
    for share in [s for hold in (*staying, *(seat.hold for seat in seats)) for s in hold.shares]:
        sums[share.uuid] = sums.get(share.uuid, 0) + (100 if share.whole else share.core)
    assert all(core <= 100 for core in sums.values())


def test_many_different_pods_do_not_fill_the_memory():
    cluster = _Cluster()
    cluster.check()
    asking = read_pod(pod(99, 30), Resources())
    for cpu in range(300):
        cluster.kept.fits(replace(asking, demand=replace(asking.demand, cpu_milli=cpu)))
    assert len(cluster.kept._admitted) <= MOST_SHAPES
