# SPDX-License-Identifier: Apache-2.0
"""Runs an ASGI application under gunicorn in this process: as `serving` does, with an event loop in place of threads.

For short answers that come in bursts: no request waits for a thread or is handed to one. Whatever takes longer than a
millisecond belongs into a thread of the application's own.
"""

from __future__ import annotations

import asyncio
import gc
import os
from collections.abc import Callable
from typing import Any, Final

from gunicorn import sock
from gunicorn.asgi.protocol import ASGIProtocol
from gunicorn.workers.gasgi import ASGIWorker

from slicekeeper.serving import run
from slicekeeper.settings import TlsSettings

HANDSHAKE_SECONDS: Final = 10.0
DRAIN_SECONDS: Final = 5.0
"""How long a worker that is to stop answers on the connections that are open; each answer closes its connection."""


class Connection(ASGIProtocol):
    """gunicorn's, which waits for a first request without end, with the limit that it sets to all others."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the clock of an idle connection."""
        super().connection_made(transport)
        self._arm_keepalive_timer()  # type: ignore[attr-defined]


class Worker(ASGIWorker):
    """gunicorn's, with an end to handshakes and idle connections, and no pause to look through what never dies."""

    async def _serve(self) -> None:
        loop = asyncio.get_running_loop()
        gc.collect()
        gc.freeze()  # a full collection of all that was imported takes 30 ms
        for listener in self.sockets:
            server = await loop.create_server(
                lambda: Connection(self),
                sock=listener.sock,  # type: ignore[attr-defined]
                ssl=sock.ssl_context(self.cfg) if self.cfg.is_ssl else None,
                ssl_handshake_timeout=HANDSHAKE_SECONDS if self.cfg.is_ssl else None,
            )
            self.servers.append(server)
        while self.alive and self.ppid == os.getppid():
            self.notify()
            await asyncio.sleep(1)
        for server in self.servers:
            server.close()
        # Handshakes and connections are tasks: the last one left is this.
        end = loop.time() + DRAIN_SECONDS
        while len(asyncio.all_tasks()) > 1 and loop.time() < end:
            await asyncio.sleep(0.05)


def serve(
    make_app: Callable[[], Any], *, bind: str, workers: int = 1, tls: TlsSettings | None = None, **options: Any
) -> None:
    """Serve until SIGTERM; the arguments are those of `serving.serve`."""
    run(make_app, Worker, bind=bind, workers=workers, tls=tls, asgi_loop="asyncio", **options)
