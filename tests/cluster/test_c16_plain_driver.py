# SPDX-License-Identifier: Apache-2.0
"""A node with a driver as NVIDIA's installer leaves it and no CDI specification: the fake driver is put there so.

Before the tests of another plugin: an agent that starts after such a plugin has gone offers no GPU for ten minutes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster.harness.cluster import Cluster
from cluster.harness.component import added
from cluster.harness.gpu_work import policy, said, worker
from cluster.harness.kubectl import wait_for
from cluster.harness.site import SEAT, Site, pod

from nodeagent.plain_driver import DEVICES, IN_CONTAINER
from slicekeeper.gpu import inventory
from slicekeeper.gpu.inventory import Gpu

GIB = 1 << 30
VERSION = "580.65.06"
LAYERS = "/run/plain-driver"
INSTALL = f"""
mkdir -p {LAYERS}
for place in /dev /usr/lib64; do
  layer={LAYERS}/$(basename $place)
  mkdir $layer $layer/upper $layer/work
  mount -t overlay overlay -o lowerdir=$place,upperdir=$layer/upper,workdir=$layer/work $place
done
for device in {" ".join(DEVICES)} nvidia0; do mknod -m 666 /dev/$device c 1 3; done
cd /usr/lib64
agent=$(pgrep -of 'slicekeeper nodeagent [a]gent')
for library in libcuda libnvidia-ml; do
  cp /proc/$agent/root/usr/local/slicekeeper/lib/fake/$library.so.1 $library.so.{VERSION}
  ln -s $library.so.{VERSION} $library.so.1
done
"""
"""Overlays, so that this machine's own folders stay as they are."""

REMOVE = f"umount -l /usr/lib64; umount -l /dev; rm -rf {LAYERS}"
LOOK = "import os, sys; print(*(name for name in sys.argv[1:] if os.path.exists(name)), sep='\\n')"


def _gpus(site: Site) -> list[Gpu]:
    [node] = site.kubectl.list("nodes")
    return inventory.of_node(node) if node["status"]["allocatable"].get(SEAT) == "512" else []


@pytest.fixture
def plain(site: Site, cluster: Cluster) -> Iterator[Gpu]:
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a driver of its own")
    before = wait_for(lambda: _gpus(site), "the GPUs")
    try:
        cluster.run("sh", "-ec", INSTALL)
        site.kubectl("label", "nodes", "--all", "slicekeeper.io/gpus=true")
        with added(site, plainDriver=True, fakeGpus=False):
            [gpu] = wait_for(lambda: found if len(found := _gpus(site)) == 1 else [], "the driver's GPU")
            yield gpu
            for namespace in site.namespaces:
                site.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=1", "--wait=false")
    finally:
        cluster.run("sh", "-c", REMOVE)
        site.kubectl("label", "nodes", "--all", "slicekeeper.io/gpus-")
    wait_for(lambda: _gpus(site) == before, "the GPUs as before")


def test_containers_get_the_drivers_own_files_and_their_slices_are_limited(site: Site, plain: Gpu) -> None:
    team = site.namespace()
    sizes = {"large": (60, 16), "small": (30, 8)}
    for name, (core, blocks) in sizes.items():
        made = worker(core, blocks, batch=1, kernel="spin_1ms", host=0.02)
        site.kubectl.create(pod(name, made), namespace=team)
    for name, (core, blocks) in sizes.items():
        site.wait_phase(team, name, "Running")
        memory = blocks * GIB // 4
        wait_for(lambda n=name, h=(core, 100, memory, "in-budget", 1): policy(site, team, n) == h, "its seat")
        assert wait_for(lambda n=name: said(site, team, n, "memory"), "its memory") == [[str(memory), "2", "0"]]
        wait_for(lambda n=name: said(site, team, n, "steps"), "its steps")
    wanted = [f"/dev/{name}" for name in (*DEVICES, "nvidia0")]
    wanted += [f"{folder}/{name}.so.1" for folder in IN_CONTAINER for name in ("libcuda", "libnvidia-ml")]
    look = ("--", "/usr/local/bin/python3", "-c", LOOK, *wanted)
    assert site.kubectl("exec", "large", "-c", "train", "-n", team, *look).split() == wanted
    assert {one.gpus[0] for one in site.workloads(team).values()} == {plain.uuid}
