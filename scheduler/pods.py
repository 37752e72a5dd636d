# SPDX-License-Identifier: Apache-2.0
"""The scheduler's data about a pod, and the holds of a bound pod, read from its manifest and annotations.

Nothing here raises on a damaged pod. What cannot be read must not free a GPU that may be in use: a manifest that breaks
a rule after the pod was bound (a user may edit an annotation) is read without the user's annotations.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from scheduler.cpu_memory import asked_by
from scheduler.placement.demand import Demand, demand_of
from scheduler.placement.fleet import MIXED, GpuRow
from scheduler.placement.mig import MigRow
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.inventory import Gpu, is_slice
from slicekeeper.gpu.pod_request import parse_admitted
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube import objects
from slicekeeper.kube.pod import controller_of, has_ended, is_leaving
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.units import CORES_PER_GPU, MS_PER_SECOND, as_instant
from slicekeeper.untyped_json import as_list, as_map


@dataclass(frozen=True, slots=True)
class Share:
    """The part of one GPU that a pod holds; a whole GPU with all its memory."""

    uuid: str
    core: int
    memory_mib: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Hold:
    """GPUs of one node that are held by, or reserved for, one pod."""

    node: str
    shares: tuple[Share, ...]
    alone: bool = False
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""

    @property
    def on_slices(self) -> bool:
        """Whether what is held are MIG slices."""
        return any(is_slice(share.uuid) for share in self.shares)


@dataclass(frozen=True, slots=True)
class Gang:
    """The pods that a pod is placed together with, or not at all."""

    key: str
    """The same for all of them, and for no others in the cluster."""
    name: str
    """As shown to people."""
    size: int
    """How many of its pods must exist."""


@dataclass(frozen=True, slots=True)
class KnownPod:
    """A pod, with the data for placing or evicting it."""

    uid: str
    namespace: str
    name: str
    request: PodRequest
    demand: Demand
    node: str = ""
    refusal: str = ""
    """Why the request cannot be placed at all, empty if it can."""
    managed: bool = True
    finished: bool = False
    """All of it has ended: only then is what it held free."""
    leaving: bool = False
    """Deletion has begun; the containers may still run."""
    budget_state: str = ""
    gpu_class: str = names.STANDARD
    priority: int = 0
    created_ms: int = 0
    bound_ms: int = 0
    gang: Gang | None = None
    controller: str = ""
    """The UID of the pod's controller; only for pods of a gang."""
    succeeded: bool = False
    ends_ms: int = 0
    """When it ends at the latest by its own deadline, 0 if it has none or has not started."""
    waiting: Mapping[str, Any] | None = None
    """The manifest, kept while the pod is not bound."""

    @property
    def spec(self) -> Mapping[str, Any]:
        """The spec in its manifest; empty if it is bound."""
        return as_map(as_map(self.waiting).get("spec"))

    @property
    def group(self) -> str:
        """Its PodGroup, which kube-scheduler tries as a whole, with its namespace; empty if it has none or is bound."""
        name = _text(as_map(self.spec.get("schedulingGroup")).get("podGroupName"))
        return name and f"{self.namespace}/{name}"

    @property
    def gates(self) -> tuple[str, ...]:
        """The scheduling gates that it waits for before kube-scheduler may place it."""
        return tuple(str(as_map(gate).get("name")) for gate in as_list(self.spec.get("schedulingGates")))

    @property
    def scheduled(self) -> Mapping[str, Any]:
        """Its condition PodScheduled, which kube-scheduler writes when it has refused the pod; empty without one."""
        conditions = map(as_map, as_list(as_map(as_map(self.waiting).get("status")).get("conditions")))
        return next((condition for condition in conditions if condition.get("type") == "PodScheduled"), {})

    @property
    def is_refused(self) -> bool:
        """Whether kube-scheduler found no node at its last attempt."""
        return self.scheduled.get("status") == "False"

    @property
    def is_placeable(self) -> bool:
        """Whether kube-scheduler may place it, and it needs a place on GPUs."""
        return not (self.node or self.finished or self.leaving or self.refusal or self.gates) and bool(
            self.demand.pieces
        )

    @property
    def scheduler(self) -> str:
        """The scheduler that places it; empty if it is bound."""
        return _text(self.spec.get("schedulerName"))

    @property
    def key(self) -> str:
        """Namespace and name, as shown to people."""
        return f"{self.namespace}/{self.name}"


