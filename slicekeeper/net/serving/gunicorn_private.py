# SPDX-License-Identifier: Apache-2.0
"""All uses of gunicorn beyond its documented interface, under names of our own.

gunicorn has no setting that limits how long a client may take (`connection`) or how many connect
(`connection_limits`), so we subclass its protocol and its worker here, and nowhere else. Any release may change them:
then `tests/unit/slicekeeper/net/serving/test_gunicorn_private.py` names what changed, before anything else fails.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from typing import Any

from gunicorn.asgi.parser import LimitRequestHeaders
from gunicorn.asgi.protocol import ASGIProtocol
from gunicorn.workers.gasgi import ASGIWorker


class Protocol(ASGIProtocol):
    """gunicorn's HTTP/1.1 for one connection. A subclass defines what happens at each step."""

    transport: Any
    _closed: bool
    _body_receiver: Any
    _callback_parser: Any
    _current_request: Any
    _request_ready: asyncio.Event | None

    def head_complete(self, size: int) -> bool:
        """Note that a head of `size` bytes has arrived; return whether it is short enough."""
        raise NotImplementedError

    def request_complete(self) -> None:
        """Note that a complete request has arrived."""
        raise NotImplementedError

    def answered(self) -> None:
        """Note that the connection is idle: called at the start and after each answer."""
        raise NotImplementedError

    def scope_additions(self) -> dict[str, Any]:
        """Return what the ASGI scope contains in addition to the standard keys."""
        raise NotImplementedError

    def refuse(self, status: int, why: str) -> None:
        """Refuse a request without the application, and close."""
        self._send_error_response(status, why)  # type: ignore[attr-defined]
        self._close_transport()
        self.wake()

    def close(self) -> None:
        """Close, in gunicorn's place."""
        self.close_at_once()

    # What a subclass may ask and do.

    @property
    def closing(self) -> bool:
        """Whether no further requests are read."""
        return self._closed

    @property
    def in_request(self) -> bool:
        """Whether a head has arrived whose answer has not been sent."""
        return self._current_request is not None

    @property
    def in_body(self) -> bool:
        """Whether the request has a body, received or not."""
        return self._body_receiver is not None

    @property
    def owes_body(self) -> bool:
        """Whether the client still has to send the rest of a body."""
        return self.in_body and not self._body_receiver._complete

    @property
    def has_next(self) -> bool:
        """Whether more bytes have arrived after a complete request."""
        return self._callback_parser is not None and bool(self._callback_parser.remaining())

    def read_ahead(self, size: int) -> None:
        """Limit how many bytes are read before the application asks for them."""
        self._max_buffer_size = size

    def wake(self) -> None:
        """Wake the task that waits for a request."""
        if self._request_ready is not None:
            self._request_ready.set()

    def expire_body(self) -> None:
        """Tell the application that the rest of the body will not arrive."""
        self._body_receiver._body_wait_expired = True
        self._body_receiver._wake_waiter()

    def drop_rest(self) -> None:
        """Continue to read, but treat nothing more as a request."""
        self._closed = True
        self._callback_parser = None
        if self._body_receiver is not None:
            self._body_receiver._chunks.clear()
        self._resume_reading()  # type: ignore[attr-defined]

    def close_idle(self) -> None:
        """Close an idle connection."""
        self._keepalive_timeout()  # type: ignore[attr-defined]

    def close_at_once(self) -> None:
        """Close without waiting for the client."""
        super()._close_transport()  # type: ignore[misc]

    # What gunicorn's protocol calls.

    def _on_headers_complete(self) -> Any:
        if not self.head_complete(sum(len(name) + len(value) for name, value in self._callback_parser.headers)):
            raise LimitRequestHeaders("the head is too long")  # it arrived in one piece
        return super()._on_headers_complete()  # type: ignore[misc]

    def _build_http_scope(self, request: Any, sockname: Any, peername: Any) -> dict[str, Any]:
        return {**super()._build_http_scope(request, sockname, peername), **self.scope_additions()}  # type: ignore[misc]

    def _on_message_complete(self) -> None:
        self.request_complete()
        super()._on_message_complete()  # type: ignore[misc]

    def _arm_keepalive_timer(self) -> None:
        self.answered()
        super()._arm_keepalive_timer()  # type: ignore[misc]

    def _feed_callback_parser(self, data: bytes) -> bool:
        try:
            return bool(super()._feed_callback_parser(data))  # type: ignore[misc]
        except ValueError:  # a length of more digits than Python converts
            self.refuse(400, "Content-Length is not a length")
            return False

    def _will_close(self, request: Any, response_requires_close: bool) -> bool:
        """Announce that the connection ends with an answer that is sent before the body is complete."""
        return self.owes_body or bool(super()._will_close(request, response_requires_close))  # type: ignore[misc]

    def _is_websocket_upgrade(self, _request: Any) -> bool:
        return False  # no part uses WebSockets, and their handshake would bypass these limits

    def _close_transport(self) -> None:
        if self.transport is not None and not self._closed:
            self.close()


class LoopWorker(ASGIWorker):
    """gunicorn's worker process with its event loop; a subclass defines what it does."""

    inherited: Any = None

    async def serve(self) -> None:
        """Serve until the worker is to stop."""
        raise NotImplementedError

    async def _serve(self) -> None:
        await self.serve()

    def init_signals(self) -> None:
        """Handle signals; obey one that was sent to stop this process earlier, but reached the master's handler."""
        super().init_signals()
        while not self.inherited.empty():
            if self.inherited.get() in (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT):
                sys.exit(0)


def remember_signals(master: Any, worker: LoopWorker) -> None:
    """Give a worker the queue of signals of the master's handler, which a forked worker starts with.

    A hook for `post_fork`. gunicorn loses such a signal: if a server is stopped just after a fork, it waits for that
    worker until it kills it.
    """
    worker.inherited = master.SIG_QUEUE
