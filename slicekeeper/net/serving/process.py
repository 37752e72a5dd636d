# SPDX-License-Identifier: Apache-2.0
"""Run an ASGI application under gunicorn in this process, with worker processes that it watches and replaces."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
from asyncio import sslproto
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from gunicorn import sock
from gunicorn.app.base import BaseApplication

from slicekeeper.config.settings import ServingSettings, TlsSettings
from slicekeeper.net.serving import memory
from slicekeeper.net.serving.connection_limits import SPARE_FILES, Listener
from slicekeeper.net.serving.gunicorn_options import GUNICORN
from slicekeeper.net.serving.gunicorn_private import LoopWorker, remember_signals
from slicekeeper.net.tls import ClientCas, ReloadingContext

DRAIN_SECONDS: Final = 8.0
"""How long a worker that is to stop may take to finish requests in progress."""

TLS_BUFFER_BYTES: Final = 32 << 10
"""Buffer that asyncio keeps for each TLS connection, by default 256 KiB. A record has at most 16 KiB."""

App = Callable[..., Any]


class Worker(LoopWorker):
    """gunicorn's worker with a `Listener`, and with everything that was imported exempt from garbage collection."""

    limits = ServingSettings()
    patience = 0.0

    async def serve(self) -> None:
        """Serve until the worker is to stop; then answer the requests in progress, for a limited time."""
        loop = asyncio.get_running_loop()
        gc.collect()
        gc.freeze()  # a full collection of all that was imported takes 30 ms
        listener = Listener(self, self.limits, sock.ssl_context(self.cfg) if self.cfg.is_ssl else None)
        listener.open(given.sock for given in self.sockets)  # type: ignore[attr-defined]
        surplus = memory.Surplus()
        while self.alive and self.ppid == os.getppid():
            self.notify()
            surplus.look()
            await asyncio.sleep(1)
        listener.close()
        # A client that does not know yet that the server stops may have just sent a request on an idle connection.
        resting = loop.time() + self.patience
        end = loop.time() + DRAIN_SECONDS
        while len(listener) and loop.time() < end:
            if loop.time() >= resting:
                listener.rest()
            await asyncio.sleep(0.05)


def prepare(limits: ServingSettings) -> None:
    """Prepare this process for its limits: keep little free memory, and allow a descriptor for every connection."""
    sslproto.SSLProtocol.max_size = TLS_BUFFER_BYTES
    memory.keep_little()
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = limits.connections + SPARE_FILES
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == -1 else min(wanted, hard), hard))


def serve(
    make_app: Callable[[], App],
    *,
    bind: str,
    limits: ServingSettings,
    workers: int = 1,
    tls: TlsSettings | None = None,
    clients: ClientCas | None = None,
    patience: float = 0.0,
    **options: Any,
) -> None:
    """Serve until SIGTERM. `make_app` runs once in every worker, after the fork: threads may start there.

    `clients` are the CAs of client certificates.
    `patience` is how many seconds requests on idle connections are still answered when the server is to stop.
    `options` are gunicorn settings (server hooks such as `child_exit`).
    """

    class Limited(Worker):
        pass

    Limited.limits, Limited.patience = limits, patience

    class Server(BaseApplication):
        def load_config(self) -> None:
            settings: dict[str, Any] = {
                **GUNICORN,
                "bind": bind,
                "worker_class": Limited,
                "workers": workers,
                "graceful_timeout": 10,
                "control_socket_disable": True,
                "post_fork": remember_signals,
                "worker_tmp_dir": "/dev/shm" if Path("/dev/shm").is_dir() else None,  # noqa: S108
                **options,
            }
            if tls is not None and tls.certificate_file:
                context = ReloadingContext(tls, clients).context
                settings |= {
                    "certfile": tls.certificate_file,
                    "keyfile": tls.key_file,
                    "ssl_context": lambda _config, _default: context,
                }
            for key, value in settings.items():
                self.cfg.set(key, value)

        def load(self) -> App:
            prepare(limits)
            return make_app()

    Server().run()
