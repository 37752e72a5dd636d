# SPDX-License-Identifier: Apache-2.0
"""Accept connections, up to one limit for the process and a lower one for each address.

If all places are taken, a new client gets the place of the least useful connection: of the address with the most
connections, one that has never sent a complete request or is `greedy`, or else the one that has been idle for longest.
Any other request in progress keeps its place. So many idle connections displace only others from the same address, not
a client that works.
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
"""How many connections are accepted in a row before others are served again."""

SPARE_FILES: Final = 64
"""Descriptors that a process reserves for its files and for its own outgoing connections."""

SOCKET_BYTES: Final = 128 << 10

PAUSE_SECONDS: Final = 0.5
"""How long no connection is accepted after the system had no descriptor or memory for one."""

QUIET_SECONDS: Final = 60.0
"""Minimum time between two log lines about it."""

_EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


class Listener:
    """The listening sockets of one event loop, and the connections accepted on them."""

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
            # Applies to every connection. The system's own limits are megabytes for each, which count as our memory.
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SOCKET_BYTES)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SOCKET_BYTES)
            self._sockets.append(listener)
            self._loop.add_reader(listener, self._accept, listener)

    def close(self) -> None:
        """Stop accepting; existing connections stay."""
        for listener in self._sockets:
            self._loop.remove_reader(listener)
            listener.close()
        self._sockets.clear()

    def rest(self) -> None:
        """Close all connections without a request in progress."""
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
                return  # close the freed connection before the next one is accepted

    def _full_of(self, address: str) -> list[set[Connection]]:
        """Return the sets of connections one of which must end before another from this address is accepted."""
        mine = self._by_address.get(address, set())
        if len(mine) >= self._most_of_one:
            return [mine]
        if self._count >= self._most:
            return list(self._by_address.values())
        return []

    def _free(self, candidates: list[set[Connection]]) -> bool:
        """End the least useful connection; return whether there was one."""
        idle = [connection for crowd in candidates for connection in crowd if connection.greedy or not connection.busy]
        if not idle:
            return False
        victim = min(idle, key=lambda c: (-len(self._by_address[c.address]), c.proven and not c.greedy, c.used_at))
        self._forget(victim)
        victim.give_way()
        return True

    async def _welcome(self, client: socket.socket, connection: Connection) -> None:
        """Complete a client's handshake."""
        tls: dict[str, Any] = (
            {}
            if self._context is None
            else {
                "ssl": self._context,
                "ssl_handshake_timeout": self._request_seconds,
                "ssl_shutdown_timeout": LINGER_SECONDS,
            }
        )
        try:
            await self._loop.connect_accepted_socket(lambda: connection, client, **tls)
        except (OSError, asyncio.CancelledError) as error:
            log.debug("no connection with %s: %s", connection.address, error)
        finally:
            connection.welcome = None
            if connection.transport is None:
                connection.connection_lost(None)
                client.close()

    def _pause(self, listener: socket.socket, error: OSError) -> None:
        """Stop accepting for a moment; otherwise each waiting connection would fail, and be logged, again and again."""
        now = self._loop.time()
        self._not_logged += 1
        if now - self._logged_at >= QUIET_SECONDS:
            log.error(
                "no connection can be accepted: %s; %d are open; %d attempts failed since this was last logged",
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
