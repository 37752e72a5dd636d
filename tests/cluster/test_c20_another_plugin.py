# SPDX-License-Identifier: Apache-2.0
"""A node that another plugin serves as well: each GPU is given out by one of the two, and both are used."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.harness import other_plugin
from cluster.harness.cluster import Cluster
from cluster.harness.install import IMAGES
from cluster.harness.kubectl import Object, wait_for
from cluster.harness.other_plugin import FOLDER, RESOURCE
from cluster.harness.site import CORE, Site, gpu_container, plain_container, pod

from slicekeeper import names
from slicekeeper.gpu import inventory


def _node(site: Site) -> Object:
    [node] = site.kubectl.list("nodes")
    return node


def _offered(site: Site) -> list[str]:
    return [gpu.uuid for gpu in inventory.of_node(_node(site))]


@pytest.fixture
def theirs(site: Site, cluster: Cluster) -> Iterator[list[str]]:
    """Have another plugin give out half of the node's GPUs."""
    every = _offered(site)
    half = every[len(every) // 2 :]
    team = site.namespace()
    container = {
        "name": "plugin",
        "image": IMAGES.of("nodeagent"),
        "securityContext": {"runAsUser": 0},
        "command": ["/usr/local/bin/python3", "-c", Path(other_plugin.__file__).read_text(), *half],
        "volumeMounts": [{"name": "plugins", "mountPath": str(FOLDER)}],
    }
    volumes = [{"name": "plugins", "hostPath": {"path": str(FOLDER)}}]
    site.kubectl.create(pod("plugin", container, volumes=volumes), namespace=team)
    try:
        yield half
    finally:
        for namespace in site.namespaces:
            site.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=1", "--wait=false")
        wait_for(lambda: _offered(site) == every, "all GPUs again", seconds=120, pause=1)


def _given(cluster: Cluster) -> set[str]:
    """Return what kubelet has given to containers of the other plugin's devices."""
    told = json.loads(cluster.run("cat", str(FOLDER / "kubelet_internal_checkpoint")))
    entries = [entry for entry in told["Data"]["PodDeviceEntries"] if entry["ResourceName"] == RESOURCE]
    return {uuid for entry in entries for uuids in entry["DeviceIDs"].values() for uuid in uuids}


def test_nothing_is_offered_twice_and_a_divided_node_serves_both(
    site: Site, cluster: Cluster, theirs: list[str]
) -> None:
    def amounts() -> tuple[str | None, ...]:
        there = _node(site)["status"]["allocatable"]
        return there.get(RESOURCE), there.get(CORE)

    wait_for(lambda: amounts() == ("2", "200"), "a divided node")
    ours = _offered(site)
    assert len(ours) == len(theirs) == 2
    assert not set(ours) & set(theirs)
    team, other = site.namespace(), site.namespace()
    whole = {**plain_container("train"), "resources": {"limits": {RESOURCE: "1"}}}
    site.kubectl.create(*(pod(f"whole-{number}", whole) for number in range(3)), namespace=other)
    site.kubectl.create(*(pod(f"half-{number}", gpu_container(core=50)) for number in range(5)), namespace=team)

    def running(namespace: str, count: int) -> list[Object]:
        found = [one for one in site.pods(namespace) if one["status"].get("phase") == "Running"]
        assert len(found) <= count
        return found if len(found) == count else []

    wait_for(lambda: running(other, 2), "both of the other plugin's GPUs in use", seconds=120)
    halves = wait_for(lambda: running(team, 4), "four halves", seconds=120)
    assert _given(cluster) == set(theirs)
    held = Counter(one["metadata"]["annotations"][names.gpu_annotation("train")] for one in halves)
    assert held == dict.fromkeys(ours, 2)
