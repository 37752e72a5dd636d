# SPDX-License-Identifier: Apache-2.0
"""Ask a node's agent, right before a pod is bound there, whether kubelet has the node's seats.

kubelet fails a pod that starts while it has no seats, and a pod without a controller would be lost; a bind that fails
is tried again. So a node gets no pod while its agent says no, or does not answer although it has answered before. This
lasts a minute at most: then what kubelet reports in the node's status is newer. An agent that has never answered
(perhaps because of a network policy) keeps no pod away.

One thread asks all agents in parallel. A bind waits for the answer only for a moment, and not at all if the agent did
not answer the last request: then the answer is for the next bind.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from slicekeeper import threads
from slicekeeper.clock import Clock
from slicekeeper.kube.agent_address import STOPPING, Address, decode

log = logging.getLogger(__name__)

ANSWER_SECONDS: Final = 2.0
"""Timeout of an agent's answer."""
WAIT_SECONDS: Final = 0.25
"""How long a bind waits for the answer."""
LAST_WORD_SECONDS: Final = 2.0
"""Maximum age of its last answer if it gives none now."""
AT_ONCE: Final = 256
"""How many agents are asked at the same time."""
BELIEVED_SECONDS: Final = 60.0
"""kubelet reports lost seats within 10 s, and a node whose kubelet is dead is marked so after 40 to 50 s."""
LONGEST_PAUSE_SECONDS: Final = 256.0
TOLD_BYTES: Final = 1024
"""How much of an answer is read."""

AGAIN: Final = "the pod is tried again"

Answer = Literal["ready", "not-ready", "refused", "silent"]


@dataclass
class _KnownAgent:
    """The state of the agent at one address."""

    value: str
    asked: Future[None] | None = None
    """The request in progress, and since when by the machine's clock."""
    asked_at: float = 0.0
    answered: bool = False
    ready_ns: int | None = None
    """When it last reported that."""
    wrong: str = ""
    """Its last finding; empty if it was ready."""
    silent: bool = False
    since_ns: int = 0
    """When the current series of findings that it is not ready, or silent, began."""
    row_ns: int = 0
    """Until when the next such finding belongs to that series."""
    silences: int = 0
    ask_again_ns: int = 0

    def take(self, answer: Answer, why: str, now_ns: int) -> None:
        """Record an answer."""
        self.wrong, self.silent = why, answer == "silent"
        self.answered |= answer != "silent"
        if answer == "ready":
            self.ready_ns, self.silences, self.row_ns = now_ns, 0, 0
            return
        if now_ns > self.row_ns:
            self.since_ns = now_ns
        if self.silent:
            # Ask once for a burst of pods, and less and less often if the answer makes no difference.
            believed = bool(self.why_not(now_ns))
            pause = 1.0 if believed else min(2.0**self.silences, LONGEST_PAUSE_SECONDS)
            self.ask_again_ns = now_ns + int(pause * 1e9)
            self.silences += not believed
        self.row_ns = max(now_ns, self.ask_again_ns) + int(BELIEVED_SECONDS * 1e9)

    def why_not(self, now_ns: int) -> str:
        """Return why no pod should be bound there by the last answer, empty if one may."""
        believed = self.answered and now_ns - self.since_ns < BELIEVED_SECONDS * 1e9
        return f"{self.wrong}; {AGAIN}" if self.wrong and believed else ""

    def why_not_yet(self, now_ns: int) -> str:
        """Return the same if a new answer has not come in time."""
        if self.ready_ns is not None and not self.wrong and now_ns - self.ready_ns < LAST_WORD_SECONDS * 1e9:
            return ""
        return f"its node agent has not answered for {WAIT_SECONDS:g} s; {AGAIN}"

    def needs_no_wait(self, now_ns: int) -> bool:
        """Whether the last finding counts while the agent is asked again."""
        return self.silent and (not self.answered or now_ns <= self.row_ns)


