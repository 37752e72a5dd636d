# SPDX-License-Identifier: Apache-2.0
"""What a pod asks of GPUs, read from its manifest with exact integers, or the rules it breaks.

Every part that needs to know what a pod asks for calls `parse_pod`: the webhook to refuse, the scheduler to
place, the timekeeper to charge. The rules are those of `docs/requests.md`.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from slicekeeper import names
from slicekeeper.config.resource_names import any_named, is_named
from slicekeeper.config.settings import Resources
from slicekeeper.errors import RequestRefused, Violation
from slicekeeper.units import CORES_PER_GPU, MIB_PER_BLOCK, parse_quantity, whole_quantity
from slicekeeper.untyped import as_list, as_map, show

MAX_GPUS: Final = 64
"""No node carries more; a larger count is a mistake in the unit."""

MAX_GANG: Final = 512
"""No gang has more pods; it is placed as one, so its size bounds how long that takes."""

MAX_BLOCKS: Final = 1 << 20
"""256 TiB: far above any GPU, far below what overflows an integer of any reader."""

_CORE_RULE: Final = f"compute is 1 to 99 percent of one GPU, or a multiple of {CORES_PER_GPU} for whole GPUs"
_UUID: Final = "GPU-8f6e1a52-3b0c-4d9e-a1f7-5c2d90e4b6a8"
_KIND_OF_LIST: Final = (("initContainers", ""), ("containers", "app"), ("ephemeralContainers", "ephemeral"))
_WISHES: Final = frozenset(names.USER_ANNOTATIONS)
LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True)
class GpuRequest:
    """What one container asks for.

    `core` is percent of one GPU, 1…99, or n × 100 for n whole GPUs. `memory_blocks` counts blocks of 256 MiB
    and is None if whole GPUs were asked without it. `limit` is the elastic ceiling in percent, None for
    whole GPUs and if neither the user nor the webhook has set one.
    """

    container: str
    core: int
    memory_blocks: int | None
    limit: int | None = None

    @property
    def is_fraction(self) -> bool:
        """Whether this is a share of one GPU and not one or more whole ones."""
        return self.core < CORES_PER_GPU

    @property
    def gpus(self) -> int:
        """How many GPUs the container holds, a shared one counted as one."""
        return 1 if self.is_fraction else self.core // CORES_PER_GPU

    @property
    def memory_mib(self) -> int:
        """Memory asked for in MiB, 0 if none was named."""
        return (self.memory_blocks or 0) * MIB_PER_BLOCK


@dataclass(frozen=True)
class PodRequest:
    """What a pod asks for: its containers' requests in the manifest's order, and the pod-wide wishes."""

    requests: tuple[GpuRequest, ...] = ()
    gpu_class: str = names.STANDARD
    sharing: str = "adaptive"
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""
    gpu_uuid: str = ""
    gpu_models: tuple[str, ...] = ()
    gang: str = ""
    """The name of the pod's gang; empty with a size: the pods of its controller."""
    gang_size: int = 0
    """How many pods of the gang must be there before any gets a place, 0 without a gang."""
    whole_device_gpus: Mapping[str, int] = field(default_factory=dict, hash=False)
    """How many devices of NVIDIA's own plugin each container asks for, whatever part of a GPU they are."""
    devices: Mapping[str, Mapping[str, int]] = field(default_factory=dict, hash=False)
    """The same by the resource's name: container → resource → number."""

    @property
    def core(self) -> int:
        """Sum of the containers' `vcuda-core`."""
        return sum(r.core for r in self.requests)

    @property
    def memory_blocks(self) -> int:
        """Sum of the containers' `vcuda-memory`."""
        return sum(r.memory_blocks or 0 for r in self.requests)

    @property
    def has_fraction(self) -> bool:
        """Whether any container asks for a share of a GPU."""
        return any(r.is_fraction for r in self.requests)

    def is_limited(self, request: GpuRequest) -> bool:
        """Whether the limiter holds a container to its share: not if it asks for a MIG slice, as the hardware does."""
        return request.is_fraction and self.sharing != names.MIG


def is_native_sidecar(container: Mapping[str, Any]) -> bool:
    """Whether an init container stays up beside the app containers (KEP-753)."""
    return container.get("restartPolicy") == "Always"


def containers(spec: Mapping[str, Any]) -> Iterator[tuple[str, str, Mapping[str, Any]]]:
    """Yield `(field path, kind, container)` of every container: kind is `init`, `sidecar`, `app`, `ephemeral`."""
    for key, kind in _KIND_OF_LIST:
        for index, entry in enumerate(as_list(spec.get(key))):
            container = as_map(entry)
            yield f"spec.{key}[{index}]", kind or ("sidecar" if is_native_sidecar(container) else "init"), container


