# SPDX-License-Identifier: Apache-2.0
"""The initial objects of a cluster: nodes with GPUs as agents would publish them, and the two PriorityClasses."""

from __future__ import annotations

import re
import uuid
from typing import Final

import msgspec

from simulator.store import Store
from slicekeeper import names
from slicekeeper.config.settings import Resources, Settings
from slicekeeper.errors import SettingsError
from slicekeeper.gpu import inventory
from slicekeeper.gpu.inventory import Gpu, MigSlice
from slicekeeper.kube.client import NAMESPACES, NODES, PRIORITY_CLASSES, Object

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
"""GPU models of nodes, and their memory in MiB."""

SEATS_PER_GPU: Final = 128

_PROFILE: Final = re.compile(r"([1-7])g\.([1-9][0-9]{0,2})gb")
_COMPUTE_SLICES: Final = 7
_KEPT_MIB: Final = 512
"""The approximate part of a slice's memory that the driver keeps."""

_UUIDS: Final = uuid.UUID("6b9d4a3c-6a5e-4a55-9c1b-1d5f3a6e2c10")


def node(name: str, gpus: int, model: str, resources: Resources, mig: str = "") -> Object:
    """Return a Node with `gpus` GPUs of one model; their UUIDs depend on the node's name alone.

    `mig` are the MIG slices of the first one, such as `3g.20gb+4g.20gb`. Raises SettingsError for a model that is not
    known, and for what is no profile of a slice.
    """
    if model not in MODELS:
        raise SettingsError(f"--model is {model!r}: it must be one of {', '.join(MODELS)}")
    cards = [
        Gpu(uuid=f"GPU-{uuid.uuid5(_UUIDS, f'{name}/{i}')}", model=model, memory_mib=MODELS[model]) for i in range(gpus)
    ]
    if mig:
        slices = tuple(_slice(f"{name}/0/{i}", profile) for i, profile in enumerate(mig.split("+")))
        cards[0] = msgspec.structs.replace(cards[0], healthy=False, trouble="it is in MIG mode", mig=slices)
    core, blocks = inventory.amounts(cards)
    capacity = {
        "cpu": "64",
        "memory": "512Gi",
        "pods": "250",
        resources.core: str(core),
        resources.memory: str(blocks),
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


def _slice(name: str, profile: str) -> MigSlice:
    found = _PROFILE.fullmatch(profile)
    if found is None:
        raise SettingsError(f"--mig has {profile!r}: name slices by NVIDIA's profiles, for example 3g.20gb+4g.20gb")
    memory = int(found[2]) * 1024 - _KEPT_MIB
    return MigSlice(f"MIG-{uuid.uuid5(_UUIDS, name)}", memory, int(found[1]), _COMPUTE_SLICES, profile)


def fill(store: Store, settings: Settings, nodes: int, gpus: int, model: str, mig: str = "") -> None:
    """Create the objects of a new cluster."""
    for name in ("default", "kube-system", "slicekeeper-system"):
        store.create(
            NAMESPACES,
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}, "status": {"phase": "Active"}},
        )
    for wanted in (settings.classes.in_budget, settings.classes.over_budget):
        kind = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": wanted.name}}
        rank = {"value": wanted.value, "preemptionPolicy": wanted.preemption_policy, "globalDefault": False}
        store.create(PRIORITY_CLASSES, {**kind, **rank})
    for index in range(1, nodes + 1):
        store.create(NODES, node(f"node-{index}", gpus, model, settings.resources, mig))