class NodeAgents:
    """The agents of all nodes that this process has asked. Thread-safe."""

    def __init__(self, clock: Clock, count: Callable[[str], None]) -> None:
        self._clock = clock
        self._count = count
        self._known: dict[str, _KnownAgent] = {}
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._gate = asyncio.Semaphore(AT_ONCE)
        self._stopped = asyncio.Event()

    def why_not(self, node: str, value: str) -> str:
        """Return why no pod should be bound to the node now, empty if one may.

        `value` is its annotation `slicekeeper.io/agent`. If it has none, no agent is asked.
        """
        if not value:
            return ""
        with self._lock:
            known = self._known.get(node)
            if known is None or known.value != value:
                known = self._known[node] = _KnownAgent(value)
            now_ns = self._clock.monotonic_ns()
            if known.asked is None and now_ns >= known.ask_again_ns:
                known.asked, known.asked_at = self._begin(node, known), time.monotonic()
            asked = known.asked
            if asked is None or known.needs_no_wait(now_ns):
                return known.why_not(now_ns)
            left = known.asked_at + WAIT_SECONDS - time.monotonic()
        wait([asked], max(left, 0.0))
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            return known.why_not(now_ns) if asked.done() else known.why_not_yet(now_ns)

    def has_answered(self, node: str) -> bool:
        """Whether the node's agent has ever answered; if none can be reached, no node is better than another."""
        with self._lock:
            known = self._known.get(node)
            return known is not None and known.answered

    def stop(self) -> None:
        """Stop asking."""
        with self._lock:
            if self._loop is not None and not self._loop.is_closed():
                self._loop.call_soon_threadsafe(self._stopped.set)

    def _begin(self, node: str, known: _KnownAgent) -> Future[None]:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threads.keep("agents", partial(self._run, self._loop), self._stopped.is_set)
        return asyncio.run_coroutine_threadsafe(self._ask(node, known), self._loop)

    def _run(self, loop: asyncio.AbstractEventLoop) -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(self._stopped.wait())

    async def _ask(self, node: str, known: _KnownAgent) -> None:
        async with self._gate:
            answer, why = await ask(known.value)
        self._count(answer)
        with self._lock:
            now_ns = self._clock.monotonic_ns()
            known.asked = None
            known.take(answer, why, now_ns)
            first = known.silent and known.silences == 1 and not known.why_not(now_ns)
        if first:
            log.warning("pods are bound to node %s without asking: %s", node, why)


async def ask(value: str) -> tuple[Answer, str]:
    """Ask the agent of an annotation's value; return its answer, and a description of it."""
    if value == STOPPING:
        return "not-ready", "its node agent is being replaced"
    try:
        address = decode(value)
        async with asyncio.timeout(ANSWER_SECONDS):
            status, text = await _get(address)
    except ConnectionRefusedError:
        return "refused", "its node agent does not run"
    except Exception as error:  # noqa: BLE001 - any error there means that there is no answer
        what = str(error) or f"nothing came for {ANSWER_SECONDS:g} s"
        return "silent", f"its node agent at {value[:60]} does not answer: {what}"
    if status == "200":
        return "ready", ""
    if status == "503":
        return "not-ready", f"its node agent is not ready: {text}"
    return "silent", f"its node agent at {value} does not answer: status {status[:60]}"


async def _get(address: Address) -> tuple[str, str]:
    """Return status and text of /readyz."""
    reader, writer = await asyncio.open_connection(*address)
    data = b""
    try:
        writer.write(b"GET /readyz HTTP/1.0\r\n\r\n")
        while len(data) < TOLD_BYTES and (more := await reader.read(TOLD_BYTES)):
            data += more
    finally:
        writer.transport.abort()
    head, _, text = data.decode("ascii", "replace").partition("\r\n\r\n")
    version, _, status = head.partition("\r\n")[0].partition(" ")
    if not version.startswith("HTTP/"):
        raise ValueError(f"{head[:60]!r} is no HTTP")
    return status[:3], " ".join(text.split())[:200]
