# SPDX-License-Identifier: Apache-2.0
"""Client of the node's arbiter: one line of JSON as request and one as answer, on a socket in the shared folder.

Each call has a connection of its own, so a restarted arbiter is found again without any state. The arbiter serves 64
connections at once, and closes the oldest if there are more, so this client opens fewer.
"""

from __future__ import annotations

import socket
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec

from slicekeeper import typed_json
from slicekeeper.errors import SlicekeeperError

ANSWER_SECONDS: Final = 2.0

CONNECTIONS: Final = 16
"""Connections at once. An answer takes about a millisecond, so the start of a container hardly waits for others."""
TURN_SECONDS: Final = 10.0
"""How long a request waits for one of these connections: on a busy node others may take their whole time first."""

SOCKET: Final = "control.sock"

_T = TypeVar("_T")


class ArbiterAway(SlicekeeperError):
    """The arbiter does not answer."""


class ArbiterRefused(SlicekeeperError):
    """The arbiter refuses a request; the message is its own."""


class ArbiterGpu(msgspec.Struct, frozen=True):
    """A GPU in the arbiter's telemetry."""

    gpu: int
    uuid: str


class ArbiterSeat(msgspec.Struct, frozen=True, rename={"vclass": "class"}):
    """A seat's policy in force, and its counters; times in nanoseconds, memory in bytes."""

    seat: str
    gpu: int
    core: int
    limit: int
    memory_limit: int
    vclass: str
    processes: int = 0
    wall_ns: int = 0
    busy_ns: int = 0
    charged_ns: int = 0
    granted_ns: int = 0
    waited_ns: int = 0
    launches: int = 0
    memory: int = 0
    memory_overhead: int = 0


class AuditFinding(msgspec.Struct, frozen=True):
    """A process that uses a GPU outside a slice, according to the arbiter."""

    pid: int
    gpu: int
    memory: int
    cgroup: str
    how: str = "without the limiter"


class Telemetry(msgspec.Struct, frozen=True):
    """The arbiter's telemetry. Fields that a newer one adds are ignored."""

    pid: int
    now_ns: int
    """The time of the answer, on its clock; a seat was set `wall_ns` before."""
    gpus: list[ArbiterGpu]
    seats: list[ArbiterSeat]
    audit: list[AuditFinding] = []
    rule: str = ""
    """The rule by which idle time is shared; an older arbiter does not report it."""


class _Reply(msgspec.Struct, frozen=True):
    ok: bool
    error: str = ""


@dataclass(frozen=True)
class SeatPolicy:
    """The limits of a seat on its GPU."""

    uuid: str
    core: int
    limit: int
    memory: int
    """In bytes."""
    background: bool
    cgroup: str
    """A part of the control group's path of every process that belongs to the seat."""

    @property
    def vclass(self) -> str:
        """Return the class in the arbiter's terms."""
        return "background" if self.background else "in-budget"

    def holds(self, seat: ArbiterSeat) -> bool:
        """Whether a seat of the arbiter follows this policy."""
        return (seat.core, seat.limit, seat.memory_limit, seat.vclass) == (
            self.core,
            self.limit,
            self.memory,
            self.vclass,
        )


class Arbiter:
    """The arbiter that serves a folder."""

    def __init__(self, folder: Path) -> None:
        self._path = str(folder / SOCKET)
        self._connections = threading.BoundedSemaphore(CONNECTIONS)

    def read(self) -> Telemetry:
        """Return its telemetry. Raises ArbiterAway."""
        return self._ask({"op": "read"}, Telemetry)

    def set(self, name: str, gpu: int, policy: SeatPolicy) -> None:
        """Create or change a seat. Raises ArbiterAway or ArbiterRefused."""
        rights = {"core": policy.core, "limit": policy.limit, "memory": policy.memory, "class": policy.vclass}
        self._ask({"op": "set", "seat": name, "gpu": gpu, **rights, "cgroup": policy.cgroup}, _Reply)

    def drop(self, name: str) -> None:
        """Remove a seat. Raises ArbiterAway or ArbiterRefused."""
        self._ask({"op": "drop", "seat": name}, _Reply)

    def follow(self, rule: str) -> None:
        """Share leftover time by another rule from now on. Raises ArbiterAway or ArbiterRefused."""
        self._ask({"op": "rule", "rule": rule}, _Reply)

    def _ask(self, request: dict[str, Any], kind: type[_T]) -> _T:
        if not self._connections.acquire(timeout=TURN_SECONDS):
            raise ArbiterAway(f"the node's arbiter has not answered {CONNECTIONS} others for {TURN_SECONDS:g} s")
        try:
            line = self._line(msgspec.json.encode(request) + b"\n")
            said = typed_json.decode(line, _Reply)
            if not said.ok:
                raise ArbiterRefused(f"the arbiter refuses: {said.error}")
            return typed_json.decode(line, kind)
        except (OSError, msgspec.MsgspecError) as error:
            raise ArbiterAway(f"the node's arbiter does not answer: {error}") from error
        finally:
            self._connections.release()

    def _line(self, request: bytes) -> bytes:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(ANSWER_SECONDS)
            connection.connect(self._path)
            connection.sendall(request)
            with connection.makefile("rb") as answer:
                return answer.readline()
