# SPDX-License-Identifier: Apache-2.0
"""Two schedulers whose nodes change hands while pods are placed, against a model of what each can know.

The API server's objects are the truth. Each extender's watches show it nodes and pods late, and independently of each
other. So for a moment both may have a node; the node's agent then refuses the pod that was bound later, as
docs/scaling.md says. What must hold: no extender gives out more of a GPU than is free by all that it was shown and did,
and once both know all, no GPU has too much and every pod that fits on its scheduler's nodes is bound.
"""

from __future__ import annotations

import random
from typing import Any

import orjson
from hypothesis import given, settings
from hypothesis import strategies as st
from support.gang_world import Jobs
from support.manual_clock import ManualClock
from support.scheduled_pods import container, managed

from scheduler.extender import filter_nodes, gpu_pod
from scheduler.gangs import Gangs
from scheduler.held_places import HoldKind
from scheduler.pending_bindings import NoPlace
from scheduler.placement.learner import Learner
from scheduler.pods import held_by, read_pod
from scheduler.reclaim.retry_trigger import RetryTrigger
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory

HOLD, LOST, DELIVERED_MS = 30, 60, 59_000
GPU_MIB, BLOCK_MIB = 8192, 256
NODES = {"n0": 1, "n1": 2, "n2": 1}
Object = dict[str, Any]
Used = tuple[str, int, int]
"""A GPU, and the percent and MiB of it."""

SHARDS = "", "b"


def used(pod: Object) -> list[Used]:
    """Return what a pod takes of GPUs, by its own annotations."""
    limits = pod["spec"]["containers"][0]["resources"]["limits"]
    core, memory = (int(limits.get(f"tencent.com/vcuda-{kind}", 0)) for kind in ("core", "memory"))
    gpus = pod["metadata"]["annotations"].get(names.gpu_annotation("c"), "").split(",")
    taken = (core, memory * BLOCK_MIB) if core < 100 else (100, GPU_MIB)
    return [(gpu, *taken) for gpu in gpus if gpu and pod["status"]["phase"] != "Failed"]


def sums(pods: list[Object]) -> dict[str, tuple[int, int]]:
    """Return what pods take together of each GPU."""
    total: dict[str, tuple[int, int]] = {}
    for gpu, core, memory in (each for pod in pods for each in used(pod)):
        had = total.get(gpu, (0, 0))
        total[gpu] = had[0] + core, had[1] + memory
    return total


def is_too_much(taken: tuple[int, int]) -> bool:
    return taken[0] > 100 or taken[1] > GPU_MIB


class Extender:
    """One extender, what it has not been shown yet, and what it can know."""

    def __init__(self, clock: ManualClock, nodes: list[Object], pods: list[Object]) -> None:
        self.state = SchedulerState(Resources(), Learner("best-fit"), clock, hold_seconds=HOLD, lost_seconds=LOST)
        calls: Any = RetryTrigger
        self.gangs = Gangs(self.state, clock, calls, Jobs(), hold_seconds=HOLD)
        self.nodes_behind: list[tuple[bool, Object]] = []
        self.pods_behind: list[tuple[bool, Object]] = []
        self.known: dict[str, Object] = {}
        """Pods on nodes that it was shown, or has bound itself."""
        self.sent: dict[str, tuple[Object, int]] = {}
        """Bindings of which it knows no answer, and until when they may be executed."""
        self.list_nodes(nodes)
        self.list_pods(pods)

    def list_nodes(self, nodes: list[Object]) -> None:
        self.nodes_behind.clear()
        self.state.intake.set_nodes(nodes)

    def list_pods(self, pods: list[Object]) -> None:
        self.pods_behind.clear()
        self.known = {pod["metadata"]["uid"]: pod for pod in pods if used(pod)}
        self.state.intake.set_pods(pods)

    def show_nodes(self, count: int) -> None:
        for is_there, node in self.nodes_behind[:count]:
            if is_there:
                self.state.intake.set_node(node)
            else:
                self.state.intake.drop_node(node["metadata"]["name"])
        del self.nodes_behind[:count]

    def show_pods(self, count: int) -> None:
        for is_there, pod in self.pods_behind[:count]:
            uid = pod["metadata"]["uid"]
            if used(pod) and is_there:
                self.known[uid] = pod
            elif not is_there or pod["status"]["phase"] == "Failed":
                self.known.pop(uid, None)
            if is_there:
                self.state.intake.set_pod(pod)
            else:
                self.state.intake.drop_pod(uid)
        del self.pods_behind[:count]

    def fitting(self, pod: Object, *, best_alone: bool) -> list[str]:
        asked = orjson.dumps(sorted(NODES))
        answer = filter_nodes(self.state, self.gangs, gpu_pod(self.state, pod), asked, best_alone=best_alone)
        found: list[str] = orjson.loads(answer)["NodeNames"]
        return found


