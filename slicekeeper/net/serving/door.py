# SPDX-License-Identifier: Apache-2.0
"""Accepts connections, as many as the process can carry, and no more from one address than leaves room for others.

A client that comes when all places are taken gets the place of the connection that is missed least: of the address that
has the most, one that has never sent a whole request or is `greedy`, or else the one that has been idle for longest. A
request under way keeps its place otherwise. So a crowd of idle connections costs its own address, and not a client that
works.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import resource
import socket
import ssl
from collections.abc import Iterable
from typing import Any, Final

from slicekeeper.config.settings import ServingSettings
from slicekeeper.net.serving.connection import LINGER_SECONDS, Connection

log = logging.getLogger(__name__)

AT_ONCE: Final = 64
"""Connections that are accepted before others are served again."""

SPARE_FILES: Final = 64
"""Descriptors that a process keeps for its files and for connections of its own."""

SOCKET_BYTES: Final = 128 << 10

PAUSE_SECONDS: Final = 0.5
"""How long nothing is accepted once the system has no descriptor or memory for it."""

QUIET_SECONDS: Final = 60.0
"""Least time between two log lines that say so."""

_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Door:
    """The listening sockets of one event loop, and the connections that came through them."""

    def __init__(self, worker: Any, limits: ServingSettings, context: ssl.SSLContext | None) -> None:
        self._request_seconds = limits.request_seconds
        self._worker = worker
        self._loop: asyncio.AbstractEventLoop = worker.loop
        self._context = context
        files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        self._most = min(limits.connections, max(files - SPARE_FILES, 8))
        self._most_of_one = min(limits.connections_per_address, self._most)
        self._by_address: dict[str, set[Connection]] = {}
        self._count = 0
        self._sockets: list[socket.socket] = []
        self._logged_at = float("-inf")
        self._not_logged = 0

    def open(self, sockets: Iterable[socket.socket]) -> None:
        """Accept on these sockets from now on."""
        for listener in sockets:
            listener.setblocking(False)
            # For every connection; the system's own limits let each hold megabytes, which count as ours.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            self._sockets.append(listener)
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Accept nothing more; connections stay."""
        for listener in self._sockets:
            self._loop.remove_reader(listener)
            listener.close()
        self._sockets.clear()

    def rest(self) -> None:
        """Close all connections on which no request is under way."""
        for connection in [c for crowd in self._by_address.values() for c in crowd]:
            connection.rest()

    def __len__(self) -> int:
        return self._count

    def _forget(self, connection: Connection) -> None:
        """Note that a connection is gone."""
        crowd = self._by_address.get(connection.address, set())
        if connection in crowd:
            crowd.remove(connection)
            self._count -= 1
            if not crowd:
                del self._by_address[connection.address]

    def _accept(self, listener: socket.socket) -> None:
        for _ in range(AT_ONCE):
            try:
                client, name = listener.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    raise
                self._pause(listener, error)
                return
            address = str(name[0]) if name else ""
            full = self._full_of(address)
            if full and not self._free(full):
                client.close()
                continue
            client.setblocking(False)
            connection = Connection(self._worker, address, self._request_seconds, self._forget)
            self._by_address.setdefault(address, set()).add(connection)
            self._count += 1
            connection.welcome = self._loop.create_task(self._welcome(client, connection))
            if full:
                return  # what was freed is closed before the next comes

    def _full_of(self, address: str) -> list[set[Connection]]:
        """Return the crowds of which one connection must go before one more from this address may come."""
        mine = self._by_address.get(address, set())
        if len(mine) >= self._most_of_one:
            return [mine]
        if self._count >= self._most:
            return list(self._by_address.values())
        return []

    def _free(self, crowds: list[set[Connection]]) -> bool:
        """End the connection that is missed least; return whether there is one."""
        idle = [connection for crowd in crowds for connection in crowd if connection.greedy or not connection.busy]
        if not idle:
            return False
        victim = min(idle, key=lambda c: (-len(self._by_address[c.address]), c.proven and not c.greedy, c.used_at))
        self._forget(victim)
        victim.give_way()
        return True

    async def _welcome(self, client: socket.socket, connection: Connection) -> None:
        """See a client through its handshake."""
        tls = {} if self._context is None else {
            "ssl": self._context,
            "ssl_handshake_timeout": self._request_seconds,
            "ssl_shutdown_timeout": LINGER_SECONDS,
        }  # fmt: skip
        try:
            await self._loop.connect_accepted_socket(lambda: connection, client, **tls)  # type: ignore[arg-type]
        except (OSError, asyncio.CancelledError) as error:
            log.debug("no connection with %s: %s", connection.address, error)
        finally:
            connection.welcome = None
            if connection.transport is None:
                connection.connection_lost(None)
                client.close()

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Stop accepting for a moment; each connection that waits would fail, and be logged, again and again."""
        now = self._loop.time()
        self._not_logged += 1
        if now - self._logged_at >= QUIET_SECONDS:
            log.error(
                "no connection can be accepted: %s; %d are open, tried %d times since this was last said",
                error.strerror,
                self._count,
                self._not_logged,
            )
            self._logged_at, self._not_logged = now, 0
        self._loop.remove_reader(listener)
        self._loop.call_later(PAUSE_SECONDS, self._go_on, listener)

    def _go_on(self, listener: socket.socket) -> None:
        if listener in self._sockets:
            self._loop.add_reader(listener, self._accept, listener)
