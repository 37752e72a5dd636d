# SPDX-License-Identifier: Apache-2.0
"""A whole local cluster for tests: the simulated cluster in this process, the real parts as its children."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from support.waiting import wait_for

from simulator.api_errors import ObjectNotFound
from simulator.local import LocalCluster, Options
from slicekeeper.kube.client import NAMESPACES, PODS, KubeClient, Object

T = TypeVar("T")

PATIENCE = 120.0
COMMAND = [sys.executable, "-c", "from slicekeeper.cli.main import main; main()"]


def start(folder: Path, policy: str = "", **options: Any) -> LocalCluster:
    """Return a cluster that has been started in a folder; `stop` it. A test's clients of it wait long for answers."""
    file = folder / "given-policy.yaml"
    file.write_text(policy)
    local = LocalCluster(folder / "home", Options(policy=file, **options), lambda _line: None)
    local.start()
    ours = local.settings
    local.settings = replace(
        ours,
        kubernetes=replace(ours.kubernetes, timeout_seconds=PATIENCE),
        timekeeper_client=replace(ours.timekeeper_client, timeout_seconds=PATIENCE),
    )
    return local


def namespace(client: KubeClient, name: str) -> None:
    """Create a namespace."""
    client.create(NAMESPACES, {"metadata": {"name": name}})


def pod(
    client: KubeClient,
    where: str,
    name: str,
    core: int,
    blocks: int = 1,
    seconds: int | None = None,
    **annotations: str,
) -> Object:
    """Create a pod with one GPU container that runs for so many seconds of the cluster's time, or until deleted."""
    limits = {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": blocks}
    command = ["sleep", "infinity" if seconds is None else str(seconds)]
    container = {"name": "main", "image": "busybox", "command": command, "resources": {"limits": limits}}
    body = {
        "metadata": {"name": name, "annotations": annotations},
        "spec": {"restartPolicy": "Never", "containers": [container]},
    }
    return client.create(PODS, body, where)


def pods(local: LocalCluster, where: str = "") -> dict[str, Object]:
    """Return the pods that there are, by name."""
    return {p["metadata"]["name"]: p for p in local.cluster.store.collection(PODS, where)[0]}


def records(local: LocalCluster) -> list[Object]:
    """Return the last record of every pod that there ever was."""
    return [*local.cluster.store.removed_pods, *local.cluster.store.collection(PODS)[0]]


def delete_all(local: LocalCluster) -> None:
    """Delete every pod, and wait until the ledger has let all of them go."""
    for name, found in pods(local).items():
        with contextlib.suppress(ObjectNotFound):  # it has gone by itself meanwhile
            local.cluster.store.delete(PODS, name, found["metadata"]["namespace"])
    wait_for(lambda: not pods(local), "the release of all pods", 180)


def kill(pid: int) -> None:
    """Kill -9; a process that has just ended is all the same."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def processes_of(home: Path) -> list[str]:
    """Return the command lines of all processes that work in or for a local mode's home."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            cwd = str((entry / "cwd").readlink())
        except OSError:
            continue
        if state != "Z" and (str(home) in line or cwd.startswith(str(home))):
            found.append(f"{entry.name} {line}")
    return found