def read_pod(obj: Mapping[str, Any], resources: Resources) -> KnownPod | None:
    """Return the relevant fields of a Pod object; None if it has no UID, because nothing can be held for it."""
    metadata, spec = (as_map(obj.get(key)) for key in ("metadata", "spec"))
    uid = metadata.get("uid")
    if not isinstance(uid, str) or not uid:
        return None
    namespace = _text(metadata.get("namespace"))
    request, refusal = parse_admitted(objects.read(obj, objects.Pod), resources)
    annotations = annotations_of(obj)
    node = _text(spec.get("nodeName"))
    priority = spec.get("priority")
    cpu_milli, ram_mib = asked_by(obj)
    gang, controller, homeless = _gang_of(obj, namespace, request)
    demand = replace(demand_of(request, namespace), cpu_milli=cpu_milli, ram_mib=ram_mib)
    namespace, budget_state, request, demand = _first_equal(
        namespace, _text(annotations.get(names.BUDGET_STATE)), request, demand
    )
    return KnownPod(
        uid=uid,
        namespace=namespace,
        name=_text(metadata.get("name")),
        request=request,
        demand=demand,
        node=node,
        refusal=refusal or homeless,
        managed=as_map(metadata.get("labels")).get(names.MANAGED_LABEL) == names.MANAGED_VALUE,
        finished=has_ended(obj),
        leaving=is_leaving(obj),
        budget_state=budget_state,
        gpu_class=_text(annotations.get(names.GPU_CLASS)) or names.STANDARD,
        priority=priority if isinstance(priority, int) else 0,
        created_ms=as_instant(metadata.get("creationTimestamp")) or 0,
        bound_ms=as_instant(annotations.get(names.BOUND_AT)) or 0,
        gang=gang,
        controller=controller,
        succeeded=gang is not None and as_map(obj.get("status")).get("phase") == "Succeeded",
        ends_ms=end_of(obj) or 0,
        waiting=None if node else obj,
    )


def _deployment_of(obj: Mapping[str, Any], owner: Mapping[str, Any]) -> str:
    """Return the name of the Deployment whose ReplicaSet made a pod; empty if none did."""
    revision = as_map(as_map(obj.get("metadata")).get("labels")).get("pod-template-hash")
    name, _, end = _text(owner.get("name")).rpartition("-")
    return name if owner.get("kind") == "ReplicaSet" and end and end == revision else ""


def end_of(obj: Mapping[str, Any]) -> int | None:
    """Return when a pod or Job ends at the latest by its own deadline, None if nothing says."""
    seconds = as_map(obj.get("spec")).get("activeDeadlineSeconds")
    started = as_instant(as_map(obj.get("status")).get("startTime"))
    return started + seconds * MS_PER_SECOND if isinstance(seconds, int) and started is not None else None


def _gang_of(obj: Mapping[str, Any], namespace: str, request: PodRequest) -> tuple[Gang | None, str, str]:
    """Return a pod's gang, its controller, and why it cannot belong to the gang that it names."""
    if not request.gang_size:
        return None, "", ""
    owner = controller_of(obj) or {}
    controller = _text(owner.get("uid"))
    if request.gang:
        return Gang(f"{namespace}/{request.gang}", request.gang, request.gang_size), controller, ""
    if not controller:
        return None, "", f"{names.GANG_SIZE} of a pod that no controller made: name the gang by {names.GANG}"
    # No label has a slash twice, so no name that a user chooses is another's controller.
    if deployment := _deployment_of(obj, owner):  # a rolling update makes another ReplicaSet, not another gang
        return (
            Gang(f"{namespace}/deployment/{deployment}/", f"Deployment {deployment}", request.gang_size),
            controller,
            "",
        )
    shown = f"{_text(owner.get('kind'))} {_text(owner.get('name'))}"
    return Gang(f"{namespace}/uid/{controller}", shown, request.gang_size), controller, ""


@lru_cache(4096)
def _first_equal(
    namespace: str, budget_state: str, request: PodRequest, demand: Demand
) -> tuple[str, str, PodRequest, Demand]:
    """Return the first objects that were equal to these: many thousands of pods may ask for the same."""
    return namespace, budget_state, request, demand


def held_by(pod: KnownPod, obj: Mapping[str, Any]) -> Hold | None:
    """Return what a bound pod holds by its annotations, None if it holds nothing.

    If not even its containers' requests can be read, it holds all GPUs that its annotations name, whole.
    """
    annotations = annotations_of(obj)
    asked = {request.container: request for request in pod.request.requests}
    shares: list[Share] = []
    for key, value in annotations.items():
        container = key.removeprefix(names.GPU_PREFIX)
        if container == key or not isinstance(value, str):
            continue
        request = asked.get(container)
        whole = request is None or not request.is_fraction
        if request is None and not pod.refusal:
            continue
        for uuid in sorted({part.strip() for part in value.split(",")} - {""}):
            if request is None or whole:
                shares.append(Share(uuid, CORES_PER_GPU, 0, whole=True))
            else:
                shares.append(Share(uuid, request.core, request.memory_mib, whole=False))
    mode = _text(annotations.get(names.SHARING_MODE))
    return hold_of(pod, shares, alone=mode.startswith(names.EXCLUSIVE)) if shares else None


