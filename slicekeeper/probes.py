# SPDX-License-Identifier: Apache-2.0
"""Plain HTTP beside what a part serves, if it serves anything: /healthz, /readyz, and whatever is scraped."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterable, Mapping
from socketserver import ThreadingMixIn
from typing import Any, Final
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer

SILENCE_SECONDS: Final = 10.0
"""A client that says nothing for so long is given up."""

App = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class _Handler(WSGIRequestHandler):
    timeout = SILENCE_SECONDS

    def handle(self) -> None:
        with contextlib.suppress(TimeoutError, ConnectionError):
            super().handle()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Log nothing: a probe every few seconds says nothing."""


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True
    request_queue_size = 128
    """The scheduler asks for every pod of a burst; 5, the default, would drop some."""

    def __init__(self, address: tuple[str, int], family: socket.AddressFamily) -> None:
        self.address_family = family
        super().__init__(address, _Handler)


class _Shared(_Server):
    allow_reuse_port = True


def listen(bind: str, app: App, *, shared: bool = False) -> WSGIServer:
    """Serve an application in daemon threads at `bind` (host:port); `shared`: several processes do, on one port."""
    host, _, port = bind.rpartition(":")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    server = (_Shared if shared else _Server)((host.strip("[]"), int(port)), family)
    server.set_app(app)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
    return server


def serve(
    bind: str, *, ready: Callable[[], str], alive: Callable[[], str] = lambda: "", more: Mapping[str, App] | None = None
) -> WSGIServer:
    """Serve in daemon threads at `bind` (host:port); `more` are further paths with their applications.

    `ready` and `alive` return what is wrong, empty where nothing is: told with 503.
    """
    told = {"/healthz": alive, "/readyz": ready}
    others = more or {}

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path in others:
            return others[path](environ, start_response)
        wrong = told[path]() if path in told else ""
        status = "503 Service Unavailable" if wrong else "200 OK" if path in told else "404 Not Found"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{wrong or status}\n".encode()]

    return listen(bind, app)
