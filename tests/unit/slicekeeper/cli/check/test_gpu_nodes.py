# SPDX-License-Identifier: Apache-2.0
"""What nodes need: versions, drivers, devices and CDI."""

from __future__ import annotations

import json

import pytest
from support.checked_cluster import AGENTS, NODES, Server, check, found_on, node, problems

from slicekeeper import names
from slicekeeper.gpu.node_setup import NodeSetup


@pytest.mark.parametrize(
    "told",
    [
        NodeSetup(driver="550.54.14", cdi_read=True),
        NodeSetup(driver="418.81.07"),
        NodeSetup(driver="unknown", cdi_read=None),
    ],
)
def test_a_node_that_lacks_nothing_is_not_named(server: Server, told: NodeSetup) -> None:
    server.install()
    server.objects[NODES] += [node("one", told), node("two", told, "cri-o://1.36.1")]
    server.objects[NODES].append({"metadata": {"name": "no-gpus"}, "status": {"nodeInfo": {"kubeletVersion": "v1.1"}}})
    assert problems(check(server, "-o", "json")) == []


@pytest.mark.parametrize(
    ("told", "problem", "remedy"),
    [
        (NodeSetup(driver_trouble="Driver Not Loaded"), "no NVIDIA driver that answers: Driver Not", "modprobe nvidia"),
        (
            NodeSetup(driver_trouble="NVML Shared Library Not Found"),
            "no NVIDIA driver that answers: NVML Shared Library Not Found",
            "--set components.nvidiaRuntime=true | kubectl apply",
        ),
        (
            NodeSetup(driver_trouble="Driver/library version mismatch"),
            "no NVIDIA driver that answers: Driver/library version mismatch",
            "drain the node and reboot it",
        ),
        (NodeSetup(driver="390.157"), "NVIDIA's driver 390.157: it must be 418.81 or newer", "install a newer driver"),
        (
            NodeSetup(driver="550.54.14", device_trouble="no CDI specification; make one by `nvidia-ctk cdi generate`"),
            "cannot give GPUs to containers: no CDI specification; make one by `nvidia-ctk cdi generate`",
            "run that on the node",
        ),
    ],
)
def test_a_nodes_driver_and_devices_are_told_in_the_agents_words(
    server: Server, told: NodeSetup, problem: str, remedy: str
) -> None:
    server.install()
    server.objects[NODES].append(node("one", told))
    [(found, mended)] = found_on(server, "one")
    assert problem in found
    assert remedy in mended


def test_the_agents_whose_logs_are_named_are_those_of_the_installation(server: Server) -> None:
    server.objects[NODES].append({"metadata": {"name": "one", "labels": {"slicekeeper.io/gpus": "true"}}})
    found = json.loads(check(server, "-n", "elsewhere", "-o", "json").stdout)
    [remedy] = [one["remedy"] for one in found if one["problem"] == "no node shows GPUs"]
    assert remedy.endswith("kubectl logs -n elsewhere ds/nodeagent")


def test_a_node_whose_gpus_cannot_be_read_is_named_and_hides_nothing_else(server: Server) -> None:
    server.install()
    broken, shared = node("broken"), node("shared", NodeSetup(driver="390.157"))
    broken["metadata"]["annotations"][names.NODE_GPUS] = '[{"uuid": 1}]'
    broken["status"]["capacity"] = {"nvidia.com/gpu": "1"}
    server.objects[NODES] += [broken, shared]
    (problem, remedy), *_ = found_on(server, "broken")
    assert "annotation slicekeeper.io/gpus: Expected `str`, got `int`" in problem
    assert remedy == "kubectl annotate node broken slicekeeper.io/gpus-; its agent writes it again"
    assert found_on(server, "shared")


def test_nvidias_runtime_class_is_not_recommended_to_who_has_it(server: Server) -> None:
    server.install()
    server.objects[AGENTS]["spec"] = {"template": {"spec": {"runtimeClassName": "nvidia"}}}
    server.objects[NODES].append(node("one", NodeSetup(driver_trouble="NVML Shared Library Not Found")))
    [(_, remedy)] = found_on(server, "one")
    assert remedy == "install NVIDIA's driver on the node, until nvidia-smi works there"


@pytest.mark.parametrize(
    ("runtime", "setting", "remedy"),
    [
        (
            "containerd://1.7.27",
            "enable_cdi or cdi_spec_dirs",
            "nvidia-ctk runtime configure --runtime=containerd --cdi",
        ),
        ("containerd://2.1.4-k3s1", "cdi_spec_dirs", "systemctl restart containerd"),
        ("cri-o://1.34.2", "cdi_spec_dirs", "systemctl restart crio"),
    ],
)
def test_a_runtime_that_reads_no_cdi_folder_is_told_with_its_own_setting(
    server: Server, runtime: str, setting: str, remedy: str
) -> None:
    server.install()
    server.objects[NODES].append(node("one", NodeSetup(driver="550.54.14", cdi_read=False), runtime))
    [(problem, mended)] = found_on(server, "one")
    assert f"{runtime} reads no CDI specification in /var/run/cdi ({setting} of its configuration)" in problem
    assert "put /var/run/cdi into cdi_spec_dirs" in mended
    assert remedy in mended


@pytest.mark.parametrize(
    ("runtime", "read", "told"),
    [
        ("containerd://1.7.27", None, True),
        ("containerd://1.7.27", True, False),
        ("containerd://2.1.4", None, False),
        ("cri-o://1.34.2", None, False),
    ],
)
def test_containerd_of_which_cdi_may_be_off_is_named_until_it_was_seen_to_be_on(
    server: Server, runtime: str, read: bool | None, told: bool
) -> None:
    server.install()
    server.objects[NODES].append(node("one", NodeSetup(driver="550.54.14", cdi_read=read), runtime))
    found = found_on(server, "one")
    assert [("CDI is off unless" in problem, "grep enable_cdi" in remedy) for problem, remedy in found] == (
        [(True, True)] if told else []
    )


@pytest.mark.parametrize(
    ("runtime", "kubelet", "problem"),
    [
        ("containerd://1.6.36", "v1.36.3", "containerd 1.6.36, which has no CDI: it must be 1.7 or newer"),
        ("docker://28.1.0", "v1.36.3", "the container runtime docker://28.1.0: it must be containerd or CRI-O"),
        ("containerd://2.1.4", "v1.29.14", "kubelet v1.29.14: it must be v1.30 or newer"),
    ],
)
def test_versions_that_are_too_old_are_named(server: Server, runtime: str, kubelet: str, problem: str) -> None:
    server.install()
    server.objects[NODES].append(node("one", runtime=runtime, kubeletVersion=kubelet))
    [(found, remedy)] = found_on(server, "one")
    assert problem in found
    assert "kubectl label node one slicekeeper.io/gpus-" in remedy
