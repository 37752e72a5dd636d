# SPDX-License-Identifier: Apache-2.0
"""Two kube-schedulers that both lead, each with its extender, while one of the two is suspended again and again.

etcd, the API server and both kube-schedulers are real; the nodes are objects alone, as no kubelet is needed to bind.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest
from cluster.harness import cluster as clusters
from cluster.harness.binaries import say
from cluster.harness.control_plane import HOME, TEAM, ControlPlane, Program, control_plane, each, node, pod
from cluster.harness.kubectl import Object, wait_for

from scheduler.bind_lease import BINDER_LEASE
from slicekeeper import names
from slicekeeper.kube.client import LEASES, NAMESPACES, NODES, PODS, KubeClient

NODE_COUNT = 40
WAVES = 5
LEASE_SECONDS = 2.0
MORE_THAN_A_LEASE = LEASE_SECONDS + 1.0
SHARES = (70, 30, 60, 40, 50, 50)
"""Three GPUs full, to the last percent."""


@dataclass(frozen=True)
class Replica:
    """A kube-scheduler that always leads, and the extender beside it."""

    extender: Program
    scheduler: Program

    def send(self, number: signal.Signals) -> None:
        self.scheduler.send(number)
        self.extender.send(number)


def _replica(plane: ControlPlane, name: str) -> Replica:
    extender = plane.extender(f"extender-{name}", leaseSeconds=LEASE_SECONDS)
    return Replica(extender, plane.kube_scheduler(extender, f"kube-scheduler-{name}"))


@pytest.fixture
def plane() -> Iterator[ControlPlane]:
    if reason := clusters.unfit():
        pytest.skip(reason)
    with control_plane() as made:
        client = made.client()
        for namespace in (TEAM, HOME):
            client.create(NAMESPACES, {"metadata": {"name": namespace}})
        for number in range(NODE_COUNT):
            client.create(NODES, node(f"node-{number:04}"))
        yield made


def _share(name: str, core: int) -> Object:
    made = pod(name)
    [container] = made["spec"]["containers"]
    amounts = {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": str(320 * core // 100)}
    container["resources"] = {"limits": amounts, "requests": {"cpu": "1", **amounts}}
    return made


def _given(pods: list[Object]) -> Counter[str]:
    """Return what is given out of each GPU, in percent."""
    given = Counter[str]()
    for one in pods:
        [container] = one["spec"]["containers"]
        if gpu := one["metadata"]["annotations"].get(names.gpu_annotation("main")):
            given[gpu] += int(container["resources"]["limits"]["tencent.com/vcuda-core"])
    return given


def _holder(client: KubeClient) -> str:
    lease = client.find(LEASES, BINDER_LEASE, HOME)
    return str(((lease or {}).get("spec") or {}).get("holderIdentity") or "").rpartition("/")[2]


def _bound(client: KubeClient) -> int:
    """Return how many pods are bound; no GPU may have been given out beyond its end, at any time."""
    pods, _ = client.list(PODS, namespace=TEAM)
    given = _given(pods)
    assert not given or max(given.values()) <= 100, given.most_common(3)
    return sum(bool(one["spec"].get("nodeName")) for one in pods)


def test_no_gpu_is_given_out_twice_while_both_lead(plane: ControlPlane) -> None:
    client = plane.client()
    replicas = {one.extender.address: one for one in (_replica(plane, name) for name in ("one", "other"))}
    shares = [SHARES[number % len(SHARES)] for number in range(2 * NODE_COUNT)]
    size = len(shares) // WAVES
    bound_by = Counter[str]()
    for wave in range(WAVES):
        work = [
            _share(f"w{wave}-{number}", core) for number, core in enumerate(shares[wave * size : (wave + 1) * size])
        ]
        with ThreadPoolExecutor(1) as pool:
            pool.submit(each, client, work[: size // 2], TEAM)
            holder = wait_for(lambda: _holder(client), "a binder", pause=0.02)
            binding = replicas[holder]
            binding.send(signal.SIGSTOP)
        bound_by[holder] += 1
        each(client, work[size // 2 :], TEAM)  # for the other, which has to wait for the lease
        try:
            began = time.monotonic()
            wait_for(lambda h=holder: _holder(client) not in ("", h), "the other to bind", seconds=120)
            while time.monotonic() - began < MORE_THAN_A_LEASE:
                _bound(client)
        finally:
            binding.send(signal.SIGCONT)  # in the middle of what it was doing, and sure that it leads
        # All together fill every GPU exactly; placed as they come, some of the last may find no place.
        wait_for(lambda: _rest_fits_nowhere(client), f"all of wave {wave} bound that fit", seconds=120)
    say(f"suspended while they bound: {dict(bound_by)}")


def _rest_fits_nowhere(client: KubeClient) -> bool:
    _bound(client)
    pods, _ = client.list(PODS, namespace=TEAM)
    waiting = [one for one in pods if not one["spec"].get("nodeName")]
    given = _given(pods)
    free = NODE_COUNT * [100]
    free[: len(given)] = [100 - core for core in given.values()]
    return all(sum(_given([_as_if_bound(one)]).values()) > max(free) for one in waiting)


def _as_if_bound(one: Object) -> Object:
    return {**one, "metadata": {"annotations": {names.gpu_annotation("main"): "any"}}}
