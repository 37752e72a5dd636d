# SPDX-License-Identifier: Apache-2.0
"""The initial objects of a cluster: nodes with GPUs as agents would publish them, and the two PriorityClasses."""

from __future__ import annotations

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

_PROFILES: Final = {
    "A100": ("1g.5gb", "1g.10gb", "2g.10gb", "3g.20gb", "4g.20gb", "7g.40gb"),
    "A100-80GB": ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "H100": ("1g.10gb", "1g.20gb", "2g.20gb", "3g.40gb", "4g.40gb", "7g.80gb"),
    "H200": ("1g.18gb", "1g.35gb", "2g.35gb", "3g.71gb", "4g.71gb", "7g.141gb"),
}
"""NVIDIA's profiles of the models that MIG can divide; the last one is the whole GPU."""

_COMPUTE_SLICES: Final = 7
_MEMORY_SLICES: Final = 8
_KEPT_MIB: Final = 512
"""The approximate part of a slice's memory that the driver keeps."""

_UUIDS: Final = uuid.UUID("6b9d4a3c-6a5e-4a55-9c1b-1d5f3a6e2c10")


def node(name: str, gpus: int, model: str, resources: Resources, mig: str = "") -> Object:
    """Return a Node with `gpus` GPUs of one model; their UUIDs depend on the node's name alone.

    `mig` are the MIG slices of the first one, such as `3g.20gb+4g.20gb`. Raises SettingsError for a model that is not
    known, and for slices that a GPU of this model cannot have.
    """
    if model not in MODELS:
        raise SettingsError(f"--model is {model!r}: it must be one of {', '.join(MODELS)}")
    cards = [
        Gpu(uuid=f"GPU-{uuid.uuid5(_UUIDS, f'{name}/{i}')}", model=model, memory_mib=MODELS[model]) for i in range(gpus)
    ]
    if mig:
        slices = tuple(_slice(f"{name}/0/{i}", profile) for i, profile in enumerate(_divided(model, mig)))
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


def _divided(model: str, mig: str) -> list[str]:
    """Return the profiles of the slices. A GPU has seven compute slices, and its memory has eight."""
    known = _PROFILES.get(model)
    if known is None:
        raise SettingsError(f"--mig has {mig!r}: MIG cannot divide a {model}; use --model {', '.join(_PROFILES)}")
    profiles = mig.split("+")
    for profile in profiles:
        if profile not in known:
            raise SettingsError(f"--mig has {profile!r}: the slices of {model} are {', '.join(known)}")
    whole = _amounts(known[-1])[1]
    compute = sum(_amounts(profile)[0] for profile in profiles)
    eighths = sum(round(_amounts(profile)[1] * _MEMORY_SLICES / whole) for profile in profiles)
    if compute > _COMPUTE_SLICES or eighths > _MEMORY_SLICES:
        need = f"they need {compute} compute slices of 7 and {eighths} memory slices of 8"
        raise SettingsError(f"--mig has {mig!r}: one {model} has no room for these ({need}); use fewer or smaller ones")
    return profiles


def _amounts(profile: str) -> tuple[int, int]:
    """Return the compute slices and the GiB of a profile."""
    compute, memory = profile.removesuffix("gb").split("g.")
    return int(compute), int(memory)


def _slice(name: str, profile: str) -> MigSlice:
    compute, memory = _amounts(profile)
    return MigSlice(f"MIG-{uuid.uuid5(_UUIDS, name)}", memory * 1024 - _KEPT_MIB, compute, _COMPUTE_SLICES, profile)


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
