# SPDX-License-Identifier: Apache-2.0
"""Check that a pod really has the GPUs that its annotations name, against all pods bound to the node.

The scheduler decides; this second check on the node protects against another scheduler or plugin that booked the same
GPU. The later Binding loses, whichever of the two pods starts first.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from nodeagent.seat_refused import SeatRefused
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.inventory import Gpu, MigSlice, is_slice, slices
from slicekeeper.gpu.pod_request import parse_admitted
from slicekeeper.kube.objects import Pod, read
from slicekeeper.kube.pod import full_name, has_ended
from slicekeeper.kube.pod_manifest import annotations_of, container_name, containers, sharing_mode
from slicekeeper.units import CORES_PER_GPU
from slicekeeper.untyped_json import as_list, as_map


@dataclass(frozen=True)
class ContainerHold:
    """The part that one container holds of each of its GPUs."""

    gpus: tuple[str, ...]
    core: int
    memory_mib: int
    """On each GPU; 0 for a whole GPU without a stated amount, which holds all of it."""
    alone: bool = False
    """Whether the scheduler reserves its GPUs for its pod, however little the pod requested."""
    limited: bool = False
    """Whether the webhook has it load the limiter, as it does for fractions in enforced namespaces."""
    preload: str | None = None
    """LD_PRELOAD without the limiter, if the container has one and does not need it: on a MIG slice."""

    @property
    def on_slice(self) -> bool:
        """Whether it holds a MIG slice, which the hardware isolates."""
        return any(map(is_slice, self.gpus))


def holds(pod: Mapping[str, Any], resources: Resources) -> dict[str, ContainerHold]:
    """Return the holds of a bound pod by container; containers without chosen GPUs are left out."""
    annotations = annotations_of(pod)
    requests = parse_admitted(read(pod, Pod), resources)[0].requests
    preloads, alone = _with_limiter(pod), sharing_mode(pod) == names.EXCLUSIVE
    found = {}
    for request in requests:
        chosen = annotations.get(names.gpu_annotation(request.container), "")
        gpus = tuple(filter(None, chosen.split(","))) if isinstance(chosen, str) else ()
        if gpus:
            core = request.core if request.is_fraction else CORES_PER_GPU
            memory = request.memory_mib // len(gpus)
            hold = ContainerHold(gpus, core, memory, alone)
            limited = request.container in preloads and not hold.on_slice
            rest = None if limited else preloads.get(request.container)
            found[request.container] = replace(hold, limited=limited, preload=rest)
    return found


def _with_limiter(pod: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the containers that load the limiter, with what else its LD_PRELOAD names; None if that is the user's."""
    found: dict[str, str | None] = {}
    for _, _, container in containers(as_map(pod.get("spec"))):
        for entry in map(as_map, as_list(container.get("env"))):
            name, value = entry.get("name"), str(entry.get("value"))
            parts = value.replace(" ", ":").split(":")
            if name == "LD_PRELOAD" and names.LIBRARY_PATH in parts:
                found[container_name(container)] = ":".join(part for part in parts if part != names.LIBRARY_PATH)
            elif name == names.LIMITER_VARIABLE and value == names.LIBRARY_PATH:
                found.setdefault(container_name(container), None)
    return found


