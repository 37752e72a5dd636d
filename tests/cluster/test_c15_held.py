# SPDX-License-Identifier: Apache-2.0
"""A GPU is held until the whole pod has ended: kubelet, kube-scheduler, our scheduler and the ledger take one end."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from cluster.harness.charges import charge_of
from cluster.harness.kubectl import Object, wait_for
from cluster.harness.site import Site, gpu_container, job, plain_container, pod

from slicekeeper import names

FLAG = {"name": "flag", "emptyDir": {}}
# Runs until it is told to end, however long that takes.
OTHER = {
    **plain_container("other", "trap '' TERM; until [ -e /flag/end ]; do sleep 0.2; done"),
    "volumeMounts": [{"name": "flag", "mountPath": "/flag"}],
}

SHAPES: dict[str, tuple[list[Object], dict[str, Any]]] = {
    "a plain container runs on": ([OTHER], {}),
    "whatever would be started again": ([OTHER], {"restartPolicy": "OnFailure"}),
    "a native sidecar stops slowly": (
        [],
        {"initContainers": [{**OTHER, "restartPolicy": "Always"}], "terminationGracePeriodSeconds": 300},
    ),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_a_container_that_has_ended_holds_its_gpu_and_pays_until_its_pod_has(site: Site, shape: str) -> None:
    others, more = SHAPES[shape]
    team = site.namespace()
    site.kubectl.create(job("rest", gpu_container(core=100, blocks=None), count=3), namespace=team)
    whole = gpu_container(script="sleep 2", core=100, blocks=None)
    site.kubectl.create(pod("holds", whole, *others, volumes=[FLAG], **more), namespace=team)
    wait_for(lambda: _bound(site, team) == 4, "four GPUs held")
    wait_for(lambda: _ended(site.pod(team, "holds"), "train"), "end of the GPU container")

    site.kubectl.create(pod("waits", gpu_container(core=100, blocks=None)), namespace=team)
    wait_for(lambda: site.events(team, "FailedScheduling"), "word why it waits")
    held = site.pod(team, "holds")
    assert held["status"]["phase"] == "Running"
    uid = held["metadata"]["uid"]
    assert site.workloads(team)[uid].end is None
    assert "nodeName" not in site.pod(team, "waits")["spec"]

    site.kubectl("exec", "holds", "-c", "other", "-n", team, "--", "touch", "/flag/end")
    done = site.wait_phase(team, "holds", "Succeeded")
    waited = site.wait_phase(team, "waits", "Running")
    closed = wait_for(lambda: _closed(site, team, uid), "closed interval")
    assert closed.end is not None
    assert closed.charged_ms + closed.over_budget_ms == charge_of(done)
    assert _instant(closed.end) == max(map(_instant, _ends(done)))
    assert _instant(waited["metadata"]["annotations"][names.BOUND_AT]) >= _instant(closed.end)
    assert closed.flags == []


@pytest.mark.parametrize(
    "more", [{}, {"hostNetwork": True}, {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["127.0.0.1"]}}], ids=str
)
def test_a_sidecar_that_has_just_started_ends_when_it_is_told_to(site: Site, more: dict[str, Any]) -> None:
    """With a grace period in which every wait of a test ends."""
    team = site.namespace()
    patient = {**more, "terminationGracePeriodSeconds": 3600}
    site.kubectl.create(pod("fails", gpu_container(script="exit 3"), **patient), namespace=team)
    failed = site.wait_phase(team, "fails", "Failed")
    [sidecar] = [s for s in failed["status"]["initContainerStatuses"] if s["name"] == names.SIDECAR]
    assert sidecar["state"]["terminated"]["exitCode"] == 0
    site.kubectl.create(
        pod("fresh", gpu_container(script="trap exit TERM; sleep 600 & wait"), **patient), namespace=team
    )
    site.wait_phase(team, "fresh", "Running")
    site.kubectl("delete", "pod", "fresh", "-n", team)


def _bound(site: Site, namespace: str) -> int:
    return sum(names.BOUND_AT in p["metadata"].get("annotations", {}) for p in site.pods(namespace))


def _ended(one: Object, container: str) -> bool:
    statuses = one["status"].get("containerStatuses", ())
    return any(s["name"] == container and "terminated" in s["state"] for s in statuses)


def _ends(one: Object) -> list[str]:
    status = one["status"]
    every = [*status.get("initContainerStatuses", ()), *status["containerStatuses"]]
    return [s["state"]["terminated"]["finishedAt"] for s in every]


def _closed(site: Site, namespace: str, uid: str) -> Any:
    found = site.workloads(namespace)[uid]
    return found if found.end is not None else None


def _instant(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
