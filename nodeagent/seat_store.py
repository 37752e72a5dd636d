# SPDX-License-Identifier: Apache-2.0
"""Seats saved on disk, so that they are restored after an agent's restart, an upgrade or a reboot.

One file per seat id, replaced as a whole. A record without an owner was allocated and not started yet.
"""

from __future__ import annotations

import logging
import threading
from collections import defaultdict
from pathlib import Path
from typing import Final

import msgspec

from nodeagent.atomic_write import replace_file
from slicekeeper import typed_json
from slicekeeper.gpu.inventory import is_slice
from slicekeeper.units import CORES_PER_GPU

log = logging.getLogger(__name__)

_ROOM: Final = 4096
"""Maximum size of a seat's record, in bytes."""


class Seat(msgspec.Struct, frozen=True, rename="camel", kw_only=True):
    """One seat. `nonce` makes its CDI name one that was never used before."""

    id: str
    nonce: str
    namespace: str = ""
    pod: str = ""
    uid: str = ""
    container: str = ""
    gpus: tuple[str, ...] = ()
    core: int = 0
    memory_mib: int = 0
    limited: bool = False
    """Whether its container may not run without the limiter."""
    preload: str | None = None
    """LD_PRELOAD instead of the pod's value, which names a limiter; None: as in the pod."""
    limit: int = 0
    """A fraction's ceiling and class, as its pod last said; on a MIG slice, the slice's compute."""
    background: bool = False

    @property
    def name(self) -> str:
        """Its CDI device name, and the name of its files."""
        return f"{self.id}-{self.nonce}"

    @property
    def is_fraction(self) -> bool:
        """Whether it holds a part of a GPU that the arbiter divides, unlike a sidecar's seat."""
        return 0 < self.core < CORES_PER_GPU and not self.on_slice

    @property
    def on_slice(self) -> bool:
        """Whether it holds a MIG slice."""
        return any(map(is_slice, self.gpus))

    @property
    def is_sole(self) -> bool:
        """Whether it has its GPUs exclusively: whole ones, or a MIG slice."""
        return self.core >= CORES_PER_GPU or self.on_slice

    @property
    def taken(self) -> bool:
        """Whether a container owns it."""
        return bool(self.uid)


class SeatStore:
    """All seats of the node, in memory and in a folder; thread-safe.

    Writers wait for the disk, and for other writes of the same seat; readers wait for neither.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = threading.Lock()
        self._writing: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        """By seat id; `_lock` may be taken while one of these is held, never the reverse."""
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._seats = {seat.id: seat for seat in self._read()}

    def get(self, seat_id: str) -> Seat | None:
        """Return the seat with this ID as it was last saved."""
        with self._lock:
            return self._seats.get(seat_id)

    def all(self) -> list[Seat]:
        """Return every seat."""
        with self._lock:
            return list(self._seats.values())

    def trouble(self) -> str:
        """Return why no seat can be saved now, because the disk is full for example; empty if one can."""
        room = self._folder / ".room"
        try:
            room.write_bytes(bytes(_ROOM))
            room.unlink(missing_ok=True)  # another probe may be quicker
        except OSError as error:
            return str(error.strerror)
        return ""

    def put(self, seat: Seat) -> Seat | None:
        """Save a seat, on disk first; return the one that it replaces."""
        with self._writing[seat.id]:
            replace_file(self._file(seat), msgspec.json.encode(seat), durable=True)
            with self._lock:
                before = self._seats.get(seat.id)
                self._seats[seat.id] = seat
        return before

    def change(self, before: Seat, now: Seat) -> None:
        """Record its pod's current values, if the seat is still this one. A crash may lose them: they are in the pod.

        Raises OSError if they could not be written; until the agent ends they are known nevertheless.
        """
        with self._writing[before.id]:
            if self.get(before.id) == before:
                with self._lock:
                    self._seats[now.id] = now
                replace_file(self._file(now), msgspec.json.encode(now))

    def drop(self, seat: Seat) -> bool:
        """Forget a seat if it is still this one, ignoring its pod's current values; return whether it was."""
        with self._writing[seat.id]:
            known = self.get(seat.id)
            if known is None or (known.name, known.uid) != (seat.name, seat.uid):
                return False
            self._file(seat).unlink(missing_ok=True)
            with self._lock:
                del self._seats[seat.id]
        return True

    def _file(self, seat: Seat) -> Path:
        return self._folder / f"{seat.id}.json"

    def _read(self) -> list[Seat]:
        seats = []
        for file in sorted(self._folder.glob("*.json")):
            try:
                seats.append(typed_json.decode(file.read_bytes(), Seat))
            except (OSError, msgspec.MsgspecError) as error:
                # Its container keeps running; if it restarts, it gets no seat, and its controller replaces the pod.
                log.error("seat record %s is damaged and left out: %s", file, error)
        return seats
