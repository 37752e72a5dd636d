# SPDX-License-Identifier: Apache-2.0
"""Ways out of a GPU pod to other pods' seats: every spelling is refused, what leads nowhere is not."""

from typing import Any

import pytest

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import NodeAgentSettings, Settings, WebhookSettings
from webhook.admission import Admission
from webhook.host_access import canonical, protected_paths, reaches
from webhook.review_inputs import Case

SETTINGS = Settings()
CASE = Case("team", NamespacePolicy())
PROTECTED = protected_paths(SETTINGS.node_agent)
SHARE = {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 15}


def codes(spec: dict[str, Any], settings: Settings = SETTINGS, case: Case = CASE) -> list[str]:
    judge = Admission(settings)
    return [violation.code for violation in judge.mutate({"metadata": {}, "spec": spec}, case).violations]


def share(**more: Any) -> dict[str, Any]:
    return {"name": "a", "resources": {"limits": SHARE}, **more}


@pytest.mark.parametrize(
    "path",
    [
        "/", "//", "/.", "/run", "/run/", "/var", "/var/", "/var/run", "/var//run/", "/var/./run", "/var/lib",
        "/run/slicekeeper", "/run/slicekeeper/", "/var/run/slicekeeper", "/run/slicekeeper/seats/1-abc/socket",
        "/etc", "/etc/cdi", "/etc/cdi/x.json", "/run/cdi", "/var/run/cdi", "/var/run/cdi/slicekeeper.json",
        "/var/lib/kubelet", "/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins/kubelet.sock",
        "/var/lib/kubelet/pod-resources", "/var/lib/kubelet/pods", "/var/lib/slicekeeper",
        "/dev", "/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-caps/nvidia-cap1", "/dev/mem", "/proc", "/proc/1/root",
        "/run/containerd/containerd.sock", "/run/docker.sock", "/var/run/docker.sock", "/run/crio/crio.sock",
        "/sys", "/sys/fs/cgroup", "/sys/kernel/debug", "/etc/kubernetes/manifests", "/etc/kubernetes",
        "/run/nvidia/driver", "/run/nvidia-persistenced/socket",
        "/sys/bus/pci/devices", "/sys/devices/pci0000:00", "/sys/module/nvidia",
        "/run/k3s/containerd/containerd.sock", "/run/k0s", "/var/lib/rancher/k3s", "/var/lib/k0s/kubelet", "/var/snap",
        "/etc/cron.d", "/etc/systemd/system", "/root/.ssh", "/run/systemd/private", "/run/dbus/system_bus_socket",
        "/var/spool/cron/crontabs", "/usr", "/usr/bin", "/usr/local/bin", "/usr/lib/systemd",
        "/lib64", "/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib", "/usr/libexec/kubernetes", "/usr/local/lib",
        "/opt", "/opt/cni/bin", "/etc/cni/net.d", "/etc/ld.so.conf.d", "/etc/pam.d", "/etc/profile.d", "/etc/shadow",
        "/etc/sudoers.d", "/etc/ssh", "/etc/udev/rules.d", "/etc/init.d",
    ],
)  # fmt: skip
def test_a_path_that_reaches_seats_is_refused_however_it_is_written(path: str) -> None:
    assert reaches(path, PROTECTED)
    assert codes({"containers": [share()], "volumes": [{"name": "v", "hostPath": {"path": path}}]}) == ["host-path"]


@pytest.mark.parametrize(
    "path",
    [
        "/data", "/mnt/x", "/dev/shm", "/dev/infiniband", "/etc/localtime", "/etc/cdix", "/var/lib/kubelets", "/runs",
        "/var/log", "/run/slicekeepers", "/sys/class/infiniband", "/var/lib/data", "/home", "/var/run/udev",
        "/dev/null", "/usr/share/zoneinfo", "/usr/local/share", "/etc/ssl/certs", "/rooted", "/opt/data",
        "/etc/passwd", "/etc/group",
    ],
)  # fmt: skip
def test_a_path_that_leads_nowhere_is_not(path: str) -> None:
    assert not reaches(path, PROTECTED)
    assert not codes({"containers": [share()], "volumes": [{"name": "v", "hostPath": {"path": path}}]})