def container_name(container: Mapping[str, Any]) -> str:
    """Return a container's name, empty if the manifest has none or no string."""
    name = container.get("name")
    return name if isinstance(name, str) else ""


def annotations_of(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a pod's annotations, empty if it has none."""
    return as_map(as_map(pod.get("metadata")).get("annotations"))


def sharing_mode(pod: Mapping[str, Any]) -> str:
    """Return the mode that the scheduler chose for a pod, without its reason; empty if ours has not bound it."""
    value = annotations_of(pod).get(names.SHARING_MODE)
    return value.partition(":")[0] if isinstance(value, str) else ""


def asks_for(pod: Mapping[str, Any], resources: tuple[str, ...]) -> bool:
    """Whether any container names one of `resources`, in requests or limits, with any value at all.

    A name that ends in `*` matches all that begin so.
    """
    spec = as_map(pod.get("spec"))
    return any(_names_any(as_map(entry), resources) for key, _ in _KIND_OF_LIST for entry in as_list(spec.get(key)))


def _names_any(container: Mapping[str, Any], resources: tuple[str, ...]) -> bool:
    declared = as_map(container.get("resources"))
    limits, requests = as_map(declared.get("limits")), as_map(declared.get("requests"))
    return any_named(limits, resources) or any_named(requests, resources)


def is_zero(quantity: object) -> bool:
    """Whether a resource's amount is 0, however it is written."""
    return whole_quantity(quantity) == 0


def parse_pod(pod: Mapping[str, Any], resources: Resources, *, ceiling: int = CORES_PER_GPU) -> PodRequest:
    """Return what `pod` asks for; `ceiling` is the namespace's elastic maximum in percent.

    Raises RequestRefused with every rule that the manifest breaks.
    """
    reader = _Reader(resources, ceiling)
    request = reader.pod(pod)
    if reader.violations:
        raise RequestRefused(reader.violations)
    return request


def parse_admitted(pod: Mapping[str, Any], resources: Resources) -> tuple[PodRequest, str]:
    """Return what a pod that is there asks for and, if its manifest breaks a rule, which one.

    Its containers' requests count even if an annotation is wrong: a user who could write one would otherwise have
    the pod hold nothing and owe nothing.
    """
    try:
        return parse_pod(pod, resources), ""
    except RequestRefused as error:
        refusal = str(error)
    bare = {**pod, "metadata": {**as_map(pod.get("metadata")), "annotations": {}}}
    try:
        return parse_pod(bare, resources), refusal
    except RequestRefused:
        return PodRequest(), refusal


class _Reader:
    """Reads one manifest, collecting violations instead of stopping at the first."""

    def __init__(self, resources: Resources, ceiling: int) -> None:
        self.resources = resources
        self.ceiling = ceiling
        self.violations: list[Violation] = []
        self.paths: dict[str, str] = {}
        """Field path of each container that asks for a GPU, by its name."""

    def refuse(self, *, code: str, field: str, value: object, rule: str, example: str, container: str = "") -> None:
        self.violations.append(
            Violation(code=code, container=container, field=field, value=show(value), rule=rule, example=example)
        )

    def pod(self, pod: Mapping[str, Any]) -> PodRequest:
        annotations = annotations_of(pod)
        found: list[GpuRequest] = []
        devices: dict[str, Mapping[str, int]] = {}
        known: list[str] = []
        for path, kind, container in containers(as_map(pod.get("spec"))):
            name = container_name(container)
            known.append(name)
            request = self.container(path, kind, name, container)
            if request is not None:
                found.append(request)
            counts = self.devices(path, name, container)
            if counts:
                devices[name] = counts
        requests = tuple(self.with_limit(request, annotations) for request in found)
        if requests:
            self.check_limit_annotations(requests, known, annotations)
        return PodRequest(
            requests=requests,
            whole_device_gpus={name: sum(counts.values()) for name, counts in devices.items()},
            devices=devices,
            **(self.wishes(annotations, requests) if requests or devices else {}),
        )

    def container(self, path: str, kind: str, name: str, container: Mapping[str, Any]) -> GpuRequest | None:
        if not _names_any(container, (self.resources.core, self.resources.memory)):
            return None
        if kind == "sidecar" and name == names.SIDECAR and self.asks_none(container):
            return None
        self.paths[name] = path
        core_field = f"{path}.resources.limits[{self.resources.core}]"
        if kind in ("init", "ephemeral"):
            self.refuse(
                code=f"gpu-in-{kind}-container",
                container=name,
                field=core_field,
                value=self.declared(container, self.resources.core),
                rule="a plain init container cannot hold a GPU, because kubelet hands its devices on to the app "
                "containers; move the work to an app container or make it a native sidecar"
                if kind == "init"
                else "an ephemeral container cannot hold a GPU; ask for it in spec.containers",
                example="restartPolicy: Always"
                if kind == "init"
                else f"{self.resources.core}: 50 in spec.containers[0]",
            )
            return None
        core = self.quantity(path, name, container, self.resources.core, "50")
        blocks = self.quantity(path, name, container, self.resources.memory, "15")
        if not core:
            if blocks and self.declared(container, self.resources.core) is None:
                self.refuse(
                    code="memory-without-core",
                    container=name,
                    field=f"{path}.resources.limits[{self.resources.memory}]",
                    value=blocks,
                    rule=f"memory of a GPU comes only with compute: {self.resources.core} is missing",
                    example=f"{self.resources.core}: 50 beside {self.resources.memory}: {blocks}",
                )
            return None
        if core > CORES_PER_GPU and core % CORES_PER_GPU:
            lower = core // CORES_PER_GPU * CORES_PER_GPU
            self.refuse(
                code="core-not-whole",
                container=name,
                field=core_field,
                value=core,
                rule=_CORE_RULE,
                example=f"{self.resources.core}: {lower}",
            )
            return None
        if core > MAX_GPUS * CORES_PER_GPU:
            self.refuse(
                code="core-too-large",
                container=name,
                field=core_field,
                value=core,
                rule=f"a container can hold at most {MAX_GPUS} GPUs",
                example=f"{self.resources.core}: {CORES_PER_GPU}",
            )
            return None
        if core < CORES_PER_GPU and not blocks:
            if self.declared(container, self.resources.memory) is None:
                self.refuse(
                    code="memory-missing",
                    container=name,
                    field=f"{path}.resources.limits[{self.resources.memory}]",
                    value=None,
                    rule=f"a share of a GPU needs its share of memory too, in blocks of {MIB_PER_BLOCK} MiB",
                    example=f"{self.resources.memory}: 15 beside {self.resources.core}: {core}",
                )
            return None
        return GpuRequest(name, core, blocks)

    def declared(self, container: Mapping[str, Any], resource: str) -> object:
        """Return what the manifest says of a resource, limits first; None if it says nothing."""
        declared = as_map(container.get("resources"))
        return as_map(declared.get("limits")).get(resource, as_map(declared.get("requests")).get(resource))

    def asks_none(self, container: Mapping[str, Any]) -> bool:
        """Whether a container has 0 of all that it names: the webhook writes so if a LimitRange has defaults."""
        named = (self.declared(container, resource) for resource in (self.resources.core, self.resources.memory))
        return all(amount is None or is_zero(amount) for amount in named)

    def devices(self, path: str, name: str, container: Mapping[str, Any]) -> dict[str, int]:
        """Return how many of NVIDIA's own devices a container asks for; 0, as charts write it, asks for none."""
        found: dict[str, int] = {}
        if not _names_any(container, self.resources.devices):
            return found
        declared = as_map(container.get("resources"))
        for device in dict.fromkeys((*as_map(declared.get("limits")), *as_map(declared.get("requests")))):
            if is_named(device, self.resources.devices) and not is_zero(self.declared(container, device)):
                count = self.quantity(path, name, container, device, "1")
                if count:
                    found[device] = count
        return found

    def quantity(self, path: str, name: str, container: Mapping[str, Any], resource: str, example: str) -> int | None:
        """Return a resource's positive integer amount; None if it is absent or refused; 0 never."""
        declared = as_map(container.get("resources"))
        limits, requests = as_map(declared.get("limits")), as_map(declared.get("requests"))
        if resource not in limits and resource not in requests:
            return None
        if resource not in limits:
            self.refuse(
                code="limit-missing",
                container=name,
                field=f"{path}.resources.limits[{resource}]",
                value=None,
                rule="an extended resource is asked for in limits; requests alone are not enough",
                example=f"{resource}: {example}",
            )
            return None
        value = limits[resource]
        maximum = MAX_BLOCKS if resource == self.resources.memory else 10**6
        amount = whole_quantity(value)
        if amount is None or not 0 < amount <= maximum:
            example = f"{resource}: {example}"
            rule = f"it must be a whole number from 1 to {maximum}"
            if resource == self.resources.core:
                rule = _CORE_RULE
            elif resource == self.resources.memory:
                rule = f"memory counts blocks of {MIB_PER_BLOCK} MiB, in whole numbers from 1 to {maximum}"
                example = self.in_blocks(value, example)
            self.refuse(
                code="quantity-invalid",
                container=name,
                field=f"{path}.resources.limits[{resource}]",
                value=value,
                rule=rule,
                example=example,
            )
            return None
        if resource in requests and whole_quantity(requests[resource]) != amount:
            self.refuse(
                code="request-differs",
                container=name,
                field=f"{path}.resources.requests[{resource}]",
                value=requests[resource],
                rule=f"requests and limits of an extended resource must be equal (limits say {amount})",
                example=f"{resource}: {amount} in both",
            )
            return None
        return amount

    def in_blocks(self, value: object, example: str) -> str:
        """Return the example in blocks for an amount that was plainly meant in bytes."""
        try:
            amount = parse_quantity(value)
        except ValueError:
            return example
        blocks = -(-amount // (MIB_PER_BLOCK << 20))
        if amount < 1 << 20 or blocks > MAX_BLOCKS:
            return example
        return f"{self.resources.memory}: {blocks}"

    def with_limit(self, request: GpuRequest, annotations: Mapping[str, Any]) -> GpuRequest:
        """Return the request with its ceiling: the container's own annotation, else the pod's."""
        if not request.is_fraction:
            return request
        own = names.limit_annotation(request.container)
        key = own if own in annotations else names.CORE_LIMIT
        if request.core > self.ceiling:
            self.refuse(
                code="core-above-ceiling",
                container=request.container,
                field=f"{self.paths[request.container]}.resources.limits[{self.resources.core}]",
                value=request.core,
                rule=f"this namespace's ceiling for a share is {self.ceiling} percent of a GPU",
                example=f"{self.resources.core}: {self.ceiling}",
            )
            return request
        if key not in annotations:
            return request
        value = annotations[key]
        where = f"metadata.annotations[{key}]"
        example = f'{key}: "{self.ceiling}"'
        if not (isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 3):
            self.refuse(
                code="limit-invalid",
                container=request.container,
                field=where,
                value=value,
                rule="the ceiling is a whole number of percent of one GPU, as a string",
                example=example,
            )
            return request
        limit = int(value)
        if not request.core <= limit <= self.ceiling:
            self.refuse(
                code="limit-out-of-range",
                container=request.container,
                field=where,
                value=value,
                rule=f"the ceiling lies between the container's request ({request.core}) "
                f"and the namespace's ceiling ({self.ceiling})",
                example=example,
            )
            return request
        return GpuRequest(request.container, request.core, request.memory_blocks, limit)

    def check_limit_annotations(
        self, requests: tuple[GpuRequest, ...], known: list[str], annotations: Mapping[str, Any]
    ) -> None:
        """Refuse a ceiling for a container that is not there or holds whole GPUs: it would do nothing."""
        fractions = {r.container for r in requests if r.is_fraction}
        for key, value in annotations.items():
            container = key.removeprefix(names.CONTAINER_LIMIT_PREFIX)
            if container == key or container in fractions:
                continue
            near = difflib.get_close_matches(container, sorted(fractions), 1, 0.0)
            self.refuse(
                code="limit-without-share",
                container=container if container in known else "",
                field=f"metadata.annotations[{key}]",
                value=value,
                rule="the ceiling belongs to a container that asks for a share of a GPU (1 to 99 percent)",
                example=f'{names.limit_annotation(near[0])}: "{self.ceiling}"' if near else "no such annotation",
            )

    def wishes(self, annotations: Mapping[str, Any], requests: tuple[GpuRequest, ...]) -> dict[str, Any]:
        """Return the pod-wide wishes that a PodRequest has other than by default."""
        if _WISHES.isdisjoint(annotations):
            return {}
        sharing = self.choice(annotations, names.SHARING, names.SHARING_MODES, "adaptive")
        if sharing == "shared" and any(not r.is_fraction for r in requests):
            self.refuse(
                code="shared-whole-gpu",
                field=f"metadata.annotations[{names.SHARING}]",
                value=sharing,
                rule="whole GPUs are not shared; ask for 1 to 99 percent or choose another mode",
                example=f"{names.SHARING}: exclusive",
            )
        affinity = self.label(annotations, names.GPU_AFFINITY)
        if sharing == names.MIG and any(not r.is_fraction for r in requests):
            self.refuse(
                code="mig-whole-gpu",
                field=f"metadata.annotations[{names.SHARING}]",
                value=sharing,
                rule="a MIG slice is a part of one GPU, for a container that asks for 1 to 99 percent of it; whole "
                "GPUs are given out undivided",
                example=f"{names.SHARING}: {names.EXCLUSIVE}",
            )
        if sharing == names.MIG and affinity:
            self.refuse(
                code="mig-affinity",
                field=f"metadata.annotations[{names.GPU_AFFINITY}]",
                value=affinity,
                rule="a MIG slice is one container's alone, so nothing can be together on it",
                example=f"{names.SHARING}: {names.SHARED} beside {names.GPU_AFFINITY}: {affinity}",
            )
        text = self.text(annotations, names.GPU_MODEL, "A100,H100")
        models = tuple(model.strip() for model in text.split(",") if model.strip())
        if text and not models:
            self.refuse(
                code="text-invalid",
                field=f"metadata.annotations[{names.GPU_MODEL}]",
                value=annotations[names.GPU_MODEL],
                rule="it must name at least one model, several separated by commas",
                example=f"{names.GPU_MODEL}: A100,H100",
            )
        uuid = self.text(annotations, names.GPU_UUID, _UUID)
        if re.search(r"[\s,;]", uuid):
            first = next((part for part in re.split(r"[\s,;]+", uuid) if part), _UUID)
            self.refuse(
                code="text-invalid",
                field=f"metadata.annotations[{names.GPU_UUID}]",
                value=annotations[names.GPU_UUID],
                rule="it must name one GPU or MIG slice by its UUID, as `slicekeeper nodes` shows it; "
                "no pod can be on each of several",
                example=f"{names.GPU_UUID}: {first}",
            )
        return {
            "gpu_class": self.choice(annotations, names.GPU_CLASS, names.GPU_CLASSES, names.STANDARD),
            "sharing": sharing,
            "affinity": affinity,
            "anti_affinity": self.label(annotations, names.GPU_ANTI_AFFINITY),
            "exclusion": self.label(annotations, names.GPU_EXCLUSION),
            "gpu_uuid": uuid,
            "gpu_models": models,
            "gang": self.label(annotations, names.GANG),
            "gang_size": self.gang_size(annotations),
        }

    def gang_size(self, annotations: Mapping[str, Any]) -> int:
        """Return how many pods a gang has at least, 0 without a gang."""
        key = names.GANG_SIZE
        value = annotations.get(key)
        if value is None and not annotations.get(names.GANG):
            return 0
        if isinstance(value, str) and value.isascii() and value.isdecimal() and len(value) <= 4:
            size = int(value)
            if 2 <= size <= MAX_GANG:
                return size
        self.refuse(
            code="gang-size-invalid",
            field=f"metadata.annotations[{key}]",
            value=value,
            rule=f"a gang's size is how many of its pods are placed together or not at all, a whole number from 2 to "
            f"{MAX_GANG}, as a string",
            example=f'{key}: "8"',
        )
        return 0

    def choice(self, annotations: Mapping[str, Any], key: str, allowed: tuple[str, ...], default: str) -> str:
        value = annotations.get(key, default)
        if value in allowed and isinstance(value, str):
            return value
        reason = f" ({value} is planned and not there yet)" if value in names.PLANNED_SHARING_MODES else ""
        self.refuse(
            code="choice-unknown",
            field=f"metadata.annotations[{key}]",
            value=value,
            rule=f"it must be one of {', '.join(allowed)}{reason}",
            example=f"{key}: {default}",
        )
        return default

    def label(self, annotations: Mapping[str, Any], key: str) -> str:
        value = annotations.get(key, "")
        if value == "" or (isinstance(value, str) and LABEL.fullmatch(value)):
            return str(value)
        self.refuse(
            code="label-invalid",
            field=f"metadata.annotations[{key}]",
            value=value,
            rule="it must be a label: up to 63 letters, digits, '-', '_' or '.', a letter or digit at both ends",
            example=f"{key}: training",
        )
        return ""

    def text(self, annotations: Mapping[str, Any], key: str, example: str) -> str:
        value = annotations.get(key, "")
        if (
            isinstance(value, str)
            and len(value) <= 1024
            and value.isprintable()
            and (value.strip() or key not in annotations)
        ):
            return value.strip()
        self.refuse(
            code="text-invalid",
            field=f"metadata.annotations[{key}]",
            value=value,
            rule="it must be a non-empty line of at most 1,024 printable characters",
            example=f"{key}: {example}",
        )
        return ""
