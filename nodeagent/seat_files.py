# SPDX-License-Identifier: Apache-2.0
"""Write a seat's files for its container: a CDI spec under a name used once, and the seat's folder.

containerd rescans its CDI folder in the background, so a spec that is changed under its name could be used in its old
form. Hence a spec never changes while it exists; what changes during a container's life is in the seat's folder. Each
change in the CDI folder makes containerd read all of it, so a spec is there only while its container is started.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec

from nodeagent.atomic_write import replace_file
from nodeagent.cdi_probe import CdiProbe
from nodeagent.cdi_spec_read import FirstRead, Inotify
from nodeagent.gpu_source import GpuSource
from nodeagent.host_cdi import Edits, joined, own_files
from nodeagent.mounted_programs import mount
from nodeagent.seat_refused import SeatRefused
from nodeagent.seat_store import Seat

log = logging.getLogger(__name__)

IN_CONTAINER: Final = "/run/slicekeeper"

START_SECONDS: Final = 60.0
"""A container that is not created by then finds no device, and kubelet restarts it."""


class SeatFiles:
    """The files of all seats of the node."""

    def __init__(
        self, cdi_dir: Path, run_dir: Path, kind: str, source: GpuSource, limiter: Sequence[dict[str, Any]] = ()
    ) -> None:
        self._cdi_dir = cdi_dir
        self._run_dir = run_dir / "seats"
        self._kind = kind
        self._source = source
        self._limiter = limiter
        self._needed: dict[str, float] = {}
        """By seat, when its spec was last needed; unknown for those of a previous agent."""
        self._first: float | None = None
        """When a container could be created with its spec for the first time."""
        self._inotify = Inotify()
        self.probe = CdiProbe(cdi_dir, kind, self._inotify)
        self._cdi_dir.mkdir(parents=True, exist_ok=True)
        self._run_dir.mkdir(parents=True, exist_ok=True)

    def device(self, seat: Seat) -> str:
        """Return the seat's fully qualified CDI name."""
        return f"{self._kind}={seat.name}"

    def make_folder(self, seat: Seat) -> Path:
        """Return the seat's folder, which is created if it is missing."""
        folder = self._run_dir / seat.name
        folder.mkdir(mode=0o755, exist_ok=True)
        about = folder / "seat.json"
        if not about.exists():
            replace_file(about, msgspec.json.encode(seat) + b"\n", mode=0o644)
        return folder

    @contextmanager
    def written(self, seat: Seat, *, new: bool) -> Iterator[None]:
        """Write the seat's folder and its spec, and return when the container runtime has read the spec.

        Wait only for a limited time: if the runtime then finds no device, kubelet tries again. If the seat is `new`, no
        runtime can know its spec, so inform the probe: a runtime without CDI finds no device and creates the container
        nevertheless.
        Raises SeatRefused if what makes its GPUs usable, or what limits them, is missing.
        """
        folder, file = self.make_folder(seat), self._spec_file(seat)
        self._needed[seat.name] = time.monotonic()
        if file.exists():
            yield
        else:
            with closing(FirstRead(self._inotify)) as read:
                written = time.monotonic()
                replace_file(file, msgspec.json.encode(self._spec(seat, folder)), mode=0o644, before=read.of)
                yield  # the caller tells the arbiter about the seat while the runtime reads the spec
                longest = self.probe.longest_wait()
                if not read.wait(longest):
                    log.warning(
                        "no container runtime has read %s within %g s; is %s among its CDI folders?",
                        file.name,
                        longest,
                        self._cdi_dir,
                    )
                    if new:
                        self.probe.not_read_yet(seat.name, written)
        self._first = self._first or time.monotonic()

    def has_started_one(self) -> bool:
        """Whether a container that needed its spec must have been started by now."""
        return self._first is not None and time.monotonic() - self._first > START_SECONDS

    def tidy(self, seat: Seat) -> None:
        """Remove the seat's spec if its container has been started; the next start writes it again."""
        since = self._needed.setdefault(seat.name, time.monotonic())
        if time.monotonic() - since > START_SECONDS:
            self._spec_file(seat).unlink(missing_ok=True)

    def write_file(self, seat: Seat, name: str, data: bytes) -> None:
        """Replace a file in a seat's folder. Raises OSError, also if the folder is gone with its seat."""
        replace_file(self._run_dir / seat.name / name, data, mode=0o644)

    def read_file(self, seat: Seat, name: str) -> bytes:
        """Return what `write_file` wrote. Raises OSError."""
        return (self._run_dir / seat.name / name).read_bytes()

    def remove(self, seat: Seat) -> None:
        """Remove what `written` wrote."""
        self._needed.pop(seat.name, None)
        self._spec_file(seat).unlink(missing_ok=True)
        shutil.rmtree(self._run_dir / seat.name, ignore_errors=True)

    def sweep(self, seats: list[Seat]) -> None:
        """Remove the files of seats that are no longer known, left by an agent that was killed."""
        known = {seat.name for seat in seats}
        for folder in self._run_dir.iterdir():
            if folder.name not in known:
                shutil.rmtree(folder, ignore_errors=True)
        prefix = own_files(self._kind)
        for file in self._cdi_dir.glob(f"{prefix}*.json"):
            if file.name.removeprefix(prefix).removesuffix(".json") not in known:
                file.unlink(missing_ok=True)

    def _spec_file(self, seat: Seat) -> Path:
        return self._cdi_dir / f"{own_files(self._kind)}{seat.name}.json"

    def _spec(self, seat: Seat, folder: Path) -> dict[str, Any]:
        edits = self._source.edits(seat.gpus) if seat.gpus else Edits()
        mounts = [mount(folder, IN_CONTAINER, "ro", "noexec")]
        if seat.limited:
            if not self._limiter:
                raise SeatRefused("there is no limiter in nodeAgent.programsDir; the agent's image has one")
            mounts += self._limiter
        # The old runtime hook must add nothing to CDI. CDI's env overrides the pod's, and the last one the others.
        env = ["NVIDIA_VISIBLE_DEVICES=void"]
        if seat.preload is not None:  # every program would complain about a missing library
            env.append(f"LD_PRELOAD={seat.preload}")
        ours = Edits({"env": env, "mounts": mounts})
        all_of_it = joined([edits, ours])
        device = {"name": seat.name, "containerEdits": all_of_it.content}
        return {"cdiVersion": all_of_it.version, "kind": self._kind, "devices": [device]}
