# SPDX-License-Identifier: Apache-2.0
"""Access to the node that would reach other pods' seats and GPUs: capabilities, folders and namespaces.

This is not a substitute for Pod Security, whose level `baseline` forbids all of it for all pods. It prevents pods from
evading a budget in clusters and namespaces that enforce no level. Each rule has a setting that allows what it refuses.
"""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from typing import Final

from slicekeeper.config.settings import NodeAgentSettings, WebhookSettings
from slicekeeper.errors import Violation
from slicekeeper.kube.objects import PodSpec
from slicekeeper.untyped_json import show
from webhook.manifest import Slot

_CAPABILITIES: Final = frozenset(
    (
        "ALL",
        "BPF",
        "DAC_READ_SEARCH",
        "MAC_ADMIN",
        "MAC_OVERRIDE",
        "PERFMON",
        "SYS_ADMIN",
        "SYS_BOOT",
        "SYS_MODULE",
        "SYS_RAWIO",
        "SYS_TIME",
    )
)
"""Capabilities with which a process can leave its container, or change the clock that pods are charged by.

Those that affect only the pod itself are not refused: debuggers need SYS_PTRACE, RDMA needs IPC_LOCK.
"""

_PATHS: Final = (
    "/run/slicekeeper",
    "/dev/kmem",
    "/dev/mem",
    "/dev/nvidia*",
    "/etc/cdi",
    "/etc/kubernetes",
    "/etc/nvidia-container-runtime",
    "/proc",
    "/run/cdi",
    "/run/containerd",
    "/run/crio",
    "/run/docker*",
    "/run/k0s",
    "/run/k3s",
    "/run/nvidia*",
    "/run/runc",
    "/sys/bus",
    "/sys/devices",
    "/sys/fs",
    "/sys/kernel",
    "/sys/module",
    "/var/lib/containerd",
    "/var/lib/containers",
    "/var/lib/docker",
    "/var/lib/k0s",
    "/var/lib/kubelet",
    "/var/lib/rancher",
    "/var/lib/slicekeeper",
    "/var/snap",
    # What the node itself runs or loads, and what lets users in. Not `passwd` and `group`: many pods mount these to
    # show names for numbers, and whoever writes there still needs another way in.
    "/bin",
    "/boot",
    "/etc/cni",
    "/etc/cron*",
    "/etc/init.d",
    "/etc/ld.so*",
    "/etc/pam.d",
    "/etc/profile*",
    "/etc/rc*",
    "/etc/shadow",
    "/etc/ssh",
    "/etc/sudoers*",
    "/etc/systemd",
    "/etc/udev",
    "/lib*",
    "/opt/cni",
    "/root",
    "/run/dbus",
    "/run/systemd",
    "/sbin",
    "/usr/bin",
    "/usr/lib*",
    "/usr/local/bin",
    "/usr/local/lib*",
    "/usr/local/sbin",
    "/usr/sbin",
    "/var/spool/cron",
)
"""Seats, GPUs, CDI specifications, the runtime and kubelet, which allocate them, and ways to become root. A star
matches the rest of a name."""


def protected_paths(agent: NodeAgentSettings) -> tuple[str, ...]:
    """Return the node's paths that no GPU pod may mount, including those that the node agent is set to use."""
    own = (
        agent.plugin_dir,
        agent.pod_resources_socket,
        agent.cdi_dir,
        *agent.host_cdi_dirs,
        agent.state_dir,
        agent.run_dir,
    )
    return tuple(dict.fromkeys((*_PATHS, *(canonical(path) for path in own if path))))


def of_pod(spec: PodSpec, webhook: WebhookSettings, protected: tuple[str, ...]) -> Iterator[Violation]:
    """Yield the namespaces and folders of the node to which a pod requests access."""
    for code, field, asked, kind, holds, allowed in (
        ("host-pid", "hostPID", spec.host_pid, "process", "processes", webhook.allow_host_pid),
        ("host-ipc", "hostIPC", spec.host_ipc, "IPC", "memory", webhook.allow_host_ipc),
    ):
        if asked and not allowed:
            yield Violation(
                code=code,
                field=f"spec.{field}",
                value="true",
                rule=f"a GPU pod in the node's {kind} namespace could reach other pods' GPU {holds}",
                example=f"{field}: false",
            )
    for index, volume in enumerate(spec.volumes):
        path = volume.host_path.path
        if path is None:
            continue
        reached = reaches(path, protected)
        if reached and not _is_below_any(canonical(path), webhook.allow_host_paths):
            yield Violation(
                code="host-path",
                field=f"spec.volumes[{index}].hostPath.path",
                value=show(path),
                rule=f"a GPU pod that mounts it could reach {reached} of the node, and with it other pods' GPUs",
                example="a folder of data, such as path: /data",
            )


def of_container(slot: Slot, webhook: WebhookSettings) -> Iterator[Violation]:
    """Yield what lets a container leave its isolation."""
    path, name, context = slot.path, slot.name, slot.container.security_context
    if context.privileged and not webhook.allow_privileged:
        yield Violation(
            code="privileged",
            container=name,
            field=f"{path}.securityContext.privileged",
            value="true",
            rule="a privileged container sees all GPUs of its node, so no GPU pod may have one",
            example="privileged: false",
        )
    allowed = {_bare(capability) for capability in webhook.allow_capabilities}
    for index, capability in enumerate(context.capabilities.add):
        if _bare(capability) in _CAPABILITIES - allowed:
            yield Violation(
                code="capability",
                container=name,
                field=f"{path}.securityContext.capabilities.add[{index}]",
                value=show(capability),
                rule="with it a container gets out of its limits, to other pods' GPUs or to the clock they are charged "
                "by, so no GPU pod may have it",
                example="add: [IPC_LOCK]",
            )
    proc = context.proc_mount
    if proc not in ("", "Default") and not webhook.allow_proc_mount:
        yield Violation(
            code="proc-mount",
            container=name,
            field=f"{path}.securityContext.procMount",
            value=show(proc),
            rule="a GPU pod sees /proc as the runtime masks it",
            example="procMount: Default",
        )


def canonical(path: str) -> str:
    """Return a path as the node resolves it: without double slashes and dots, and `/run` instead of `/var/run`."""
    plain = posixpath.normpath("/" + path.strip().lstrip("/"))
    return plain.removeprefix("/var") if plain == "/var/run" or plain.startswith("/var/run/") else plain


def reaches(path: str, protected: tuple[str, ...]) -> str:
    """Return the first protected path that lies at, above or below a path; empty if it reaches none."""
    mine = canonical(path)
    above = mine.rstrip("/") + "/"
    for one in protected:
        if one.endswith("*"):
            if mine.startswith(one[:-1]) or one.startswith(above):
                return one
        elif mine == one or mine.startswith(one + "/") or one.startswith(above):
            return one
    return ""


def _is_below_any(path: str, allowed: tuple[str, ...]) -> bool:
    return any(path == one or path.startswith(one.rstrip("/") + "/") for one in map(canonical, allowed))


def _bare(capability: str) -> str:
    return capability.strip().upper().removeprefix("CAP_")
