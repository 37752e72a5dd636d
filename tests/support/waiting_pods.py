# SPDX-License-Identifier: Apache-2.0
"""Nodes and pods, bound and waiting, as a test makes them, and what the owner of a waiting pod is told."""

from support.manual_clock import ManualClock

from scheduler.explain_wait import outlook
from scheduler.placement.best_fit import BestFit
from scheduler.placement.learner import Learner
from scheduler.scheduler_state import SchedulerState
from scheduler.wait_forecast import deadlines
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory
from slicekeeper.units import format_seconds

NOW = 1_800_000_000_000
OVER, IN = names.OVER_BUDGET, names.IN_BUDGET


class Cluster:
    """A state that gets nodes and pods from a test, and the deadlines of its pods."""

    def __init__(self):
        self.state = SchedulerState(Resources(), Learner("best-fit"), ManualClock(NOW), hold_seconds=0, lost_seconds=0)
        self.objects = []
        self.jobs = []

    def node(self, name, gpus=1, memory=8192, model="A100", cpu="", **spec):
        listed = inventory.encode([inventory.Gpu(f"{name}-{g}", model, memory) for g in range(gpus)])
        status = {"allocatable": {"cpu": cpu, "memory": "8Gi"}} if cpu else {}
        self.state.intake.set_node(
            {"metadata": {"name": name, "annotations": {names.NODE_GPUS: listed}}, "spec": spec, "status": status}
        )

    def pod(
        self,
        name,
        core,
        blocks=4,
        *,
        on="",
        state=IN,
        age=0,
        namespace="team",
        started=None,
        leaving=False,
        job="",
        cpu="0",
        annotations=None,
        **spec,
    ):
        """Make a pod: on a GPU `on`, or waiting for so many seconds."""
        limits = {"tencent.com/vcuda-core": str(core)} | ({"tencent.com/vcuda-memory": str(blocks)} if blocks else {})
        obj = {
            "metadata": {
                "name": name,
                "namespace": namespace,
                "uid": name,
                "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
                "creationTimestamp": format_seconds(NOW - age * 1000),
                "annotations": {names.BUDGET_STATE: state, **(annotations or {})},
                **({"deletionTimestamp": format_seconds(NOW)} if leaving else {}),
                **({"ownerReferences": [{"uid": job}]} if job else {}),
            },
            "spec": {"containers": [{"name": "c", "resources": {"limits": limits, "requests": {"cpu": cpu}}}], **spec},
            "status": {"startTime": format_seconds(NOW - started * 1000)} if started is not None else {},
        }
        if on:
            obj["spec"]["nodeName"] = on.rpartition("-")[0]
            obj["metadata"]["annotations"] |= {names.gpu_annotation("c"): on, names.BOUND_AT: format_seconds(NOW)}
        self.objects.append(obj)
        self.state.intake.set_pod(obj)

    def told(self, name):
        ends = deadlines(self.objects, self.jobs)
        return outlook(self.state.snapshot(), self.state.pod(name), BestFit(), ends, NOW)
