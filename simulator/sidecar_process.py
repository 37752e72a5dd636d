# SPDX-License-Identifier: Apache-2.0
"""The real sidecar, run as a child process in the place of its container.

This module prepares what a container gets from its node: volumes as folders, a projected token, the environment with
field references resolved and mount paths turned into those folders, and the usage counters that the node keeps.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from simulator.identities import TokenBook
from simulator.processes import COMMAND, Spawner
from slicekeeper import names
from slicekeeper.config.settings import SidecarSettings
from slicekeeper.kube.client import Object
from slicekeeper.wire import usage_file

FIRST_BACKOFF_SECONDS: Final = 0.2
LONGEST_BACKOFF_SECONDS: Final = 5.0

_KEYED = re.compile(r"metadata\.(annotations|labels)\['([^']+)'\]")


def field(pod: Object, path: str) -> str:
    """Return what a `fieldRef` means for a pod."""
    if match := _KEYED.fullmatch(path):
        return str((pod["metadata"].get(match[1]) or {}).get(match[2], ""))
    node: Any = pod
    for part in path.split("."):
        node = node.get(part) if isinstance(node, dict) else None
    return str(node or "")


def mount_volumes(pod: Object, container: Mapping[str, Any], folder: Path, tokens: TokenBook) -> dict[str, str]:
    """Make a container's volumes under `folder`; return host folder by mount path."""
    volumes = {volume["name"]: volume for volume in pod["spec"].get("volumes") or []}
    mounted: dict[str, str] = {}
    for mount in container.get("volumeMounts") or []:
        volume, place = volumes.get(mount["name"], {}), folder / "volumes" / mount["name"]
        place.mkdir(parents=True, exist_ok=True)
        for source in (volume.get("projected") or {}).get("sources") or []:
            if projection := source.get("serviceAccountToken"):
                audience = projection.get("audience", "https://kubernetes.default.svc")
                (place / projection.get("path", "token")).write_text(tokens.issue(pod, audience), "ascii")
        mounted[mount["mountPath"].rstrip("/")] = str(place)
    return mounted


def on_host(path: str, mounted: Mapping[str, str]) -> str:
    """Return where a container's path lies on this machine; anything but a mounted path stays as it is."""
    for mount_path, place in sorted(mounted.items(), key=lambda item: -len(item[0])):
        if path == mount_path or path.startswith(mount_path + "/"):
            return place + path[len(mount_path) :]
    return path


def environment(pod: Object, container: Mapping[str, Any], mounted: Mapping[str, str]) -> dict[str, str]:
    """Return a container's environment as kubelet resolves it, for a process outside any container."""
    env = {key: os.environ[key] for key in ("PATH", "PYTHONPATH", "LANG") if key in os.environ}
    env[names.ENV_PREFIX + "CONFIG"] = os.devnull  # a container has no file of ours
    env[names.ENV_PREFIX + "SIDECAR_SPOOL_DIR"] = on_host(SidecarSettings().spool_dir, mounted)
    for entry in container.get("env") or []:
        reference = (entry.get("valueFrom") or {}).get("fieldRef")
        value = field(pod, reference["fieldPath"]) if reference else str(entry.get("value") or "")
        env[entry["name"]] = on_host(value, mounted)
    return env


class SidecarProcess:
    """Keeps the sidecar of one pod running until it is asked to stop."""

    def __init__(
        self,
        spawner: Spawner,
        pod: Object,
        container: Mapping[str, Any],
        folder: Path,
        log: Path,
        tokens: TokenBook,
        node_env: Mapping[str, str],
    ) -> None:
        self._spawner = spawner
        self._argv = [*COMMAND, *map(str, container.get("args") or [])]
        self._folder = folder
        self._log = log
        mounted = mount_volumes(pod, container, folder, tokens)
        self._env = {
            **environment(pod, container, mounted),
            **node_env,
            names.ENV_PREFIX + "SIDECAR_USAGE_FILE": str(folder / usage_file.FILE),
        }
        self._process: subprocess.Popen[bytes] | None = None
        self._deadline = float("inf")
        self._restart_at = 0.0
        self._stopping = False
        self.restarts = -1
        self.ensure()

    @property
    def pid(self) -> int | None:
        """The process that runs now."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def ensure(self) -> bool:
        """Start the process again if it has died; return whether it was started."""
        now = time.monotonic()
        if self._stopping or self.pid is not None or now < self._restart_at:
            return False
        self.restarts += 1
        pause = min(FIRST_BACKOFF_SECONDS * 2 ** min(self.restarts, 8), LONGEST_BACKOFF_SECONDS)
        self._restart_at = now + pause
        self._process = self._spawner.start(self._argv, log=self._log, env=self._env, cwd=self._folder)
        return True

    def stop(self, grace_seconds: float) -> None:
        """Send SIGTERM, or SIGKILL if there is no grace; `has_ended` kills what outlives it."""
        if self._stopping and grace_seconds > 0:
            return
        self._stopping = True
        self._deadline = time.monotonic() + grace_seconds
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM if grace_seconds > 0 else signal.SIGKILL)

    def has_ended(self) -> bool:
        """Whether a process that was asked to stop is gone."""
        if self._process is None or self._process.poll() is not None:
            return self._stopping
        if time.monotonic() > self._deadline:
            self._process.kill()
        return False

    def write_usage(self, used_ms: Mapping[str, int]) -> None:
        """Replace the node's counters of this pod's containers."""
        counters = {name: usage_file.Counter(used_ms=ms) for name, ms in used_ms.items()}
        fresh = self._folder / (usage_file.FILE + ".new")
        fresh.write_bytes(msgspec.json.encode(usage_file.PodUsage(source="simulator", containers=counters)))
        fresh.replace(self._folder / usage_file.FILE)
