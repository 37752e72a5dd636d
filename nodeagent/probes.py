# SPDX-License-Identifier: Apache-2.0
"""/healthz, /readyz and /metrics on a port of their own, with the standard library's server: nothing else is served."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, make_server

from prometheus_client import make_wsgi_app


class _Quiet(WSGIRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the base class names it
        """Log nothing: a probe every few seconds says nothing."""


def serve(bind: str, ready: Callable[[], str]) -> None:
    """Serve in a daemon thread; `ready` returns what is not ready yet, empty where all is."""
    metrics = make_wsgi_app()

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO")
        if path == "/metrics":
            answer: Iterable[bytes] = metrics(environ, start_response)
            return answer
        missing = ready() if path == "/readyz" else ""
        known = path in ("/healthz", "/readyz")
        status = "503 Service Unavailable" if missing else "200 OK" if known else "404 Not Found"
        start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
        return [f"{missing or status}\n".encode()]

    host, _, port = bind.rpartition(":")
    server = make_server(host, int(port), app, handler_class=_Quiet)
    threading.Thread(target=server.serve_forever, name="probes", daemon=True).start()