def hold_of(pod: KnownPod, shares: Sequence[Share], *, alone: bool, node: str = "") -> Hold:
    """Return a hold for `pod`. Labels count only for a share: no other pod can join a whole GPU anyway."""
    demand = pod.demand
    return Hold(
        node or pod.node,
        tuple(sorted(shares, key=lambda s: (s.uuid, s.core, s.memory_mib))),
        alone,
        demand.affinity,
        demand.anti_affinity,
        demand.exclusion,
    )


def chosen_hold(pod: KnownPod, node: str, uuids: Sequence[str]) -> tuple[Hold, dict[str, tuple[str, ...]]]:
    """Return the hold on `node` and each container's GPUs, where `uuids` has one GPU for each piece of the demand."""
    demand = pod.demand
    gpus: dict[str, list[str]] = {}
    for piece, uuid in zip(demand.pieces, uuids, strict=True):
        for container in piece.containers:
            gpus.setdefault(container, []).append(uuid)
    shares = [
        Share(uuid, min(r.core, CORES_PER_GPU), r.memory_mib if r.is_fraction else 0, whole=not r.is_fraction)
        for r in pod.request.requests
        for uuid in gpus[r.container]
    ]
    hold = hold_of(pod, shares, alone=demand.alone, node=node)
    return hold, {container: tuple(sorted(found)) for container, found in gpus.items()}


def label_of(hold: Hold) -> Hold:
    """Return a hold with the affinity of another, and nothing of the GPUs."""
    shares = tuple(replace(share, core=0, memory_mib=0) for share in hold.shares if not share.whole)
    return Hold(hold.node, shares, affinity=hold.affinity, exclusion=hold.exclusion)


def gpu_rows(inventory: Sequence[Gpu], holds: Iterable[Hold]) -> list[GpuRow]:
    """Return a node's GPUs with all `holds` taken off. What is held twice leaves nothing, never less than nothing."""
    on: dict[str, list[tuple[Hold, Share]]] = {uuid: [] for gpu in inventory for uuid in _uuids(gpu)}
    for hold in holds:
        for share in hold.shares:
            if share.uuid in on:
                on[share.uuid].append((hold, share))
    return [_divided_row(gpu, on) if gpu.mig else _row(gpu, on[gpu.uuid]) for gpu in inventory]


def labels_out_of_sight(inventory: Sequence[Gpu], holds: Iterable[Hold]) -> tuple[str, ...]:
    """Return the affinity labels of the shares that `holds` have of GPUs which are not in the inventory.

    It may be unreadable for a moment, and pods with a label belong together all the same.
    """
    labelled = [hold for hold in holds if hold.affinity]
    there = {gpu.uuid for gpu in inventory} if labelled else set()
    return tuple(h.affinity for h in labelled if any(not s.whole and s.uuid not in there for s in h.shares))


def _uuids(gpu: Gpu) -> Iterator[str]:
    yield gpu.uuid
    yield from (mig.uuid for mig in gpu.mig)


def _divided_row(gpu: Gpu, on: Mapping[str, Sequence[object]]) -> GpuRow:
    """Return a GPU in MIG mode: nothing of it is free but its slices, and none of these if a pod has it by its UUID."""
    free = {one.uuid for one in gpu.mig if one.healthy and not on[one.uuid] and not on[gpu.uuid]}
    mig = tuple(MigRow(one, gpu.uuid, gpu.model, gpu.memory_mib, one.uuid in free) for one in gpu.mig)
    return GpuRow(gpu.uuid, gpu.model, gpu.memory_mib, core=0, memory=0, healthy=False, idle=False, mig=mig)


def _row(gpu: Gpu, here: Sequence[tuple[Hold, Share]]) -> GpuRow:
    if not here:
        return GpuRow(gpu.uuid, gpu.model, gpu.memory_mib, healthy=gpu.healthy)
    full = any(share.whole or hold.alone for hold, share in here)
    shared = [hold for hold, share in here if not share.whole]
    labels = {hold.exclusion for hold in shared}
    return GpuRow(
        gpu.uuid,
        gpu.model,
        gpu.memory_mib,
        core=0 if full else max(0, CORES_PER_GPU - sum(share.core for _, share in here)),
        memory=0 if full else max(0, gpu.memory_mib - sum(share.memory_mib for _, share in here)),
        healthy=gpu.healthy,
        idle=False,
        affinity=frozenset(hold.affinity for hold in shared if hold.affinity),
        anti_affinity=frozenset(hold.anti_affinity for hold in shared if hold.anti_affinity),
        exclusion=MIXED if len(labels) > 1 else next(iter(labels), ""),
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""
