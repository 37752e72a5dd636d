# SPDX-License-Identifier: Apache-2.0
"""The triggers other than CDI for which NVIDIA's container runtime gives GPUs: a variable, a mount, an annotation.

That runtime gives every GPU of the node to a container whose `NVIDIA_VISIBLE_DEVICES` is `all`, whether that comes from
the pod, from a ConfigMap by `envFrom`, or from the image (as in NVIDIA's base images). A variable in the container's
own `env` overrides these, so each container gets `void` there: a container with a GPU of ours gets it by its seat's CDI
device, and must not get it from the runtime, which installs no limiter. Only if the cluster gives no seats does the
variable name the GPUs that the scheduler chose. A container with GPUs of NVIDIA's plugin gets no `void`, because that
would override the plugin's own value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.config.resource_names import any_named, is_named
from slicekeeper.errors import Violation
from slicekeeper.gpu.request import GpuRequest
from slicekeeper.kube.objects import Container, EnvVar, Metadata
from slicekeeper.units import is_zero
from slicekeeper.untyped_json import show
from webhook.host_access import canonical
from webhook.manifest import Slot
from webhook.review_inputs import ClusterContext
from webhook.sidecar_container import covers

VISIBLE_DEVICES: Final = "NVIDIA_VISIBLE_DEVICES"
VOID: Final = "void"
VOID_VARIABLE: Final = {"name": VISIBLE_DEVICES, "value": VOID}

_NO_DEVICES: Final = ("", "none", VOID)
_OTHER_VARIABLES: Final = (
    "DOCKER_RESOURCE_GPU",
    "NVIDIA_MIG_CONFIG_DEVICES",
    "NVIDIA_MIG_MONITOR_DEVICES",
    "NVIDIA_NVSWITCH",
)
"""Variables for which the runtime gives devices too. NVIDIA_DRIVER_CAPABILITIES gives none by itself."""

_DEVICE_FOLDER: Final = "/run/nvidia-container-devices"
_RUNTIME_ANNOTATIONS: Final = ("io.kubernetes.cri-o.Devices",)


def holds_device(container: Container, cluster: ClusterContext) -> bool:
    """Whether a container gets GPUs of NVIDIA's plugin, including resources that the settings do not name."""
    amounts, devices = container.resources.amounts, cluster.plugin_devices
    return any_named(amounts, devices) and any(
        is_named(name, devices) and not is_zero(amount) for name, amount in amounts.items()
    )


def devices_variable(gpu: GpuRequest, cluster: ClusterContext) -> dict[str, Any]:
    """Return the variable of a container that holds a GPU of ours."""
    return dict(VOID_VARIABLE) if cluster.gives_seats else _chosen(gpu)


def is_devices_variable(entry: EnvVar, gpu: GpuRequest) -> bool:
    """Whether a variable asks for no GPU, or is as the webhook writes it: a pod from the cluster has it already."""
    return _asks_for_none(entry) or (not entry.value and covers(entry.value_from, _chosen(gpu)["valueFrom"]))


def is_out_of_date(entry: EnvVar, gpu: GpuRequest, devices: Mapping[str, Any]) -> bool:
    """Whether a variable must become `devices`: it names the GPUs although seats give them, or does not without seats.

    One that asks for no GPU stays as the user wrote it if `void` would be written.
    """
    return is_devices_variable(entry, gpu) and _asks_for_none(entry) != (devices == VOID_VARIABLE)


def _asks_for_none(entry: EnvVar) -> bool:
    """Whether NVIDIA's runtime gives no GPU for a variable."""
    return entry.value in _NO_DEVICES and not entry.value_from


def _chosen(gpu: GpuRequest) -> dict[str, Any]:
    field = f"metadata.annotations['{names.gpu_annotation(gpu.container)}']"
    return {"name": VISIBLE_DEVICES, "valueFrom": {"fieldRef": {"fieldPath": field}}}


