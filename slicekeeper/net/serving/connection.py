# SPDX-License-Identifier: Apache-2.0
"""One client's connection: gunicorn's HTTP/1.1, with a limit on everything that a client could prolong.

A handshake, a head and a body share one time limit, which runs only while the client still has to send the rest of one
of them. A connection without a request may stay idle: Go's HTTP client, and so the API server, opens connections before
it needs them and does not expect them to be closed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final

from slicekeeper.net import tls
from slicekeeper.net.serving.gunicorn_private import Protocol

HEAD_BYTES: Final = 32 << 10
"""Maximum size of a whole head. gunicorn limits each line and their number, together to 800 KiB."""

BUFFER_BYTES: Final = 64 << 10
"""How much is read before the application asks for it."""

UNSENT_BYTES: Final = 16 << 10
"""How much may be unsent before the application has to wait."""

LINGER_SECONDS: Final = 5.0
"""How long the rest of a refused request is read and dropped. If the connection were reset while the client still
writes, it would never see the refusal."""

LINGER_BYTES: Final = 64 << 20
"""How much of it is dropped at most."""

STALL_SECONDS: Final = 30.0
"""How long a client may leave an answer unread."""


class Connection(Protocol):
    """An accepted connection, from before its handshake until it is closed."""

    def __init__(self, worker: Any, address: str, request_seconds: float, forget: Callable[[Connection], None]) -> None:
        """Begin with the handshake; `forget` is called once the connection is gone."""
        super().__init__(worker)
        self.address = address
        self.busy = False
        """A complete request has arrived, and its answer has not been sent."""
        self.proven = False
        """A complete request has arrived at some time."""
        self.used_at: float = worker.loop.time()
        """When it last became idle, by the loop's clock."""
        self.welcome: asyncio.Task[None] | None = None
        """The handshake, while it lasts."""
        self._client: tls.ClientCertificate | None = None
        self._forget = forget
        self._request_seconds = request_seconds
        self._loop: asyncio.AbstractEventLoop = worker.loop
        self._clock: asyncio.TimerHandle | None = None
        """Runs while the client still has to send something."""
        self._since = 0.0
        """When the clock was started last."""
        self._left = request_seconds
        """How much time the client has left for this request when the clock is started again."""
        self._stalled: asyncio.TimerHandle | None = None
        """Runs while the client does not read its answer."""
        self._hasty = False
        """The client has sent another request before it had the answer to the last one."""
        self._head = 0
        """Bytes received since the last complete head."""
        self._lingering = False
        self._dropped = 0
        self._run_clock()

    @property
    def greedy(self) -> bool:
        """Whether the client leaves an answer unread, or sends requests before it has read earlier answers.

        Its connection is always busy although the client does not wait for the work: by reading a little now and then,
        or by a stream of requests, it could keep its place forever. No client of an API server does either.
        """
        return self._hasty or self._stalled is not None

    def give_way(self) -> None:
        """Close at once, because another client needs the place."""
        if self.transport is not None:
            self.transport.abort()
        elif self.welcome is not None:
            self.welcome.cancel()

    def rest(self) -> None:
        """Close if there is no request in progress."""
        if not self.busy and self._clock is None:
            self.close_idle()

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take over after the handshake."""
        self._stop_clock()
        self._client = tls.certificate_of(transport.get_extra_info("ssl_object"))
        if hasattr(transport, "set_read_buffer_limits"):  # only for TLS, where the default is 512 KiB for each client
            transport.set_read_buffer_limits(BUFFER_BYTES)
        super().connection_made(transport)
        self.read_ahead(BUFFER_BYTES)
        self.transport.set_write_buffer_limits(UNSENT_BYTES)
        self._arm_keepalive_timer()

    def data_received(self, data: bytes) -> None:
        """Take received bytes: refuse a head that grows too long, and drop the rest of a refused request."""
        if self._lingering:
            self._dropped += len(data)
            if self._dropped > LINGER_BYTES:
                self.give_way()
            return
        if not self.busy and self._clock is None:
            self._run_clock()
        self._head += len(data)
        super().data_received(data)
        if self._head > HEAD_BYTES and not self.closing and not self.in_request:
            self.refuse(431, "the head is too long")
        self._hasty = self._hasty or (self.busy and self.has_next)

    def pause_writing(self) -> None:
        """Wait for the client to read, but not forever."""
        super().pause_writing()
        if self._stalled is None:
            self._stalled = self._loop.call_later(STALL_SECONDS, self.give_way)

    def resume_writing(self) -> None:
        """Continue to write: the client reads again."""
        self._stop_stalled()
        super().resume_writing()

    def connection_lost(self, exc: Exception | None) -> None:
        """Clean up, and wake the task that waits for a request: gunicorn would let it wait for three seconds."""
        self._stop_clock()
        self._stop_stalled()
        self._forget(self)
        super().connection_lost(exc)
        self.wake()

    # What gunicorn's protocol calls.

    def head_complete(self, size: int) -> bool:
        """Begin to count the bytes of the next head; return whether this one was short enough."""
        if size > HEAD_BYTES:
            return False
        self._head = 0
        return True

    def request_complete(self) -> None:
        """Stop the client's clock: the request is complete, and the application works on it."""
        self._stop_clock()
        self._left = self._request_seconds
        self.busy = self.proven = True

    def answered(self) -> None:
        """Note that the connection is idle."""
        self._head = 0
        self.busy = False
        self.used_at = self._loop.time()

    def scope_additions(self) -> dict[str, Any]:
        """Return the certificate that the client presented."""
        return {tls.CLIENT: self._client}

    def close(self) -> None:
        """Close. If the client still sends, read on for a while, or it would never see its answer."""
        self._stop_clock()
        unread = self.owes_body if self.in_body else self._head > 0
        if unread and not self.transport.is_closing():
            self._lingering = True
            self.drop_rest()
            if self.transport.can_write_eof():
                self.transport.write_eof()
        else:
            self.close_at_once()
        # Also for a client that does not read the answer.
        self._clock = self._loop.call_later(LINGER_SECONDS, self.give_way)

    # The clock.

    def _run_clock(self) -> None:
        self._since = self._loop.time()
        self._clock = self._loop.call_later(self._left, self._too_late)

    def _stop_clock(self) -> None:
        if self._clock is not None:
            self._left = max(self._left - (self._loop.time() - self._since), 0.0)
            self._clock.cancel()
            self._clock = None

    def _stop_stalled(self) -> None:
        if self._stalled is not None:
            self._stalled.cancel()
            self._stalled = None

    def _too_late(self) -> None:
        self._clock = None
        if self.transport is None:
            self.give_way()
        elif not self.in_body:
            self.refuse(408, "the request did not arrive in time")
        else:  # the application answers, and that closes
            self.expire_body()
            self._clock = self._loop.call_later(LINGER_SECONDS, self.give_way)
