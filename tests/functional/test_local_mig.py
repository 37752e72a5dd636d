# SPDX-License-Identifier: Apache-2.0
"""MIG slices from request to charge: the real webhook, scheduler and timekeeper over a simulated cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import pytest
from support.local_cluster import delete_all, namespace, pod, pods, start
from support.waiting import wait_for

from simulator.local import LocalCluster
from simulator.store import phase
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import PODS, Object
from slicekeeper.units import parse_instant

MIG = {"slicekeeper.io/sharing": "mig"}


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    """One GPU that is shared, and one that is divided."""
    local = start(tmp_path, nodes=1, gpus=2, mig="3g.20gb+1g.5gb")
    yield local
    local.stop()


def running(local: LocalCluster, name: str) -> Object:
    def look() -> Object | None:
        found = pods(local, "team")[name]
        return found if phase(found) == "Running" else None

    return wait_for(look, f"{name} runs")


def mode(found: Object) -> tuple[str, str]:
    annotations = found["metadata"]["annotations"]
    return annotations["slicekeeper.io/sharing-mode"].partition(":")[0], annotations["gpu.slicekeeper.io/main"][:3]


def test_slices_are_asked_for_given_out_and_charged(local: LocalCluster) -> None:
    client = local.kube_client()
    namespace(client, "team")
    pod(client, "team", "asks", 10, 8, **MIG)
    found = running(local, "asks")
    assert mode(found) == ("mig", "MIG")
    assert "LD_PRELOAD" not in json.dumps(found["spec"])
    assert "gpu-sidecar" in json.dumps(found["spec"])
    pod(client, "team", "shares", 90, 8)
    assert mode(running(local, "shares")) == ("shared", "GPU")
    pod(client, "team", "spills", 30, 8)
    spilled = running(local, "spills")
    assert mode(spilled) == ("mig", "MIG"), "the shared GPU has no room, and nobody is on the larger slice"
    assert "adaptive, no shared GPU here had room" in spilled["metadata"]["annotations"]["slicekeeper.io/sharing-mode"]
    pod(client, "team", "waits", 10, 8, **MIG)
    with pytest.raises(ServiceError, match="a MIG slice is a part of one GPU"):
        pod(client, "team", "whole", 100, 8, **MIG)

    local.cluster.store.delete(PODS, "asks", "team")
    assert mode(running(local, "waits")) == ("mig", "MIG"), "its slice is free again"
    delete_all(local)
    ledger = {one.pod_name: one for one in local.timekeeper_client().workloads("team")}
    parts = {"asks": Fraction(1, 7), "shares": Fraction(9, 10), "spills": Fraction(1, 2), "waits": Fraction(1, 7)}
    assert ledger.keys() == parts.keys()
    for name, part in parts.items():
        one = ledger[name]
        assert one.end is not None
        exact = (parse_instant(one.end) - parse_instant(one.start)) * part
        assert abs(one.charged_ms - exact) < 1, f"{name} pays for {part} of a GPU"