def needs_void(container: Container, cluster: ClusterContext) -> bool:
    """Whether `void` is missing in a container that holds no GPU of ours: it must hold none of the plugin's either."""
    if holds_device(container, cluster):
        return False
    return not any(entry.name == VISIBLE_DEVICES for entry in container.env)


def of_metadata(metadata: Metadata) -> Iterator[Violation]:
    """Yield annotations that a runtime treats as requests for devices."""
    for key, value in metadata.annotations.items():
        domain = key.rpartition("/")[0]
        if domain == "cdi.k8s.io" or domain.endswith(".cdi.k8s.io") or key in _RUNTIME_ANNOTATIONS:
            yield Violation(
                code="reserved-annotation",
                field=f"metadata.annotations[{key}]",
                value=show(value),
                rule="container runtimes treat the annotation as a request for devices; a GPU pod gets only those "
                "that it requests",
                example="no such annotation",
            )


def of_container(slot: Slot, gpu: GpuRequest | None, cluster: ClusterContext) -> Iterator[Violation]:
    """Yield the fields that would show a container other GPUs than its own."""
    path, name, container = slot.path, slot.name, slot.container
    held = gpu is None and holds_device(container, cluster)
    for index, entry in enumerate(container.env):
        variable = entry.name
        if variable == VISIBLE_DEVICES:
            yield from _visible_devices(f"{path}.env[{index}]", name, entry, gpu, held=held)
        elif variable in _OTHER_VARIABLES and not _asks_for_none(entry):
            yield Violation(
                code="reserved-env",
                container=name,
                field=f"{path}.env[{index}]",
                value=show(variable),
                rule="NVIDIA's runtime gives out devices for this variable; a GPU pod gets only those that it requests",
                example="no such variable",
            )
    for index, mount in enumerate(container.volume_mounts):
        target = mount.mount_path
        if f"{canonical(target)}/".startswith(f"{_DEVICE_FOLDER}/"):
            yield Violation(
                code="device-mount",
                container=name,
                field=f"{path}.volumeMounts[{index}].mountPath",
                value=show(target),
                rule="NVIDIA's runtime treats a mount there as a request for a GPU; a GPU pod gets only those "
                "that it requests",
                example="mountPath: /data",
            )
    if held and not cluster.webhook.allow_env_from:
        yield from _env_from(slot)


def _visible_devices(
    where: str, name: str, entry: EnvVar, gpu: GpuRequest | None, *, held: bool
) -> Iterator[Violation]:
    """Check the variable that names GPUs; `held` is whether the container holds GPUs of NVIDIA's own plugin."""
    if gpu is None:
        if _asks_for_none(entry):
            return
        example = f"no {VISIBLE_DEVICES}" if held else f"value: {VOID}, or no {VISIBLE_DEVICES}"
        rule = (
            "NVIDIA's plugin sets the variable to the GPUs that the container holds, and another value would show it "
            "other pods' GPUs"
            if held
            else "in a container that asks for no GPU the variable would show it other containers' GPUs"
        )
    else:
        if is_devices_variable(entry, gpu):
            return
        example = f"no {VISIBLE_DEVICES}"
        rule = "the variable is reserved; the webhook sets it, and the scheduler chooses the GPUs"
    yield Violation(
        code="reserved-env",
        container=name,
        field=where,
        value=show(entry.value_from or entry.value),
        rule=rule,
        example=example,
    )


def _env_from(slot: Slot) -> Iterator[Violation]:
    """Check the sources of a container whose own `env` may not set the variable: they override the plugin's value."""
    for index, source in enumerate(slot.container.env_from):
        if VISIBLE_DEVICES.startswith(source.prefix):
            yield Violation(
                code="env-from",
                container=slot.name,
                field=f"{slot.path}.envFrom[{index}]",
                value=show(slot.sent["envFrom"][index]),
                rule=f"it may set {VISIBLE_DEVICES}, which overrides the GPUs that NVIDIA's plugin has given the "
                "container; list the variables one by one under env, or use a prefix",
                example="prefix: APP_",
            )
