# SPDX-License-Identifier: Apache-2.0
"""Kubernetes' objects as they are read once, at the door: immutable, with the fields that Slicekeeper reads.

A field that is missing or null has its default. Other fields are ignored. The values of annotations, labels and amounts
can be anything, because what is wrong in them has a rule of its own. Anything else of the wrong type is damage: it is
reported with its path, and counts as absent.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar, get_args, get_origin

import msgspec

from slicekeeper import names, typed_json
from slicekeeper.config.resource_names import any_named


class _Part(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An object, or a part of one."""


T = TypeVar("T", bound=_Part)

log = logging.getLogger(__name__)


class EnvVar(_Part, frozen=True):
    """A variable of a container."""

    name: str
    value: str = ""
    value_from: dict[str, Any] = {}


class EnvSource(_Part, frozen=True):
    """A ConfigMap or a Secret whose entries become variables."""

    prefix: str = ""


class ResourceAmounts(_Part, frozen=True):
    """Amounts by resource, of a container or of a pod as a whole."""

    limits: dict[str, Any] = {}
    requests: dict[str, Any] = {}

    def names_any(self, patterns: tuple[str, ...]) -> bool:
        """Whether any of `patterns` is named, with any value at all; one that ends in `*` is a prefix."""
        return any_named(self.limits, patterns) or any_named(self.requests, patterns)

    @property
    def amounts(self) -> dict[str, Any]:
        """The limits, and the requests of resources without one."""
        return {**self.requests, **self.limits}


class Capabilities(_Part, frozen=True):
    """Capabilities that a container has beside the usual ones."""

    add: tuple[str, ...] = ()


class SecurityContext(_Part, frozen=True):
    """What a container may do."""

    privileged: bool = False
    capabilities: Capabilities = Capabilities()
    proc_mount: str = ""


class VolumeMount(_Part, frozen=True):
    """Where a container has a volume."""

    name: str = ""
    mount_path: str = ""


class Container(_Part, frozen=True):
    """A container of a pod."""

    name: str = ""
    restart_policy: str = ""
    env: tuple[EnvVar, ...] = ()
    env_from: tuple[EnvSource, ...] = ()
    resources: ResourceAmounts = ResourceAmounts()
    security_context: SecurityContext = SecurityContext()
    volume_mounts: tuple[VolumeMount, ...] = ()


class HostPath(_Part, frozen=True):
    """A folder of the node."""

    path: str | None = None


class Volume(_Part, frozen=True):
    """A volume of a pod."""

    name: str
    host_path: HostPath = HostPath()


class SchedulingGate(_Part, frozen=True):
    """What a pod waits for before it may be placed."""

    name: str


class PodOs(_Part, frozen=True):
    """The operating system of a pod."""

    name: str = ""


class NodeRequirement(_Part, frozen=True):
    """A condition on a label of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(_Part, frozen=True):
    """Conditions that a node meets together."""

    match_expressions: tuple[NodeRequirement, ...] = ()


class NodeSelector(_Part, frozen=True):
    """Terms of which a node meets at least one."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(_Part, frozen=True):
    """The nodes that a pod may be on."""

    required: NodeSelector = msgspec.field(
        name="requiredDuringSchedulingIgnoredDuringExecution", default=NodeSelector()
    )


class Affinity(_Part, frozen=True):
    """Where a pod may be."""

    node_affinity: NodeAffinity = NodeAffinity()


