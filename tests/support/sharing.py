# SPDX-License-Identifier: Apache-2.0
"""One agent's shares over a real arbiter, without the rest of the agent."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from support.waiting import wait_for

from nodeagent.arbiter_client import Arbiter
from nodeagent.host_cdi import HostCdi
from nodeagent.nvml_gpus import NvmlGpus
from nodeagent.seat_store import Seat, SeatStore
from nodeagent.shares import Shares
from slicekeeper import names

GIB = 1 << 30


class Sharing:
    """One agent's shares, without the rest of it."""

    def __init__(self, running: Any, folder: Path) -> None:
        self.running, self.folder = running, folder
        self.ceiling: int | None = 100
        self.pods: list[dict[str, Any]] = []
        wait_for(running.read, "the arbiter answers")
        self.gpus = NvmlGpus(folder / "withdrawn", HostCdi([]))
        self.gpu = self.gpus.gpus()[1].uuid
        self.agent()

    def agent(self) -> None:
        """Start as another process would: only the folders are the same."""
        self.store = SeatStore(self.folder / "state")
        self.shares = Shares(Arbiter(self.running.folder), self.store, limits=True, ceiling_of=lambda _: self.ceiling)

    def all(self) -> list[dict[str, Any]]:
        return list(self.pods)

    def seat(self, number: int, core: int = 40, limit: str = "70", **annotations: str) -> Seat:
        """Start a container as `Seats` does."""
        uid = f"c0ffee00-0000-4000-8000-00000000000{number}"
        limits = {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": "8"}
        pod = {
            "metadata": {
                "namespace": "team",
                "name": f"p{number}",
                "uid": uid,
                "annotations": {names.CORE_LIMIT: limit, **annotations},
            },
            "spec": {"containers": [{"name": "train", "resources": {"limits": limits}}]},
            "status": {"phase": "Running"},
        }
        self.pods.append(pod)
        seat = self.shares.as_pod_says(
            pod,
            Seat(
                id=f"seat-000{number}",
                nonce="ab",
                namespace="team",
                pod=f"p{number}",
                uid=uid,
                container="train",
                gpus=(self.gpu,),
                core=core,
                memory_mib=2048,
                limited=True,
            ),
        )
        self.store.put(seat)
        self.shares.give(seat)
        return seat

    def annotate(self, **annotations: str) -> None:
        """Change the first pod as a watch shows it: by another object."""
        metadata = self.pods[0]["metadata"]
        metadata = {**metadata, "annotations": metadata["annotations"] | annotations}
        self.pods[0] = {**self.pods[0], "metadata": metadata}
        self.shares.changed()

    def held(self) -> dict[str, tuple[int, int, int, str]]:
        told = self.running.read()
        if told is None:
            return {}
        return {s.seat: (s.gpu, s.core, s.limit, s.vclass) for s in told.seats}