def check_gpus(
    pod: Mapping[str, Any], others: Iterable[Mapping[str, Any]], gpus: list[Gpu], resources: Resources
) -> None:
    """Check that every GPU of `pod` exists, is healthy, and is not allocated twice.

    Raises SeatRefused saying which GPU is at fault and who holds it.
    """
    known = {gpu.uuid: gpu for gpu in gpus}
    slices_here = slices(gpus)
    rank = _rank(pod)
    earlier = [other for other in others if not has_ended(other) and _rank(other) < rank]
    mine = list(holds(pod, resources).values())
    for uuid in dict.fromkeys(uuid for hold in mine for uuid in hold.gpus):
        beside = [other for other in earlier if _mentions(other, uuid)]
        if is_slice(uuid):
            there = [full_name(other) for other in beside if _on(uuid, holds(other, resources).values())]
            _check_slice(uuid, slices_here[uuid][0] if uuid in slices_here else None, _on(uuid, mine), there)
            continue
        gpu = known.get(uuid)
        if gpu is None:
            raise SeatRefused(f"GPU {uuid} is not offered on this node; delete the pod, so that it is scheduled again")
        if not gpu.healthy:
            raise SeatRefused(f"GPU {uuid} is not healthy; delete the pod, so that it is scheduled again")
        sums = {full_name(other): _sum(holds(other, resources).values(), gpu) for other in beside}
        sums = {name: share for name, share in sums.items() if share != (0, 0)}
        own_core, own_memory = _sum(mine, gpu)
        core = own_core + sum(share[0] for share in sums.values())
        memory = own_memory + sum(share[1] for share in sums.values())
        if core > CORES_PER_GPU or memory > gpu.memory_mib:
            raise SeatRefused(
                f"GPU {uuid} is booked twice: with {', '.join(sorted(sums)) or 'this pod alone'} it would carry "
                f"{core}% compute and {memory} of {gpu.memory_mib} MiB; delete the pod, so that it is scheduled again"
            )


def _check_slice(uuid: str, mig: MigSlice | None, mine: list[ContainerHold], others: list[str]) -> None:
    """Check that a MIG slice exists, is healthy, suffices, and belongs to one container; raises SeatRefused."""
    again = "delete the pod, so that it is scheduled again"
    if mig is None:
        raise SeatRefused(f"MIG slice {uuid} is not offered on this node; {again}")
    if not mig.healthy:
        raise SeatRefused(f"MIG slice {uuid} must get no container: its GPU is not healthy or leaves MIG mode; {again}")
    if others or len(mine) > 1:
        who = ", ".join(sorted(others)) or "another container of this pod"
        raise SeatRefused(f"MIG slice {uuid} is booked twice: {who} has it, and it is for one container; {again}")
    for hold in mine:
        if hold.core > mig.core or hold.memory_mib > mig.memory_mib:
            raise SeatRefused(
                f"MIG slice {uuid} has {mig.core}% compute and {mig.memory_mib} MiB, and {hold.core}% and "
                f"{hold.memory_mib} MiB are asked for; {again}"
            )


def _mentions(pod: Mapping[str, Any], uuid: str) -> bool:
    """Whether a pod may hold a GPU or slice: a cheap check, so that few pods are parsed at each start."""
    return any(isinstance(value, str) and uuid in value for value in annotations_of(pod).values())


def _on(uuid: str, held: Iterable[ContainerHold]) -> list[ContainerHold]:
    return [hold for hold in held if uuid in hold.gpus]


def slice_memory(hold: ContainerHold, pod: Mapping[str, Any], gpus: Iterable[Gpu], resources: Resources) -> int:
    """Return the memory in MiB that a container may use.

    All of its MIG slice; all of a GPU that only this container uses and its pod has to itself; else the request.
    """
    if hold.on_slice:
        return sum(mig.memory_mib for uuid, (mig, _) in slices(gpus).items() if uuid in hold.gpus)
    beside = [other for other in holds(pod, resources).values() if set(other.gpus) & set(hold.gpus)]
    if hold.alone and hold.core < CORES_PER_GPU and len(beside) == 1:
        return next((gpu.memory_mib for gpu in gpus if gpu.uuid == hold.gpus[0]), hold.memory_mib)
    return hold.memory_mib


def _sum(held: Iterable[ContainerHold], gpu: Gpu) -> tuple[int, int]:
    core = memory = 0
    for hold in held:
        if gpu.uuid in hold.gpus and hold.alone:
            return CORES_PER_GPU, gpu.memory_mib
        if gpu.uuid in hold.gpus:
            core += hold.core
            whole = hold.core == CORES_PER_GPU
            memory += gpu.memory_mib if whole else hold.memory_mib
    return core, memory


def _rank(pod: Mapping[str, Any]) -> tuple[str, str]:
    # RFC 3339 in UTC with milliseconds sorts as text; a pod without an instant bypassed our scheduler.
    bound_at = annotations_of(pod).get(names.BOUND_AT)
    return (bound_at if isinstance(bound_at, str) else "9", pod["metadata"]["uid"])
