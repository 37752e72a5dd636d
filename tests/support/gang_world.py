# SPDX-License-Identifier: Apache-2.0
"""A scheduler without HTTP, and the nodes and pods of gangs that it places."""

import orjson
from support.manual_clock import ManualClock
from support.scheduled_pods import container, managed

from scheduler.extender import filter_nodes, gpu_pod
from scheduler.gangs import Gangs
from scheduler.pending_bindings import NoPlace
from scheduler.placement.learner import Learner
from scheduler.pods import read_pod
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory

HOLD = 30


def node(name, gpus=1, memory=8192, model="A100", **more):
    value = inventory.encode([inventory.Gpu(f"{name}-{g}", model, memory) for g in range(gpus)])
    return {"metadata": {"name": name, "annotations": {names.NODE_GPUS: value}}, **more}


def of_deployment(name, revision, *, size=4, **more):
    """Return a pod of a Deployment's revision, whose ReplicaSet is its controller."""
    made = pod(name, gang="job:" + revision, size=size, **more)
    made["metadata"]["ownerReferences"][0] |= {"kind": "ReplicaSet", "name": f"serve-{revision}"}
    made["metadata"]["labels"]["pod-template-hash"] = revision
    return made


def pod(name, core=60, *, gang="g", size=4, on="", gpus="", phase="Pending", owner="", more=None, **spec):
    said = {names.GANG: gang} if gang and not gang.startswith("job:") else {}
    said |= {names.GANG_SIZE: str(size)} if size else {}
    said |= {names.gpu_annotation("c"): gpus} if gpus else {}
    controller = owner or (gang.removeprefix("job:") if gang.startswith("job:") else "")
    owners = [{"kind": "Job", "name": "train", "uid": controller, "controller": True}] if controller else []
    return managed(
        name,
        container(core, 4 if core < 100 else 0),
        on=on,
        phase=phase,
        annotations={names.BUDGET_STATE: names.IN_BUDGET, **said, **(more or {})},
        metadata={"ownerReferences": owners},
        **spec,
    )


class Calls:
    """A retry_trigger that notes who is called."""

    def __init__(self):
        self.called = []

    def keep(self, waiting):
        pass

    def trigger(self, pod, *, at_once):
        assert at_once
        self.called.append(pod.name)


class Jobs:
    """The Jobs of the cluster: how many of its pods each says have succeeded, by its UID."""

    def __init__(self):
        self.says = {}

    def succeeded(self, pods):
        return {pod.controller: self.says[pod.controller] for pod in pods if pod.controller in self.says}


class World:
    """One extender without HTTP; a bind does not wait, so that tests say who comes when."""

    def __init__(self, *nodes, barrier_seconds=0.0, clock=None):
        self.clock = clock or ManualClock()
        self.state = SchedulerState(Resources(), Learner("best-fit"), self.clock, hold_seconds=HOLD, lost_seconds=60)
        self.state.intake.set_nodes(list(nodes))
        self.state.intake.set_pods([])
        self.nodes = [n["metadata"]["name"] for n in nodes]
        self.calls, self.jobs = Calls(), Jobs()
        self.gangs = Gangs(
            self.state, self.clock, self.calls, self.jobs, hold_seconds=HOLD, barrier_seconds=barrier_seconds
        )

    def waits(self, *objects):
        for obj in objects:
            self.state.intake.set_pod(obj)
        return objects

    def filter(self, obj, *among):
        return orjson.loads(
            filter_nodes(self.state, self.gangs, gpu_pod(self.state, obj), orjson.dumps(among or self.nodes))
        )

    def fits(self, obj, *among):
        return self.filter(obj, *among)["NodeNames"]

    def why(self, obj, *among):
        said = self.filter(obj, *among)
        assert said["NodeNames"] == []
        [reason] = set(said["FailedNodes"].values())
        return reason

    def bind(self, obj, on, *, lost=None):
        """Bind as the binder does; return the pod if it is bound now.

        `lost` is whether the Binding whose answer is lost was executed.
        """
        read = read_pod(obj, Resources())
        try:
            if read.gang is not None:
                self.gangs.wait_for_gang(read, on)
            place = self.state.bindings.choose(read, on)
        except NoPlace:
            return None
        if lost is None:
            self.state.bindings.bound(read.uid, on)
        else:
            self.state.bindings.lost(read.uid, on)
        if lost is False:
            return None
        bound = {**obj, "spec": {**obj["spec"], "nodeName": on}, "status": {"phase": "Running"}}
        gpus = {names.gpu_annotation(c): ",".join(g) for c, g in place.gpus.items()}
        bound["metadata"] = {**obj["metadata"], "annotations": {**obj["metadata"]["annotations"], **gpus}}
        return bound

    def starts(self, *objects):
        """Let kube-scheduler try all pods twice; return the bound ones."""
        done = {}
        for obj in (*objects, *objects):
            name = obj["metadata"]["name"]
            if name not in done and (found := self.fits(obj)):
                bound = self.bind(obj, found[0])
                if bound is not None:
                    self.state.intake.set_pod(bound)
                    done[name] = bound
        return list(done.values())

    def held(self):
        return self.state.counts()
