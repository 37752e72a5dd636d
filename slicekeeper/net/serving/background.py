# SPDX-License-Identifier: Apache-2.0
"""Serve a small application beside a process's other work: an event loop in a daemon thread."""

from __future__ import annotations

import asyncio
import socket
import ssl
import sys
from collections.abc import Callable
from typing import Any, Final

from gunicorn.config import Config

from slicekeeper import threads
from slicekeeper.config.settings import ServingSettings
from slicekeeper.net.serving.connection_limits import Listener
from slicekeeper.net.serving.gunicorn_options import GUNICORN, RootLogger

BACKLOG: Final = 128


class BackgroundServer:
    """A server that listens. It has the attributes that gunicorn's protocol needs of a worker."""

    tls: ssl.SSLContext | None = None
    """Context for encrypted connections. None: plain HTTP."""

    def __init__(
        self, bind: str, app: Callable[..., Any], limits: ServingSettings, *, shared: bool = False, **options: Any
    ) -> None:
        """Listen at `bind` (host:port); with `shared`, several processes may listen on one port.

        `options` are gunicorn settings.

        Raises OSError if the address is not available.
        """
        host, _, port = bind.rpartition(":")
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = socket.create_server(
            (host.strip("[]"), int(port)), family=family, backlog=BACKLOG, reuse_port=shared
        )
        self.port: int = self._socket.getsockname()[1]
        self.cfg = Config()
        for key, value in {**GUNICORN, **options}.items():
            self.cfg.set(key, value)
        self.log = RootLogger(self.cfg)
        self.asgi = app
        self.alive = True
        self.nr = self.nr_conns = 0
        self.max_requests = sys.maxsize
        self.state: dict[str, Any] = {}
        self.loop = asyncio.new_event_loop()
        self._limits = limits
        self._closed = False
        self._thread = threads.keep("probes", self._run, lambda: self._closed)

    def close(self) -> None:
        """Stop, and close all connections."""
        self._closed = True
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join(10)

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        listener = Listener(self, self._limits, self.tls)
        listener.open([self._socket])
        self.loop.run_forever()
        listener.close()
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        self.loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self.loop.close()
