# SPDX-License-Identifier: Apache-2.0
"""What a new cluster begins with: nodes with GPUs as their agents would publish them, and the two PriorityClasses."""

from __future__ import annotations

import uuid
from typing import Final

from simulator.store import Store
from slicekeeper import names
from slicekeeper.config.settings import Resources, Settings
from slicekeeper.errors import SettingsError
from slicekeeper.gpu import inventory
from slicekeeper.gpu.inventory import Gpu
from slicekeeper.kube.client import NAMESPACES, NODES, PRIORITY_CLASSES, Object
from slicekeeper.units import CORES_PER_GPU, MIB_PER_BLOCK

MODELS: Final = {
    "T4": 15_360,
    "L4": 23_040,
    "V100": 16_384,
    "A10": 23_040,
    "A100": 40_960,
    "A100-80GB": 81_920,
    "H100": 81_920,
    "H200": 143_872,
}
"""GPU models that nodes can be made of, and their memory in MiB."""

SEATS_PER_GPU: Final = 128

_UUIDS: Final = uuid.UUID("6b9d4a3c-6a5e-4a55-9c1b-1d5f3a6e2c10")


def node(name: str, gpus: int, model: str, resources: Resources) -> Object:
    """Return a Node with `gpus` GPUs of one model; their UUIDs depend on the node's name alone.

    Raises SettingsError for a model that is not known.
    """
    if model not in MODELS:
        raise SettingsError(f"--model is {model!r}: it must be one of {', '.join(MODELS)}")
    cards = [
        Gpu(uuid=f"GPU-{uuid.uuid5(_UUIDS, f'{name}/{i}')}", model=model, memory_mib=MODELS[model]) for i in range(gpus)
    ]
    capacity = {
        "cpu": "64",
        "memory": "512Gi",
        "pods": "250",
        resources.core: str(gpus * CORES_PER_GPU),
        resources.memory: str(sum(card.memory_mib // MIB_PER_BLOCK for card in cards)),
        resources.seat: str(gpus * SEATS_PER_GPU),
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "labels": {"kubernetes.io/hostname": name},
            "annotations": {names.NODE_GPUS: inventory.encode(cards)},
        },
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": dict(capacity),
            "conditions": [{"type": "Ready", "status": "True", "reason": "KubeletReady"}],
        },
    }


def fill(store: Store, settings: Settings, nodes: int, gpus: int, model: str) -> None:
    """Create the objects of a new cluster."""
    for name in ("default", "kube-system", "slicekeeper-system"):
        store.create(
            NAMESPACES,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "status": {"phase": "Active"}},
        )
    for wanted in (settings.classes.in_budget, settings.classes.over_budget):
        store.create(PRIORITY_CLASSES, {
            "apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": wanted.name},
            "value": wanted.value, "preemptionPolicy": wanted.preemption_policy, "globalDefault": False,
        })  # fmt: skip
    for index in range(1, nodes + 1):
        store.create(NODES, node(f"node-{index}", gpus, model, settings.resources))
