# SPDX-License-Identifier: Apache-2.0
"""A table of small clusters, and of the GPUs that pods get there one after the other through the extender's calls.

Its cases combine several rules: company and identity, ended pods, links, mixed containers, gangs. Each case runs twice:
with `place`, which returns only the best node, and with `filter` and `prioritize`.
"""

import orjson
import pytest
from support.gang_world import Jobs
from support.manual_clock import ManualClock

from scheduler.extender import filter_nodes, gpu_pod, prioritize_nodes
from scheduler.gangs import Gangs
from scheduler.pending_bindings import NoPlace
from scheduler.placement.learner import Learner
from scheduler.pods import read_pod
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory
from slicekeeper.untyped_json import as_map

COMPANY = "affinity or sharing rules exclude them"
FULL = "not enough is free"
NO_SUCH_GPU = "is not on this node"
NO_SUCH_MODEL = "no GPU of model"
ILL = "no healthy GPU"
TOO_LARGE = "even if they were idle"
NEVER = "can never fit"
FOR_GOOD = (NO_SUCH_GPU, NO_SUCH_MODEL, ILL, TOO_LARGE)
"""Reasons for which kube-scheduler looks for no pods to evict."""


class Pod:
    """A pod that asks for `asked` percent in each container, with 256 MiB or `blocks` of it for each 10 percent."""

    def __init__(
        self, *asked, on="", ns="team-a", blocks=0, ended=False, leaving=False, among=(), expected="", **wishes
    ):
        self.asked, self.on, self.ns, self.blocks = asked, on, ns, blocks
        self.ended, self.leaving, self.among, self.expected = ended, leaving, among, expected
        self.wishes = {f"slicekeeper.io/{key.replace('_', '-')}": str(value) for key, value in wishes.items()}

    def manifest(self, name):
        containers = []
        for index, core in enumerate(self.asked):
            blocks = self.blocks or (max(core // 10, 1) if core < 100 else 0)
            limits = {"tencent.com/vcuda-core": str(core)} | (
                {"tencent.com/vcuda-memory": str(blocks)} if blocks else {}
            )
            containers.append({"name": f"c{index}", "resources": {"limits": limits}})
        gpus = {names.gpu_annotation(f"c{index}"): on for index, on in enumerate(self.on.split())}
        return {
            "metadata": {
                "name": name,
                "namespace": self.ns,
                "uid": name,
                "labels": {names.MANAGED_LABEL: "true"},
                "annotations": self.wishes | gpus,
                **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if self.leaving else {}),
            },
            "spec": {"containers": containers, **({"nodeName": self.on.partition("-")[0]} if self.on else {})},
            "status": {"phase": "Succeeded" if self.ended else "Running" if self.on else "Pending"},
        }


def gpus(count, *, models=(), memory=(), links=(), switches=(), ill=()):
    """Return a node's GPUs but for their UUIDs; `links` are pairs with four NVLinks."""
    return [
        lambda node, i=i: inventory.Gpu(
            f"{node}-{i}",
            models[i] if models else "A100",
            memory[i] if memory else 8192,
            healthy=i not in ill,
            links={f"{node}-{b if a == i else a}": 4 for a, b in links if i in (a, b)},
            pcie_switch=switches[i] if switches else -1,
        )
        for i in range(count)
    ]


ONE, TWO, THREE = gpus(1), gpus(2), gpus(3)

# Each case: its nodes, the pods that are there, and those that come, with what they get: the GPUs of each container, or
# the reason of each node why not.
CASES = {
    # Company.
    "a friend's GPU must have the same exclusion": (
        [TWO],
        [Pod(30, on="n0-0", gpu_affinity="x", gpu_exclusion="c")],
        [
            Pod(30, gpu_affinity="x", gpu_exclusion="c", expected="n0-0"),
            Pod(30, gpu_affinity="x", expected=[COMPANY]),
            Pod(30, gpu_affinity="x", gpu_exclusion="d", expected=[COMPANY]),
        ],
    ),
    "replicas of a club that stay apart need a GPU each": (
        [TWO],
        [Pod(30, on="n0-0", gpu_exclusion="c", gpu_anti_affinity="r")],
        [
            Pod(30, gpu_exclusion="c", gpu_anti_affinity="r", expected="n0-1"),
            Pod(30, gpu_exclusion="c", gpu_anti_affinity="r", expected=[COMPANY]),
            Pod(30, gpu_exclusion="c", expected="n0-0"),
        ],
    ),
    "anti-affinity is none of another namespace's business": (
        [TWO],
        [Pod(60, on="n0-0", ns="team-b", gpu_anti_affinity="r")],
        [
            Pod(30, gpu_anti_affinity="r", expected="n0-0"),
            Pod(10, gpu_anti_affinity="r", expected="n0-1"),
            Pod(10, ns="team-b", gpu_anti_affinity="r", expected="n0-1"),
        ],
    ),
    "replicas stay apart on all nodes, and one too many waits": (
        [ONE, TWO],
        [],
        [
            Pod(30, gpu_anti_affinity="r", expected="n0-0"),
            Pod(30, gpu_anti_affinity="r", expected="n1-0"),
            Pod(30, gpu_anti_affinity="r", expected="n1-1"),
            Pod(30, gpu_anti_affinity="r", expected=[COMPANY, COMPANY]),
            Pod(30, expected="n0-0"),
        ],
    ),
    "a friend's GPU that is full makes a pod wait, though another is idle": (
        [ONE, ONE],
        [Pod(80, on="n0-0", gpu_affinity="x")],
        [Pod(30, gpu_affinity="x", expected=[FULL, COMPANY]), Pod(20, gpu_affinity="x", expected="n0-0")],
    ),
    "a friend that has ended attracts no pod": (
        [ONE, ONE],
        [Pod(50, on="n0-0", gpu_affinity="x", ended=True), Pod(20, on="n0-0")],
        [Pod(30, gpu_affinity="x", expected="n1-0"), Pod(30, gpu_affinity="x", expected="n1-0")],
    ),
    "a friend that is being deleted still counts": (
        [ONE, ONE],
        [Pod(50, on="n0-0", gpu_affinity="x", leaving=True)],
        [Pod(30, gpu_affinity="x", expected="n0-0"), Pod(30, gpu_affinity="x", expected=[FULL, COMPANY])],
    ),
    "a foe that has ended keeps no pod off": (
        [ONE, ONE],
        [Pod(50, on="n0-0", gpu_anti_affinity="r", ended=True), Pod(40, on="n0-0")],
        [Pod(30, gpu_anti_affinity="r", expected="n0-0")],
    ),
    "a foe that is being deleted does": (
        [ONE, ONE],
        [Pod(50, on="n0-0", gpu_anti_affinity="r", leaving=True)],
        [Pod(30, gpu_anti_affinity="r", expected="n1-0")],
    ),
    "a friend on an ill GPU is waited for": (
        [gpus(2, ill={0})],
        [Pod(30, on="n0-0", gpu_affinity="x")],
        [Pod(30, gpu_affinity="x", expected=[COMPANY]), Pod(30, expected="n0-1")],
    ),
    "a friend on a node that the pod may not use is waited for": (
        [ONE, ONE],
        [Pod(30, on="n1-0", gpu_affinity="x")],
        [
            Pod(30, gpu_affinity="x", among=["n0"], expected=[COMPANY]),
            Pod(30, gpu_affinity="x", expected="n1-0"),
        ],
    ),
    "a friend on another model is waited for": (
        [gpus(1, models=["T4"]), ONE],
        [Pod(30, on="n0-0", gpu_affinity="x")],
        [Pod(30, gpu_affinity="x", gpu_model="A100", expected=[NO_SUCH_MODEL, COMPANY])],
    ),
    "who wants to be with and without a label opens a GPU, and the second waits": (
        [TWO],
        [],
        [
            Pod(30, gpu_affinity="x", gpu_anti_affinity="x", expected="n0-0"),
            Pod(30, gpu_affinity="x", gpu_anti_affinity="x", expected=[COMPANY]),
            Pod(30, gpu_affinity="x", expected="n0-0"),
        ],
    ),
    "all shares of a pod go to its friends, or none": (
        [TWO],
        [],
        [
            Pod(30, 30, gpu_affinity="x", expected="n0-0 n0-0"),
            Pod(20, 30, gpu_affinity="x", expected=[COMPANY]),
            Pod(20, 20, gpu_affinity="x", expected="n0-0 n0-0"),
        ],
    ),
    "a pod without a label joins no club": (
        [ONE, ONE],
        [Pod(30, on="n0-0", gpu_exclusion="c"), Pod(80, on="n1-0")],
        [
            Pod(30, expected=[COMPANY, FULL]),
            Pod(30, gpu_exclusion="c", expected="n0-0"),
            Pod(20, gpu_exclusion="", expected="n1-0"),
        ],
    ),
    "a club opens a GPU only if none of its own has room": (
        [TWO, ONE],
        [Pod(80, on="n0-0", gpu_exclusion="c"), Pod(60, on="n1-0", gpu_exclusion="c")],
        [Pod(40, gpu_exclusion="c", expected="n1-0"), Pod(30, gpu_exclusion="c", expected="n0-1")],
    ),
    "clubs of the same name in two namespaces are two": (
        [TWO],
        [],
        [
            Pod(30, gpu_exclusion="c", expected="n0-0"),
            Pod(30, ns="team-b", gpu_exclusion="c", expected="n0-1"),
            Pod(30, gpu_exclusion="c", expected="n0-0"),
            Pod(50, gpu_exclusion="c", expected=[COMPANY]),
        ],
    ),
    "a club is over when its last pod has ended": (
        [ONE, ONE],
        [Pod(30, on="n0-0", gpu_exclusion="c", ended=True), Pod(80, on="n1-0")],
        [Pod(30, gpu_exclusion="d", expected="n0-0")],
    ),
    "no pod joins a small share that is exclusive": (
        [TWO],
        [Pod(50, on="n0-0")],
        [
            Pod(10, sharing="exclusive", expected="n0-1"),
            Pod(60, expected=[FULL]),
            Pod(10, sharing="exclusive", expected=[COMPANY]),
            Pod(50, expected="n0-0"),
        ],
    ),
    "whole GPUs and a share, none of them with others": (
        [THREE],
        [Pod(50, on="n0-0")],
        [
            Pod(100, 10, sharing="exclusive", expected="n0-1 n0-2"),
            Pod(60, expected=[FULL]),
            Pod(50, expected="n0-0"),
        ],
    ),
    # Identity, model, health.
    "the GPU that is named, though another fits better": (
        [TWO, TWO],
        [Pod(60, on="n0-0"), Pod(30, on="n1-1")],
        [
            Pod(40, gpu_uuid="n1-1", expected="n1-1"),
            Pod(40, gpu_uuid="n1-1", expected=[NO_SUCH_GPU, FULL]),
            Pod(10, gpu_uuid="n7-0", expected=[NO_SUCH_GPU, NO_SUCH_GPU]),
            Pod(10, gpu_uuid="n1-1", among=["n0"], expected=[NO_SUCH_GPU]),
        ],
    ),
    "a named GPU that is ill, or of another model than named": (
        [gpus(2, ill={1}), gpus(2, models=["A100", "T4"])],
        [],
        [
            Pod(30, gpu_uuid="n0-1", expected=[ILL, NO_SUCH_GPU]),
            Pod(30, gpu_uuid="n1-1", gpu_model="A100", expected=[NO_SUCH_GPU, NO_SUCH_MODEL]),
            Pod(30, gpu_uuid="n1-1", gpu_model="A100,T4", expected="n1-1"),
        ],
    ),
    "one named GPU cannot be two": (
        [TWO],
        [],
        [
            Pod(200, gpu_uuid="n0-1", expected=[TOO_LARGE]),
            Pod(60, 60, gpu_uuid="n0-1", expected=[TOO_LARGE]),
            Pod(100, 30, gpu_uuid="n0-1", expected=[TOO_LARGE]),
            Pod(40, 40, gpu_uuid="n0-1", expected="n0-1 n0-1"),
        ],
    ),
    "a named GPU where company is not allowed": (
        [TWO],
        [Pod(30, on="n0-1", gpu_exclusion="c"), Pod(30, on="n0-0", gpu_affinity="x")],
        [
            Pod(30, gpu_uuid="n0-1", expected=[COMPANY]),
            Pod(30, gpu_uuid="n0-1", gpu_affinity="x", expected=[COMPANY]),
            Pod(30, gpu_uuid="n0-1", gpu_exclusion="c", expected="n0-1"),
        ],
    ),
    "containers with whole GPUs of different sizes": (
        [gpus(2, memory=[8192, 16384]), gpus(2, memory=[8192, 8192])],
        [],
        [
            Pod(100, 100, blocks=40, expected=[TOO_LARGE, TOO_LARGE]),
            Pod(100, blocks=40, expected="n0-1"),
            Pod(100, blocks=40, expected=[FULL, TOO_LARGE]),
        ],
    ),
    "two models on one node serve a pod that accepts both": (
        [gpus(1, models=["T4"]), gpus(2, models=["A100", "T4"])],
        [],
        [
            Pod(100, 100, gpu_model="A100", expected=[NO_SUCH_MODEL, TOO_LARGE]),
            Pod(100, 100, gpu_model="T4,A100", expected="n1-0 n1-1"),
            Pod(100, gpu_model="A100", expected=[NO_SUCH_MODEL, FULL]),
        ],
    ),
    "memory may be short where compute is not": (
        [ONE, ONE],
        [Pod(10, on="n0-0", blocks=30), Pod(60, on="n1-0")],
        [
            Pod(20, blocks=4, expected="n1-0"),
            Pod(30, blocks=2, expected="n0-0"),
            Pod(30, blocks=2, expected=[FULL, FULL]),
        ],
    ),
    # Several whole GPUs, and shares beside them.
    "links do not choose the node, and choose the GPUs on it": (
        [gpus(4, links=[(0, 1)]), gpus(3, links=[(0, 2)])],
        [],
        [Pod(200, expected="n1-0,n1-2"), Pod(200, expected="n0-0,n0-1")],
    ),
    "an idle pair without a link goes before a linked one that is shared": (
        [gpus(4, links=[(0, 1)])],
        [Pod(10, on="n0-0")],
        [Pod(200, expected="n0-1,n0-2"), Pod(100, 30, expected="n0-3 n0-0")],
    ),
    "a switch is nearer than none": (
        [gpus(4, switches=[0, 1, 0, 1])],
        [Pod(50, on="n0-0")],
        [Pod(200, 50, expected="n0-1,n0-3 n0-0"), Pod(200, expected=[FULL])],
    ),
    "a share leaves the linked pair to the whole GPUs": (
        [gpus(4, links=[(2, 3)])],
        [Pod(80, on="n0-0")],
        [Pod(200, 30, expected="n0-2,n0-3 n0-1"), Pod(200, expected=[FULL]), Pod(70, expected="n0-1")],
    ),
    "one node must have room for all containers": (
        [THREE, TWO],
        [Pod(80, on="n0-0"), Pod(50, on="n1-0")],
        [
            Pod(200, 30, expected=[FULL, TOO_LARGE]),
            Pod(100, 50, expected="n1-1 n1-0"),
            Pod(200, 20, expected="n0-1,n0-2 n0-0"),
        ],
    ),
    "shares with a label beside a whole GPU": (
        [THREE],
        [Pod(30, on="n0-0", gpu_affinity="x")],
        [
            Pod(20, 100, 20, gpu_affinity="x", expected="n0-0 n0-1 n0-0"),
            Pod(100, 40, gpu_affinity="x", expected=[FULL]),
            Pod(100, 30, gpu_affinity="x", expected="n0-2 n0-0"),
        ],
    ),
    "a search finds the one arrangement": (
        [TWO, TWO],
        [Pod(50, on="n0-0"), Pod(40, on="n0-1"), Pod(100, on="n1-0"), Pod(10, on="n1-1")],
        [Pod(50, 30, 30, expected="n0-0 n0-1 n0-1"), Pod(50, 50, expected=[FULL, FULL])],
    ),
    # Gangs: all pods of a case's gang come together.
    "a gang that stays apart": (
        [ONE, TWO],
        [],
        [Pod(30, gang="g", gang_size=3, gpu_anti_affinity="r", expected=gpu) for gpu in ("n0-0", "n1-0", "n1-1")],
    ),
    "a gang that stays apart and has too few GPUs": (
        [TWO],
        [],
        [Pod(30, gang="g", gang_size=3, gpu_anti_affinity="r", expected=[NEVER])] * 3,
    ),
    "a gang that is apart from a pod that is there": (
        [TWO],
        [Pod(30, on="n0-0", gpu_anti_affinity="r")],
        [Pod(30, gang="g", gang_size=2, gpu_anti_affinity="r", expected=["waits for room for all"])] * 2,
    ),
    "a gang that stays together": (
        [ONE, TWO],
        [Pod(30, on="n0-0")],
        [Pod(30, gang="g", gang_size=3, gpu_affinity="x", expected="n1-0")] * 3,
    ),
    "a gang that stays together and is too large for one GPU": (
        [THREE],
        [],
        [Pod(30, gang="g", gang_size=4, gpu_affinity="x", expected=[NEVER])] * 4,
    ),
    "a gang whose pods exclude each other": (
        [TWO],
        [],
        [
            Pod(30, gang="g", gang_size=2, gpu_exclusion="c", expected="n0-0"),
            Pod(30, gang="g", gang_size=2, gpu_exclusion="d", expected="n0-1"),
        ],
    ),
    "a gang of which one pod names a GPU": (
        [ONE, ONE],
        [],
        [
            Pod(60, gang="g", gang_size=2, expected="n1-0"),
            Pod(60, gang="g", gang_size=2, gpu_uuid="n0-0", expected="n0-0"),
        ],
    ),
    "a gang of whole GPUs and shares": (
        [TWO, ONE],
        [],
        [
            Pod(70, gang="g", gang_size=3, expected="n1-0"),
            Pod(30, gang="g", gang_size=3, expected="n1-0"),
            Pod(200, gang="g", gang_size=3, expected="n0-0,n0-1"),
        ],
    ),
    "a gang that takes the last of each GPU": (
        [ONE, ONE],
        [Pod(20, on="n1-0")],
        [Pod(core, gang="g", gang_size=4, expected=gpu)
         for core, gpu in ((60, "n0-0"), (55, "n1-0"), (40, "n0-0"), (25, "n1-0"))],
    ),
}  # fmt: skip


class Extender:
    """A state with its nodes and pods, asked as kube-scheduler asks."""

    def __init__(self, nodes, here, *, best_alone):
        clock = ManualClock()
        self.state = SchedulerState(Resources(), Learner("best-fit"), clock, hold_seconds=30, lost_seconds=60)
        self.gangs = Gangs(self.state, clock, None, Jobs(), hold_seconds=30, barrier_seconds=0)
        self.names, self.best_alone = [f"n{number}" for number in range(len(nodes))], best_alone
        for node, made in zip(self.names, nodes, strict=True):
            listed = inventory.encode([gpu(node) for gpu in made])
            self.state.intake.set_node({"metadata": {"name": node, "annotations": {names.NODE_GPUS: listed}}})
        for number, there in enumerate(here):
            self.state.intake.set_pod(there.manifest(f"there-{number}"))

    def come(self, pods):
        """Have pods placed and bound; a gang's are tried twice, because the first binds wait for the others."""
        objects = [pod.manifest(f"pod-{number}") for number, pod in enumerate(pods)]
        together = bool(pods[0].wishes.get(names.GANG))
        for obj in objects if together else ():
            self.state.intake.set_pod(obj)
        said = {}
        for number in [*range(len(pods))] * (1 + together):
            if not isinstance(said.get(number), str):
                said[number] = self.one(objects[number], pods[number].among or self.names)
        return [said[number] for number in range(len(pods))]

    def one(self, obj, among):
        """Return the GPUs of each container, or the reasons of all nodes."""
        self.state.intake.set_pod(obj)
        node, reasons = self.asked(obj, orjson.dumps(among))
        if not node:
            return [reasons[name] for name in among]
        read = read_pod(obj, self.state.resources)
        try:
            if read.gang is not None:
                self.gangs.wait_for_gang(read, node)
            place = self.state.bindings.choose(read, node)
        except NoPlace as error:
            return [str(error)]
        self.state.bindings.bound(read.uid, node)
        given = {names.gpu_annotation(container): ",".join(gpus) for container, gpus in place.gpus.items()}
        obj["metadata"]["annotations"] |= given | {names.SHARING_MODE: f"{place.pod.demand.mode}: asked for"}
        obj["spec"]["nodeName"] = node
        self.state.intake.set_pod(obj)
        return " ".join(",".join(place.gpus[one["name"]]) for one in obj["spec"]["containers"])

    def asked(self, obj, among):
        pod = gpu_pod(self.state, obj)
        answer = orjson.loads(filter_nodes(self.state, self.gangs, pod, among, best_alone=self.best_alone))
        fitting = answer["NodeNames"]
        for reason in as_map(answer["FailedNodes"]).values():
            assert not any(text in reason for text in FOR_GOOD)
        if fitting and not self.best_alone:
            scores = orjson.loads(prioritize_nodes(self.state, self.gangs, pod, orjson.dumps(fitting)))
            fitting = [one["Host"] for one in scores if one["Score"] == 10] or fitting
        return (fitting or [""])[0], as_map(answer["FailedNodes"]) | as_map(answer["FailedAndUnresolvableNodes"])


@pytest.mark.parametrize("best_alone", [True, False], ids=["place", "filter"])
@pytest.mark.parametrize("case", CASES)
def test_the_gpus_that_pods_get(case, best_alone):
    nodes, here, pods = CASES[case]
    found = Extender(nodes, here, best_alone=best_alone).come(pods)
    for number, (got, pod) in enumerate(zip(found, pods, strict=True)):
        if isinstance(pod.expected, str):
            assert got == pod.expected, f"pod {number}"
        else:
            expected = pod.expected * (len(got) if NEVER in pod.expected or pod.wishes.get(names.GANG) else 1)
            assert isinstance(got, list), f"pod {number}: {got}"
            assert all(text in reason for text, reason in zip(expected, got, strict=True)), f"pod {number}: {got}"
