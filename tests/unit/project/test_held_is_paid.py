# SPDX-License-Identifier: Apache-2.0
"""Scheduler, node agent and ledger are given the same pods, write by write, and agree on who holds GPUs and until when.

The pods' lives are played by what `docs/timekeeper.md` says of kubelet: a pod is terminal when its last container has
ended for good, sidecars among them.
"""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.manual_clock import ManualClock

from nodeagent.node_pods import may_start
from scheduler.held_places import HoldKind
from scheduler.placement.learner import Learner
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu import inventory
from slicekeeper.kube.pod import holds_gpus
from slicekeeper.units import format_instant, format_seconds
from timekeeper.core import interval

T0 = 1_767_225_600_000
SECOND = 1_000
GPU = inventory.Gpu(uuid="GPU-1", model="A100", memory_mib=40960)
LIMITS = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "16"}

Object = dict[str, Any]

AGAIN = {"Never": lambda _: False, "OnFailure": lambda code: code != 0, "Always": lambda _: True}
RULE = {"action": "Restart", "exitCodes": {"operator": "In", "values": [1, 42]}}

own_fields = st.sampled_from(
    [{}, *({"restartPolicy": policy, **rules} for policy in AGAIN for rules in ({}, {"restartPolicyRules": [RULE]}))]
)
lives = st.fixed_dictionaries(
    {
        "apps": st.lists(
            st.tuples(st.integers(1, 100), st.booleans(), st.integers(0, 1), own_fields), min_size=1, max_size=3
        ),
        "sidecar": st.none() | st.tuples(st.integers(0, 40), st.booleans()),
        "policy": st.sampled_from(sorted(AGAIN)),
        "deleted": st.none() | st.integers(1, 120),
    }
)
"""Apps: seconds they run, whether they hold a GPU, exit code, restart fields of their own. Sidecar: seconds it takes to
stop, whether it holds one. Deleted: after how many seconds, if at all."""


def container(name: str, *, gpu: bool, sidecar: bool = False) -> Object:
    made: Object = {"name": name, "resources": {"limits": LIMITS} if gpu else {}}
    return {**made, "restartPolicy": "Always"} if sidecar else made


def terminated(at: int, code: int) -> Object:
    return {"terminated": {"exitCode": code, "finishedAt": format_seconds(T0 + at * SECOND)}}


class Life:
    """A pod as the API server shows it at each second at which anything changes."""

    def __init__(self, told: dict[str, Any]) -> None:
        self.apps = {f"app-{n}": app for n, app in enumerate(told["apps"])}
        self.sidecar, self.policy = told["sidecar"], told["policy"]
        self.deleted = told["deleted"]
        self.stays = [
            name
            for name, (_, _, code, own) in self.apps.items()
            if AGAIN[own.get("restartPolicy", self.policy)](code) or ("restartPolicyRules" in own and code == 1)
        ]
        if self.stays and self.deleted is None:
            self.deleted = 150
        self.apps_end = max(seconds for seconds, *_ in self.apps.values())
        if self.deleted is not None and (self.stays or self.deleted < self.apps_end):
            self.apps_end = self.deleted
        else:
            self.deleted = None
        self.end = self.apps_end + (self.sidecar[0] if self.sidecar else 0)
        self.holders = [name for name, (_, gpu, _, _) in self.apps.items() if gpu]
        if self.sidecar and self.sidecar[1]:
            self.holders.append("sidecar")

    def at(self, now: int) -> Object:
        over = now >= self.end
        statuses = []
        for name, (seconds, _, code, _) in self.apps.items():
            state: Object = {"running": {}}
            if name not in self.stays and min(seconds, self.apps_end) <= now:
                ran = min(seconds, self.apps_end)
                state = terminated(ran, code if ran == seconds else 143)
            elif name in self.stays and now >= self.apps_end:
                state = terminated(self.apps_end, 143)
            elif name in self.stays and seconds <= now:
                state = {"waiting": {"reason": "CrashLoopBackOff"}}
            statuses.append({"name": name, "state": state})
        metadata: Object = {
            "name": "a",
            "namespace": "team",
            "uid": "uid-a",
            "creationTimestamp": format_seconds(T0),
            "labels": {names.MANAGED_LABEL: "true"},
            "finalizers": [names.FINALIZER],
            "annotations": {
                names.BOUND_AT: format_instant(T0),
                **{names.gpu_annotation(name): GPU.uuid for name in self.holders},
            },
        }
        if self.deleted is not None and now >= self.deleted:
            grace = {"deletionGracePeriodSeconds": 60}
            metadata |= {"deletionTimestamp": format_seconds(T0 + (self.deleted + 60) * SECOND), **grace}
        spec: Object = {
            "nodeName": "n",
            "restartPolicy": self.policy,
            "containers": [{**container(name, gpu=gpu), **own} for name, (_, gpu, _, own) in self.apps.items()],
        }
        status: Object = {"phase": "Succeeded" if over else "Running", "containerStatuses": statuses}
        if self.sidecar:
            spec["initContainers"] = [container("sidecar", gpu=self.sidecar[1], sidecar=True)]
            told = terminated(self.end, 0) if over else {"running": {}}
            status["initContainerStatuses"] = [{"name": "sidecar", "state": told}]
        status["conditions"] = [
            {"type": "Ready", "status": "False", "lastTransitionTime": format_seconds(T0 + SECOND)},
            {
                "type": "PodReadyToStartContainers",
                "status": str(not over),
                "lastTransitionTime": format_seconds(T0 + self.end * SECOND if over else T0),
            },
        ]
        return {"metadata": metadata, "spec": spec, "status": status}


@given(lives)
def test_scheduler_node_agent_and_ledger_agree_at_every_write(told: dict[str, Any]) -> None:
    life = Life(told)
    clock = ManualClock(T0)
    scheduler = SchedulerState(Resources(), Learner("best-fit"), clock, hold_seconds=30, lost_seconds=60)
    scheduler.intake.set_nodes([{"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode([GPU])}}}])
    closed: list[int] = []
    instants = {0, life.apps_end, life.end, *(seconds for seconds, *_ in life.apps.values())}
    if life.deleted is not None:
        instants.add(life.deleted)
    for now in sorted(one for one in instants if one <= life.end):
        clock.ms = T0 + now * SECOND
        pod = life.at(now)
        scheduler.intake.set_pod(pod)
        end = interval.end_of(pod, life.holders, T0)
        held = now < life.end
        assert holds_gpus(pod) == held
        assert (end is None) == held
        assert (scheduler.counts()[HoldKind.BOUND] == 1) == (held and bool(life.holders))
        assert may_start(pod) == (held and (life.deleted is None or now < life.deleted))
        closed += [] if end is None else [end.at]
    assert closed == [T0 + life.end * SECOND]


def test_the_ledger_pays_until_the_scheduler_frees_whatever_ends_first() -> None:
    """The case that held four GPUs for weeks and paid for ten seconds."""
    life = Life(
        {"apps": [(10, True, 0, {}), (29 * 86_400, False, 0, {})], "sidecar": None, "policy": "Never", "deleted": None}
    )
    assert interval.end_of(life.at(10), life.holders, T0) is None
    assert interval.end_of(life.at(29 * 86_400), life.holders, T0) == interval.End(T0 + 29 * 86_400_000, "finished")
