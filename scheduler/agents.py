# SPDX-License-Identifier: Apache-2.0
"""Asks a node's agent, right before a pod is bound there, whether kubelet has the node's seats.

kubelet fails a pod that it is given while it has none, and a pod that no controller made would be lost; a bind that
fails is tried again. So a node gets no pod while its agent says no, or is silent although it has answered before. But
for a minute at most: then kubelet's own word in the node's status is newer. An agent that has never answered (a
network policy may be in the way) keeps no pod out.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal

from slicekeeper.agent_address import STOPPING, Address, decode
from slicekeeper.clock import Clock

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
BELIEVED_SECONDS: Final = 60.0
"""kubelet tells of lost seats within 10 s, and a node whose kubelet is dead is known for it after 40 to 50 s."""
LONGEST_PAUSE_SECONDS: Final = 256.0
TOLD_BYTES: Final = 1024
"""So much of an answer is read."""

Answer = Literal["ready", "not-ready", "refused", "silent"]


@dataclass
class _Known:
    """What is known of the agent at one address."""

    value: str
    answered: bool = False
    since_ns: int = 0
    """When it was first found not ready, or silent, in a row of such findings."""
    last_ns: int | None = None
    silences: int = 0
    ask_again_ns: int = 0
    verdict: str = ""

    def take(self, answer: Answer, why: str, now_ns: int) -> str:
        """Take an answer; return why no pod should be bound there, empty where one may."""
        if answer == "ready":
            self.answered, self.last_ns, self.silences, self.verdict = True, None, 0, ""
            return ""
        if self.last_ns is None or now_ns - self.last_ns > BELIEVED_SECONDS * 1e9:
            self.since_ns = now_ns
        self.last_ns = now_ns
        self.answered |= answer != "silent"
        believed = self.answered and now_ns - self.since_ns < BELIEVED_SECONDS * 1e9
        if answer == "silent":
            # Asking costs seconds: not for every pod of a burst, and ever more seldom where nothing hangs on it.
            pause = 1.0 if believed else min(2.0**self.silences, LONGEST_PAUSE_SECONDS)
            self.ask_again_ns = now_ns + int(pause * 1e9)
            self.silences += not believed
        self.verdict = f"{why}; the pod is tried again" if believed else ""
        return self.verdict


class Agents:
    """The agents of all nodes as this process has met them. Safe from any thread; callers ask side by side."""

    def __init__(self, clock: Clock, count: Callable[[str], None]) -> None:
        self._clock = clock
        self._count = count
        self._known: dict[str, _Known] = {}
        self._lock = threading.Lock()

    def why_not(self, node: str, value: str) -> str:
        """Return why no pod should be bound to the node now, empty where one may.

        `value` is its annotation `slicekeeper.io/agent`. Where it has none, nobody is asked.
        """
        if not value:
            return ""
        with self._lock:
            known = self._known.get(node)
            if known is None or known.value != value:
                known = self._known[node] = _Known(value)
            if self._clock.monotonic_ns() < known.ask_again_ns:
                return known.verdict
        answer, why = ask(value)
        self._count(answer)
        with self._lock:
            verdict = known.take(answer, why, self._clock.monotonic_ns())
            first = known.silences == 1
        if answer == "silent" and not verdict and first:
            log.warning("pods are bound to node %s without asking: %s", node, why)
        return verdict


def ask(value: str) -> tuple[Answer, str]:
    """Ask the agent of an annotation's value; return what it answers, and that in words."""
    if value == STOPPING:
        return "not-ready", "its node agent is being replaced"
    try:
        address = decode(value)
        status, text = _get(address)
    except ConnectionRefusedError:
        return "refused", "its node agent does not run"
    except (OSError, ValueError) as error:
        return "silent", f"its node agent at {value[:60]} does not answer: {error}"
    if status == "200":
        return "ready", ""
    if status == "503":
        return "not-ready", f"its node agent is not ready: {text}"
    return "silent", f"its node agent at {value} does not answer: status {status[:60]}"


def _get(address: Address) -> tuple[str, str]:
    """Return status and text of /readyz, all within `ANSWER_SECONDS`: libraries limit each read, not their sum."""
    end = time.monotonic() + ANSWER_SECONDS
    data = b""
    with socket.create_connection(address, ANSWER_SECONDS) as connection:
        connection.sendall(b"GET /readyz HTTP/1.0\r\n\r\n")
        while len(data) < TOLD_BYTES and (left := end - time.monotonic()) > 0:
            connection.settimeout(left)
            if not (more := connection.recv(TOLD_BYTES)):
                break
            data += more
    head, _, text = data.decode("ascii", "replace").partition("\r\n\r\n")
    version, _, status = head.partition("\r\n")[0].partition(" ")
    if not version.startswith("HTTP/"):
        raise ValueError(f"{head[:60]!r} is no HTTP")
    return status[:3], " ".join(text.split())[:200]