def test_what_the_agent_is_told_to_use_is_protected_too() -> None:
    settings = Settings(
        node_agent=NodeAgentSettings(run_dir="/var/run/gpus", cdi_dir="/opt/cdi", host_cdi_dirs=("/opt/nvidia",))
    )
    for path in ("/run/gpus/seats", "/opt", "/opt/cdi/x", "/opt/nvidia"):
        spec = {"containers": [share()], "volumes": [{"name": "v", "hostPath": {"path": path}}]}
        assert codes(spec, settings) == ["host-path"]


def test_var_run_is_run() -> None:
    assert canonical("/var/run") == canonical("//var/run/") == canonical("/run") == "/run"
    assert canonical("/var/runs/x") == "/var/runs/x"


@pytest.mark.parametrize("name", ["SYS_ADMIN", "CAP_SYS_ADMIN", "sys_admin", "cap_sys_rawio", "ALL", "all", "BPF"])
@pytest.mark.parametrize("where", ["containers", "initContainers"])
def test_a_capability_that_leads_out_is_refused_in_every_container(name: str, where: str) -> None:
    more = {"name": "b", "restartPolicy": "Always", "securityContext": {"capabilities": {"add": ["CHOWN", name]}}}
    spec: dict[str, Any] = {"containers": [share()]}
    spec[where] = [*spec.get(where, []), more]
    assert codes(spec) == ["capability"]
    allowed = Settings(webhook=WebhookSettings(allow_capabilities=(name.upper(),)))
    assert codes(spec, allowed) == []


@pytest.mark.parametrize("name", ["IPC_LOCK", "SYS_PTRACE", "NET_ADMIN", "SYS_NICE", "CHOWN"])
def test_a_capability_that_stays_inside_is_not(name: str) -> None:
    assert codes({"containers": [share(securityContext={"capabilities": {"add": [name], "drop": ["ALL"]}})]}) == []


@pytest.mark.parametrize("limits", [SHARE, {"nvidia.com/gpu": 1}, {"nvidia.com/mig-1g.5gb": 1}])
@pytest.mark.parametrize(
    ("spec", "context", "code"),
    [
        ({"hostIPC": True}, {}, "host-ipc"),
        ({"hostPID": True}, {}, "host-pid"),
        ({}, {"procMount": "Unmasked"}, "proc-mount"),
        ({}, {"capabilities": {"add": ["SYS_ADMIN"]}}, "capability"),
    ],
)
def test_all_gpu_pods_are_judged_alike(
    limits: dict[str, int], spec: dict[str, Any], context: dict[str, Any], code: str
) -> None:
    container = {"name": "a", "resources": {"limits": limits}, "securityContext": context}
    assert codes({"containers": [container], **spec}) == [code]
    assert codes({"containers": [{"name": "a", "securityContext": context}], **spec}) == [], "a pod without GPUs"


def test_each_can_be_allowed() -> None:
    webhook = WebhookSettings(
        allow_host_ipc=True, allow_proc_mount=True, allow_host_pid=True, allow_host_paths=("/var/run/containerd/",)
    )
    spec = {
        "hostIPC": True,
        "hostPID": True,
        "containers": [share(securityContext={"procMount": "Unmasked"})],
        "volumes": [{"name": "v", "hostPath": {"path": "/run/containerd/containerd.sock"}}],
    }
    assert codes(spec, Settings(webhook=webhook)) == []
    spec["volumes"] = [{"name": "v", "hostPath": {"path": "/run"}}]
    assert codes(spec, Settings(webhook=webhook)) == ["host-path"], "more than is allowed"


@pytest.mark.parametrize(
    "broken",
    [
        {"volumes": [{"name": "v", "hostPath": 5}]},
        {"volumes": [{"name": "v", "hostPath": {"path": None}}]},
        {"containers": [share(securityContext={"capabilities": {"add": [5, None, {}]}})]},
        {"containers": [share(volumeMounts=[5, {"mountPath": 5}])]},
        {"containers": [{**share(), "envFrom": [5, None]}]},
    ],
)
def test_what_has_another_shape_fails_nothing(broken: dict[str, Any]) -> None:
    codes({"containers": [share()], **broken})
