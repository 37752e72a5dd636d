# SPDX-License-Identifier: Apache-2.0
"""A node with real containers, for containers.py: runc starts them with the edits of the CDI specification."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from container_root import FOLDER, fill, python
from gpu_node import PROGRAM, Node, Pod, Skip, Tenant

TENANT: Final = "/tenant.py"
_PLAIN: Final = (
    {"destination": "/proc", "type": "proc", "source": "proc"},
    {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "mode=755", "size=64k"]},
    {"destination": "/dev/shm", "type": "tmpfs", "source": "shm", "options": ["nosuid", "nodev", "size=64m"]},
    {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["nosuid", "nodev"]},
    {"destination": TENANT, "type": "bind", "source": str(PROGRAM), "options": ["bind", "ro"]},
)


def oci_config(edits: dict[str, Any], environ: dict[str, str], arguments: list[str]) -> dict[str, Any]:
    """Return a container's OCI configuration with CDI's edits, applied as a container runtime does.

    Each device file keeps its type and numbers, and the container's device cgroup allows it; each mount is a bind mount
    with CDI's options.
    """
    environ = environ | dict(variable.split("=", 1) for variable in edits.get("env", []))
    devices = [_device(one) for one in edits.get("deviceNodes", [])]
    allowed = [{"allow": False, "access": "rwm"}]
    allowed += [
        {"allow": True, "type": one["type"], "major": one["major"], "minor": one["minor"], "access": "rwm"}
        for one in devices
    ]
    mounts = [
        {
            "destination": one["containerPath"],
            "type": one.get("type") or "bind",
            "source": one["hostPath"],
            "options": [*(one.get("options") or []), *([] if "bind" in (one.get("options") or []) else ["rbind"])],
        }
        for one in edits.get("mounts", [])
    ]
    hooks: dict[str, list[dict[str, Any]]] = {}
    for one in edits.get("hooks", []):
        kept = {key: one[key] for key in ("path", "args", "env", "timeout") if key in one}
        hooks.setdefault(one["hookName"], []).append(kept)
    return {
        "ociVersion": "1.0.2",
        "process": {
            "user": {"uid": 0, "gid": 0},
            "args": arguments,
            "env": [f"{key}={value}" for key, value in environ.items()],
            "cwd": "/",
            "noNewPrivileges": True,
        },
        "root": {"path": "root", "readonly": True},
        "mounts": [*_PLAIN, *mounts],
        "hooks": hooks,
        "linux": {
            "namespaces": [{"type": kind} for kind in ("pid", "mount", "ipc", "uts", "network")],
            "devices": devices,
            "resources": {"devices": allowed},
        },
    }


def _device(node: dict[str, Any]) -> dict[str, Any]:
    """Return a device file of CDI as OCI has it: what CDI leaves out is read from the machine's own file."""
    there = Path(node.get("hostPath") or node["path"]).stat()
    return {
        "path": node["path"],
        "type": node.get("type") or "c",
        "major": node.get("major", os.major(there.st_rdev)),
        "minor": node.get("minor", os.minor(there.st_rdev)),
        "fileMode": node.get("fileMode", 0o666),
    }


class ContainerNode(Node):
    """The machine as a node whose runtime is runc."""

    def __init__(self, fake: bool, seconds: float) -> None:
        carried = FOLDER / "runc"
        runc = str(carried) if carried.exists() else shutil.which("runc", path=f"{os.environ['PATH']}:/usr/sbin")
        if runc is None:
            raise Skip("there is no runc: make build/container-root by container_root.py, and carry it along")
        super().__init__(fake, seconds)
        self.torch = False  # the root has none
        self._runc = [runc, "--root", str(self.dir / "runc")]
        self._root = self.dir / "root"
        if (FOLDER / "root").is_dir():
            shutil.copytree(FOLDER / "root", self._root, symlinks=True)
        else:
            fill(self._root)
        self._containers: list[str] = []

    def run(self, pod: Pod, kind: str = "") -> Tenant:
        """Start a pod's container."""
        bundle = self.dir / f"bundle-{pod.name}-{len(self._containers)}"
        shutil.copytree(self._root, bundle / "root", symlinks=True, copy_function=os.link)
        (bundle / "root" / TENANT.lstrip("/")).touch()
        arguments = [python(), TENANT, kind or "driver"]
        config = oci_config(pod.edits, {"PATH": "/usr/bin:/bin", **self._fake_environ()}, arguments)
        (bundle / "config.json").write_text(json.dumps(config))
        shutil.copy(bundle / "config.json", self.dir / "kept" / f"{pod.name}-oci.json")
        name = f"{self.dir.name}-{pod.name}-{len(self._containers)}"
        self._containers.append(name)
        command = [*self._runc, "run", "--bundle", str(bundle), name]
        return self._started(command, dict(os.environ), pod.name)

    def inside(self, pod: str, *command: str) -> str:
        """Run a command in a pod's container; return what it prints."""
        name = next(name for name in reversed(self._containers) if f"-{pod}-" in name)
        done = subprocess.run(
            [*self._runc, "exec", name, *command], capture_output=True, text=True, timeout=20, check=False
        )
        if done.returncode:
            raise AssertionError(f"{' '.join(command)} in {pod}: {done.stderr.strip()[-300:]}")
        return done.stdout

    def clear(self) -> None:
        """End all containers, too."""
        super().clear()
        self._delete()

    def close(self, out: Path | None) -> None:
        """End everything."""
        self._delete()
        super().close(out)

    def _delete(self) -> None:
        for name in self._containers:
            with suppress(subprocess.TimeoutExpired):
                subprocess.run([*self._runc, "delete", "--force", name], capture_output=True, timeout=20, check=False)
        self._containers.clear()
