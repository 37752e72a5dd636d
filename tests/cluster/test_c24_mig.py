# SPDX-License-Identifier: Apache-2.0
"""MIG slices on a real node: published, held by containers with nothing in their way, and followed as they change."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from cluster.harness.gpu_work import said, seats, worker
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, wait_for
from cluster.harness.site import CORE, Site, gpu_container, pod

from slicekeeper import names
from slicekeeper.gpu import inventory
from slicekeeper.gpu.inventory import Gpu

MIB = 1 << 20
DIVIDED = 3
"""The number of the GPU that is put into MIG mode."""

_DIVIDE = """
import ctypes, glob, os, sys
[os.environ["SLICEKEEPER_FAKE_WORLD"]] = glob.glob("/run/slicekeeper/fake/*")
driver = ctypes.CDLL("/usr/local/slicekeeper/lib/fake/libnvidia-ml.so.1")
driver.skfMig(int(sys.argv[1]), sys.argv[2].encode() if len(sys.argv) > 2 else None)
"""
"""Does to a fake GPU what an administrator does to a real one by `nvidia-smi mig`."""


def divide(site: Site, *profiles: str) -> None:
    python = ("/usr/local/bin/python3", "-c", _DIVIDE, str(DIVIDED), *profiles)
    site.kubectl("exec", "daemonset/nodeagent", "-n", NAMESPACE, "--", *python)


def gpu(site: Site) -> Gpu:
    return inventory.of_node(node(site))[DIVIDED]


def node(site: Site) -> Object:
    [found] = site.kubectl.list("nodes")
    return found


@pytest.fixture
def divided(site: Site) -> Iterator[Gpu]:
    divide(site, "3g.40gb+2g.20gb")
    try:
        yield wait_for(lambda: gpu(site) if len(gpu(site).mig) == 2 else None, "two slices")
    finally:
        for namespace in site.namespaces:
            site.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=1", "--wait=false")
        divide(site)
        wait_for(lambda: gpu(site).healthy and not gpu(site).mig, "an undivided GPU")


def test_containers_hold_slices_with_nothing_in_their_way(site: Site, divided: Gpu) -> None:
    team = site.namespace()
    wait_for(lambda: node(site)["status"]["allocatable"][CORE] == str(300 + 42 + 28), "what slices hold")
    large, small = divided.mig
    asks = worker(40, 100, batch=1, kernel="spin_1ms", host=0.01)
    site.kubectl.create(pod("asks", asks, annotations={names.SHARING: names.MIG}), namespace=team)
    # An adaptive pod brings the limiter along, because it might be on a GPU that is shared.
    script = 'echo "preload [$LD_PRELOAD] $(ls /etc/ld.so.preload 2>/dev/null)"; sleep 600'
    here = {names.GPU_UUID: divided.uuid}
    site.kubectl.create(pod("adaptive", gpu_container(script=script, core=20), annotations=here), namespace=team)
    found = {name: site.wait_phase(team, name, "Running") for name in ("asks", "adaptive")}
    for name, mig, why in (("asks", large, "mig: asked for"), ("adaptive", small, "mig: adaptive, no shared GPU here")):
        annotations = found[name]["metadata"]["annotations"]
        assert annotations[names.gpu_annotation("train")] == mig.uuid
        assert annotations[names.SHARING_MODE].startswith(why)
    assert "LD_PRELOAD" not in json.dumps(found["asks"]["spec"])
    assert "LD_PRELOAD" in json.dumps(found["adaptive"]["spec"])
    wait_for(lambda: said(site, team, "asks", "memory"), "all of the slice's memory")
    assert said(site, team, "asks", "memory") == [[str(large.memory_mib * MIB), "2", "0"]], (
        "its slice, and no byte more"
    )
    wait_for(lambda: said(site, team, "asks", "steps"), "steps")
    assert wait_for(lambda: said(site, team, "adaptive", "preload"), "its environment") == [["[]"]]
    assert not {seat["uuid"] for seat in seats(site).values()} & {large.uuid, small.uuid, divided.uuid}
    # The second one has no slice: one container each.
    site.kubectl.create(pod("waits", gpu_container(core=10), annotations={names.SHARING: names.MIG}), namespace=team)
    wait_for(lambda: "MIG slices that could hold 10 percent" in _conditions(site, team, "waits"), "why it waits")

    divide(site, "2g.20gb")
    told = wait_for(lambda: site.events(team, "GpuUnhealthy"), "word of the slice that is gone")
    assert large.uuid in told[0]["message"]
    assert {one["involvedObject"]["name"] for one in told} == {"asks"}
    site.kubectl("delete", "pod", "adaptive", "-n", team, "--grace-period=1")
    site.wait_phase(team, "waits", "Running")
    # A slice that is made beside one that a container holds is given out too, and the container does not notice.
    divide(site, "2g.20gb+4g.40gb")
    site.kubectl.create(pod("next", gpu_container(core=50), annotations={names.SHARING: names.MIG}), namespace=team)
    [made] = {mig.uuid for mig in wait_for(lambda: gpu(site).mig[1:] and gpu(site).mig, "the new slice")} - {small.uuid}
    held = {name: site.wait_phase(team, name, "Running") for name in ("next", "waits")}
    assert {one["metadata"]["annotations"][names.gpu_annotation("train")] for one in held.values()} == {
        made,
        small.uuid,
    }
    assert held["waits"]["status"]["containerStatuses"][0]["restartCount"] == 0
    charged = {one.pod_name: one for one in site.workloads(team).values()}
    assert charged["asks"].gpus == [large.uuid]


def _conditions(site: Site, namespace: str, name: str) -> str:
    return json.dumps(site.pod(namespace, name)["status"].get("conditions"))
