# SPDX-License-Identifier: Apache-2.0
"""Problems of GPU nodes, for `slicekeeper check`: versions, NVIDIA's driver, CDI."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from slicekeeper import names
from slicekeeper.cli.check.remedies import Finding, Remedy, component
from slicekeeper.gpu import inventory, node_setup
from slicekeeper.gpu.node_setup import NodeSetup
from slicekeeper.kube.client import Object
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.untyped_json import as_map

LABEL: Final = "slicekeeper.io/gpus"
"""The label for which nodes get an agent."""
SIGNS: Final = ("nvidia.com/gpu.present", "feature.node.kubernetes.io/pci-10de.present")
"""Labels of NVIDIA's and the cluster's feature discovery that indicate a GPU."""

OLDEST_KUBERNETES: Final = (1, 30)
OLDEST_CONTAINERD: Final = (1, 7)
ALWAYS_CDI: Final = (2, 0)
"""From this containerd on, CDI needs no setting."""
OLDEST_DRIVER: Final = (418, 81)
"""CUDA 10.1's: the first with all that the limiter calls by itself, and the oldest of NVIDIA's container toolkit."""

_NUMBERS: Final = re.compile(r"(\d+)\.(\d+)")


def version(text: str) -> tuple[int, int] | None:
    """Return major and minor of a version in a text, None if there is none."""
    found = _NUMBERS.search(text)
    return (int(found[1]), int(found[2])) if found else None


def wanting(nodes: Iterable[Object], cdi_dir: str, namespace: str, runtime_class: str) -> Iterator[Finding]:
    """Yield problems of GPU nodes. `runtime_class` is that of the node agent's pods, empty if they have the default.

    `namespace` is that of the installation.
    """
    listed = list(nodes)
    if not any(inventory.readable_of(node) for node in listed):
        yield _no_gpus(listed, namespace)
    for node in listed:
        yield from _damaged(node)
        if not _has(node, LABEL) and names.NODE_GPUS not in annotations_of(node):
            continue
        where, info = f"node {node['metadata']['name']}", as_map(as_map(node.get("status")).get("nodeInfo"))
        runtime = str(info.get("containerRuntimeVersion", ""))
        yield from _versions(where, str(info.get("kubeletVersion", "")), runtime)
        found = node_setup.of_node(node)
        if found is not None:
            yield from _driver(where, found, runtime_class)
            if found.device_trouble:
                yield f"{where} cannot give GPUs to containers: {found.device_trouble}", "run that on the node"
        yield from _cdi(where, runtime, found, cdi_dir)


def _has(node: Object, label: str) -> bool:
    return as_map(as_map(node.get("metadata")).get("labels")).get(label) == "true"


def _damaged(node: Object) -> Iterator[Finding]:
    name = node["metadata"]["name"]
    try:
        inventory.of_node(node)
    except ValueError as error:
        yield f"node {name}: {error}", f"kubectl annotate node {name} {names.NODE_GPUS}-; its agent writes it again"


def _no_gpus(nodes: list[Object], namespace: str) -> Finding:
    if any(_has(node, LABEL) for node in nodes):
        return "no node shows GPUs", f"look at the node agents' logs: kubectl logs -n {namespace} ds/nodeagent"
    signs = [node["metadata"]["name"] for node in nodes if any(_has(node, sign) for sign in SIGNS)]
    return (
        f"no node shows GPUs, and none has the label {LABEL}=true, by which nodes get an agent",
        f"kubectl label node {' '.join(signs) or 'NODE'} {LABEL}=true",
    )


def _versions(where: str, kubelet: str, runtime: str) -> Iterator[Finding]:
    without = f"kubectl label {where} {LABEL}-"
    reported = version(kubelet)
    if reported and reported < OLDEST_KUBERNETES:
        yield f"{where} has kubelet {kubelet}: it must be v1.30 or newer", f"upgrade it; until then: {without}"
    kind, _, number = runtime.partition("://")
    reported = version(number)
    if kind == "containerd" and reported and reported < OLDEST_CONTAINERD:
        yield (
            f"{where} has containerd {number}, which has no CDI: it must be 1.7 or newer",
            f"upgrade it; until then: {without}",
        )
    elif kind not in ("", "containerd", "cri-o"):
        yield f"{where} has the container runtime {runtime}: it must be containerd or CRI-O, with CDI", without


def _driver(where: str, found: NodeSetup, runtime_class: str) -> Iterator[Finding]:
    reported = version(found.driver)
    if found.driver_trouble:
        yield f"{where} has no NVIDIA driver that answers: {found.driver_trouble}", _driver_remedy(found, runtime_class)
    elif reported and reported < OLDEST_DRIVER:
        oldest = ".".join(map(str, OLDEST_DRIVER))
        yield (
            f"{where} has NVIDIA's driver {found.driver}: it must be {oldest} or newer",
            "install a newer driver on the node, and reboot it",
        )


def _driver_remedy(found: NodeSetup, runtime_class: str) -> Remedy | str:
    """Return the remedy for a driver that does not answer, by NVML's message."""
    install = "install NVIDIA's driver on the node, until nvidia-smi works there"
    trouble = found.driver_trouble.lower()
    if "mismatch" in trouble:
        return "the driver was upgraded under its running module: drain the node and reboot it"
    if "not loaded" in trouble:
        return f"on the node: modprobe nvidia; if that fails, {install}"
    if "library not found" in trouble and not runtime_class:
        return component("nvidiaRuntime", f"{install}; if it does and NVIDIA's runtime is not the default one")
    return install


def _cdi(where: str, runtime: str, found: NodeSetup | None, cdi_dir: str) -> Iterator[Finding]:
    kind, _, number = runtime.partition("://")
    switched = kind == "containerd" and OLDEST_CONTAINERD <= (version(number) or ALWAYS_CDI) < ALWAYS_CDI
    turn_on = "nvidia-ctk runtime configure --runtime=containerd --cdi.enabled; systemctl restart containerd"
    if found is not None and found.cdi_read is False:
        setting = "enable_cdi or cdi_spec_dirs" if switched else "cdi_spec_dirs"
        restart = turn_on if switched else f"systemctl restart {'crio' if kind == 'cri-o' else 'containerd'}"
        yield (
            f"{where}: container runtime {runtime} reads no CDI specification in {cdi_dir} ({setting} of its "
            "configuration), so GPU containers are refused there, or cannot be created",
            f"put {cdi_dir} into cdi_spec_dirs on the node if it is not there; then: {restart}",
        )
    elif switched and not (found and found.cdi_read):
        yield (
            f"{where} has containerd {number}, in which CDI is off unless its configuration has enable_cdi = true, and "
            f"it has not been seen to read {cdi_dir} yet",
            f"on the node: containerd config dump | grep enable_cdi; unless it is true: {turn_on}",
        )


def runtime_class_of(agents: dict[str, Any] | None) -> str:
    """Return the RuntimeClass of the node agents' pods, empty if they name none."""
    template = as_map(as_map(as_map(agents).get("spec")).get("template"))
    return str(as_map(template.get("spec")).get("runtimeClassName") or "")