class OwnerReference(_Part, frozen=True):
    """An owner of an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool = False


class Metadata(_Part, frozen=True):
    """What all objects have."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    labels: dict[str, Any] = {}
    annotations: dict[str, Any] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def sharing_mode(self) -> str:
        """The mode that the scheduler chose for a pod, without its reason; empty if ours has not bound it."""
        value = self.annotations.get(names.SHARING_MODE)
        return value.partition(":")[0] if isinstance(value, str) else ""

    @property
    def controller(self) -> OwnerReference | None:
        """The controller that created the object, None if none did."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class PlacedContainer(msgspec.Struct, frozen=True):
    """A container and its place in a pod."""

    field: str
    """The list that it is in."""
    index: int
    kind: str
    """`init`, `sidecar`, `app` or `ephemeral`."""
    container: Container

    @property
    def path(self) -> str:
        """Its place, as people write it."""
        return f"spec.{self.field}[{self.index}]"


class PodSpec(_Part, frozen=True):
    """What a pod is to be."""

    init_containers: tuple[Container, ...] = ()
    containers: tuple[Container, ...] = ()
    ephemeral_containers: tuple[Container, ...] = ()
    volumes: tuple[Volume, ...] = ()
    resources: ResourceAmounts = ResourceAmounts()
    node_name: str = ""
    node_selector: dict[str, Any] = {}
    affinity: Affinity = Affinity()
    os: PodOs = PodOs()
    runtime_class_name: str = ""
    overhead: dict[str, Any] = {}
    priority_class_name: str = ""
    scheduler_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    host_pid: bool = msgspec.field(name="hostPID", default=False)
    host_ipc: bool = msgspec.field(name="hostIPC", default=False)
    active_deadline_seconds: int | None = None

    def placed(self) -> Iterator[PlacedContainer]:
        """Yield all containers in the manifest's order; an init container that is restarted is a sidecar (KEP-753)."""
        for index, one in enumerate(self.init_containers):
            kind = "sidecar" if one.restart_policy == "Always" else "init"
            yield PlacedContainer("initContainers", index, kind, one)
        for index, one in enumerate(self.containers):
            yield PlacedContainer("containers", index, "app", one)
        for index, one in enumerate(self.ephemeral_containers):
            yield PlacedContainer("ephemeralContainers", index, "ephemeral", one)

    def names_any(self, resources: tuple[str, ...]) -> bool:
        """Whether any container names one of `resources`, as `ResourceAmounts.names_any` does."""
        every = (*self.init_containers, *self.containers, *self.ephemeral_containers)
        return any(one.resources.names_any(resources) for one in every)

    @property
    def is_gated(self) -> bool:
        """Whether the pod waits at our scheduling gate."""
        return any(gate.name == names.GATE for gate in self.scheduling_gates)


class PodStatus(_Part, frozen=True):
    """What has become of a pod."""

    phase: str = ""


class Pod(_Part, frozen=True):
    """A pod, or the template of one."""

    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()


class Damage(NamedTuple):
    """A value that is not of its field's type; `wanted` is the type that JSON would have."""

    path: str
    value: object
    wanted: type


def read(value: object, kind: type[T]) -> T:
    """Return decoded JSON as `kind`; damage, which the API server never sends, is logged."""
    found, damaged = examine(value, kind)
    for one in damaged:
        log.error("a %s is damaged: %s is not of type %s", kind.__name__, one.path or "it", one.wanted.__name__)
    return found


def examine(value: object, kind: type[T]) -> tuple[T, list[Damage]]:
    """Return decoded JSON as `kind`, and everything in it that is damaged."""
    damaged: list[Damage] = []
    try:
        return typed_json.convert(value, kind), damaged
    except msgspec.ValidationError:  # a null is enough
        return typed_json.convert(_mended(value, kind, "", damaged), kind), damaged


def _mended(value: Any, kind: Any, path: str, damaged: list[Damage]) -> Any:
    """Return what is left of a value without nulls and damage; the latter is added to `damaged`."""
    if kind is Any:
        return value
    if type(None) in get_args(kind):
        [kind] = {*get_args(kind)} - {type(None)}
    is_part = isinstance(kind, type) and issubclass(kind, _Part)
    plain = dict if is_part else get_origin(kind) or kind
    wanted: type[Any] = list if plain is tuple else plain
    if type(value) is not wanted:
        damaged.append(Damage(path, value, wanted))
        return _mended({}, kind, path, []) if is_part else wanted()
    if is_part:
        kept = {}
        for field in msgspec.structs.fields(kind):
            name = field.encode_name
            if field.required or value.get(name) is not None:
                kept[name] = _mended(value.get(name), field.type, f"{path}.{name}".removeprefix("."), damaged)
        return kept
    if wanted is list:
        return [_mended(one, get_args(kind)[0], f"{path}[{index}]", damaged) for index, one in enumerate(value)]
    return value