class Story:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.clock = ManualClock()
        self.label = {name: "b" if name == "n1" else "" for name in NODES}
        self.pods: dict[str, Object] = {}
        self.made = self.bound = 0
        self.extenders = {shard: Extender(self.clock, self.nodes_of(shard), []) for shard in SHARDS}

    def node(self, name: str) -> Object:
        gpus = inventory.encode([inventory.Gpu(f"{name}-{g}", "A100", GPU_MIB) for g in range(NODES[name])])
        labels = {names.SHARD: self.label[name]} if self.label[name] else {}
        return {"metadata": {"name": name, "labels": labels, "annotations": {names.NODE_GPUS: gpus}}}

    def nodes_of(self, shard: str) -> list[Object]:
        return [self.node(name) for name in NODES if self.label[name] == shard]

    def tell(self, pod: Object, *, gone: bool = False) -> None:
        uid = pod["metadata"]["uid"]
        if gone:
            del self.pods[uid]
        else:
            self.pods[uid] = pod
        for extender in self.extenders.values():
            extender.pods_behind.append((not gone, pod))

    def some(self, shard: str | None, *, bound: bool) -> list[Object]:
        """Return a few pods of a scheduler, or of all, which are bound or wait."""
        there = [
            pod
            for pod in self.pods.values()
            if ("nodeName" in pod["spec"]) == bound
            and (shard is None or pod["spec"]["schedulerName"] == shard)
            and pod["status"]["phase"] != "Failed"
        ]
        return self.rng.sample(there, min(self.rng.randint(1, 3), len(there)))

    def execute(self, pod: Object) -> None:
        """Execute a Binding, if the pod still waits."""
        there = self.pods.get(pod["metadata"]["uid"])
        if there is not None and "nodeName" not in there["spec"]:
            self.bound += 1
            annotations = {**pod["metadata"]["annotations"], names.BOUND_AT: f"{self.bound:09}"}
            self.tell({**pod, "metadata": {**pod["metadata"], "annotations": annotations}})

    def bind(self, shard: str, pod: Object, node: str, answer: str) -> None:
        """Bind a pod as the binder does."""
        extender, uid = self.extenders[shard], pod["metadata"]["uid"]
        bindings = extender.state.bindings
        seen = extender.state.pod(uid)
        if seen is not None and seen.node:
            return
        read = read_pod(pod, Resources())
        assert read is not None
        try:
            place = bindings.choose(read, node)
        except NoPlace:
            return
        gpus = {names.gpu_annotation(name): ",".join(uuids) for name, uuids in place.gpus.items()}
        meant = {
            **pod,
            "metadata": {**pod["metadata"], "annotations": {**pod["metadata"]["annotations"], **gpus}},
            "spec": {**pod["spec"], "nodeName": node},
            "status": {"phase": "Running"},
        }
        self.check_known(extender, meant)
        there = self.pods[uid]
        if "nodeName" in there["spec"]:  # Conflict: an earlier request was executed
            bindings.bound(uid, there["spec"]["nodeName"])
            extender.known[uid] = there
        elif answer == "late":
            extender.sent[uid] = meant, self.clock.now_ms() + DELIVERED_MS
            bindings.lost(uid, node)
        else:
            self.execute(meant)
            extender.known[uid] = self.pods[uid]
            if answer == "lost":
                bindings.lost(uid, node)
            else:
                bindings.bound(uid, node)

    def check_known(self, extender: Extender, meant: Object) -> None:
        now = self.clock.now_ms()
        sent = {uid: pod for uid, (pod, until) in extender.sent.items() if until > now and uid in self.pods}
        together = {**sent, **extender.known, meant["metadata"]["uid"]: meant}
        taken = sums(list(together.values()))
        assert not any(is_too_much(taken[gpu]) for gpu, _, _ in used(meant)), (meant, taken)

    # What may happen; a number and a scheduler are drawn.

    def create(self, n: int, shard: str) -> None:
        for _ in range(n + 1):
            self.made += 1
            core = self.rng.choice([30, 40, 60, 100, 200])
            asked = container(core, self.rng.choice([4, 20]) if core < 100 else 0)
            self.tell(managed(f"p{self.made}", asked, schedulerName=shard))

    def relabel(self, n: int, shard: str) -> None:
        name = f"n{n}"
        before, self.label[name] = self.label[name], shard
        if before != shard:
            self.extenders[before].nodes_behind.append((False, self.node(name)))
            self.extenders[shard].nodes_behind.append((True, self.node(name)))

    def attempt(self, n: int, shard: str) -> None:
        for pod in self.some(shard, bound=False):
            found = self.extenders[shard].fitting(pod, best_alone=bool(n))
            if found:
                self.bind(shard, pod, self.rng.choice(found), self.rng.choice(["clear"] * 6 + ["lost", "late"]))

    def attempt_anywhere(self, n: int, shard: str) -> None:
        """Bind pods that kube-scheduler takes for waiting to any node: it may have seen less than the API server."""
        for pod in self.some(shard, bound=bool(n)):
            spec = {key: value for key, value in pod["spec"].items() if key != "nodeName"}
            metadata = {**pod["metadata"], "annotations": {}}
            waits = {**pod, "metadata": metadata, "spec": spec, "status": {"phase": "Pending"}}
            self.bind(shard, waits, self.rng.choice(sorted(NODES)), "clear")

    def arrive_late(self, n: int, shard: str) -> None:
        """Execute the Bindings that were under way."""
        extender = self.extenders[shard]
        for meant, until in extender.sent.values():
            if until > self.clock.now_ms():
                self.execute(meant)
        extender.sent.clear()

    def show_nodes(self, n: int, shard: str) -> None:
        self.extenders[shard].show_nodes(n + 1)

    def show_pods(self, n: int, shard: str) -> None:
        self.extenders[shard].show_pods([1, 4, 99][n])

    def list_again(self, n: int, shard: str) -> None:
        if n == 0:
            self.extenders[shard].list_nodes(self.nodes_of(shard))
        elif n == 1:
            self.extenders[shard].list_pods(list(self.pods.values()))
        else:
            self.extenders[shard] = Extender(self.clock, self.nodes_of(shard), list(self.pods.values()))

    def delete(self, n: int, shard: str) -> None:
        for pod in self.some(None, bound=bool(n)):
            self.tell(pod, gone=True)

    def wait(self, n: int, shard: str) -> None:
        self.clock.advance([1, HOLD + 1, LOST + 1][n] * 1000)
        self.look_at_overdue()

    def look_at_overdue(self) -> None:
        for extender in self.extenders.values():
            for pod in extender.state.bindings.overdue():
                there = self.pods.get(pod.uid)
                extender.state.bindings.looked(pod.uid, there)
                if there is None or there["status"]["phase"] == "Failed":
                    extender.known.pop(pod.uid, None)

    def admit(self, n: int, shard: str) -> None:
        """Refuse what is too much, as the nodes' agents do: the pods that were bound later."""
        there = [pod for pod in self.pods.values() if used(pod)]
        admitted: list[Object] = []
        for pod in sorted(there, key=lambda pod: pod["metadata"]["annotations"][names.BOUND_AT]):
            taken = sums([*admitted, pod])
            if any(is_too_much(taken[gpu]) for gpu, _, _ in used(pod)):
                self.tell({**pod, "status": {"phase": "Failed"}})
            else:
                admitted.append(pod)

    def settle(self, n: int, shard: str) -> None:
        """Let all be known: then each scheduler binds what fits, and holds nothing else."""
        for shard in SHARDS:
            self.arrive_late(0, shard)
        self.admit(0, "")
        for _ in range(2):
            self.clock.advance((LOST + 1) * 1000)
            for extender in self.extenders.values():
                extender.show_nodes(len(extender.nodes_behind))
                extender.show_pods(len(extender.pods_behind))
            self.look_at_overdue()
        for shard, extender in self.extenders.items():
            extender.show_pods(len(extender.pods_behind))
            self.check_same(extender)
            for pod in [pod for pod in self.pods.values() if pod["spec"]["schedulerName"] == shard]:
                if "nodeName" not in pod["spec"]:
                    found = extender.fitting(pod, best_alone=False)
                    assert found == self.room(shard, pod)
                    if found:
                        self.bind(shard, pod, found[0], "clear")
                        assert "nodeName" in self.pods[pod["metadata"]["uid"]]["spec"]
                        extender.show_pods(len(extender.pods_behind))
        assert not any(map(is_too_much, sums(list(self.pods.values())).values()))

    def check_same(self, extender: Extender) -> None:
        assert set(extender.state.counts()) <= {HoldKind.BOUND}
        held = {place.pod.uid: place.hold for place in extender.state.snapshot().places}
        read = ((read_pod(pod, Resources()), pod) for pod in self.pods.values() if used(pod))
        assert held == {pod.uid: held_by(pod, obj) for pod, obj in read if pod is not None}

    def room(self, shard: str, pod: Object) -> list[str]:
        """Return the nodes of a shard on which a pod fits."""
        limits = pod["spec"]["containers"][0]["resources"]["limits"]
        core = int(limits["tencent.com/vcuda-core"])
        memory = int(limits.get("tencent.com/vcuda-memory", 0)) * BLOCK_MIB
        taken = sums(list(self.pods.values()))
        found = []
        for name in sorted(name for name in NODES if self.label[name] == shard):
            there = [taken.get(f"{name}-{gpu}", (0, 0)) for gpu in range(NODES[name])]
            idle = sum(each == (0, 0) for each in there)
            beside = any(not is_too_much((each[0] + core, each[1] + memory)) for each in there)
            if idle >= core // 100 if core >= 100 else beside:
                found.append(name)
        return found


KINDS = {
    "create": 4, "attempt": 8, "attempt_anywhere": 1, "show_pods": 3, "show_nodes": 2, "relabel": 3, "delete": 2,
    "arrive_late": 1, "list_again": 1, "wait": 1, "admit": 1, "settle": 1,
}  # fmt: skip
STEPS = st.lists(
    st.tuples(
        st.sampled_from([kind for kind, weight in KINDS.items() for _ in range(weight)]),
        st.integers(0, 2),
        st.sampled_from(SHARDS),
    ),
    min_size=20,
    max_size=60,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.integers(0, 2**32))
def test_two_schedulers_give_out_what_is_free_and_place_what_fits_while_nodes_change_hands(
    steps: list[tuple[str, int, str]], seed: int
) -> None:
    story = Story(seed)
    for kind, n, shard in steps:
        getattr(story, kind)(n, shard)
    story.settle(0, "")
