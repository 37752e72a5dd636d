# SPDX-License-Identifier: Apache-2.0
"""A part's second server, in plain HTTP: /healthz, /readyz and /metrics."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Final

from slicekeeper import threads
from slicekeeper.config.settings import ServingSettings
from slicekeeper.net.serving.background import BackgroundServer
from slicekeeper.net.serving.wsgi import WsgiApp, WsgiBridge

STUCK_SECONDS: Final = 600.0
"""Longer than a pass over thousands of objects. A pass that gets no answer ends by itself."""

THREADS: Final = 4
"""Enough for kubelet's probes and the scheduler's question whether an agent is ready during a slow scrape."""


def listen(bind: str, app: WsgiApp, limits: ServingSettings, *, shared: bool = False) -> BackgroundServer:
    """Serve an application at `bind` (host:port) in the background; `shared`: several processes do, on one port."""
    return BackgroundServer(bind, WsgiBridge(app, threads=THREADS), limits, shared=shared)


def serve_metrics(bind: str, limits: ServingSettings, registry: Any, *, shared: bool = False) -> BackgroundServer:
    """Serve a prometheus-client registry at /metrics, and nothing else, in plain HTTP at `bind` (host:port)."""
    from prometheus_client import make_wsgi_app  # noqa: PLC0415 - an extra: not every part measures

    exposition: WsgiApp = make_wsgi_app(registry)

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if environ["PATH_INFO"] == "/metrics":
            return exposition(environ, start_response)
        start_response("404 Not Found", [("Content-Length", "0")])
        return []

    return listen(bind, app, limits, shared=shared)


def serve(
    bind: str,
    limits: ServingSettings,
    *,
    ready: Callable[[], str],
    alive: Callable[[], str] = lambda: "",
    more: Mapping[str, WsgiApp] | None = None,
) -> BackgroundServer:
    """Serve at `bind` (host:port) in the background; `more` are further paths with their applications.

    `ready` and `alive` return what is wrong, empty if nothing is: answered with 503.
    """
    checks = {"/healthz": lambda: threads.trouble() or alive(), "/readyz": ready}
    others = more or {}

    def app(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        path = environ.get("PATH_INFO", "")
        if path in others:
            return others[path](environ, start_response)
        wrong = checks[path]() if path in checks else ""
        status = "503 Service Unavailable" if wrong else "200 OK" if path in checks else "404 Not Found"
        body = f"{wrong or status}\n".encode()
        start_response(status, [("Content-Type", "text/plain; charset=utf-8"), ("Content-Length", str(len(body)))])
        return [body]

    return listen(bind, app, limits)


class LoopHealth:
    """The state of a loop that runs passes, for its probes."""

    def __init__(self) -> None:
        self.wrong = "not looked yet"
        """Why the last pass failed; empty if it did not, or if another replica is active."""
        self._went_round = time.monotonic()

    def go_round(self) -> None:
        """Note that the loop goes on."""
        self._went_round = time.monotonic()

    def alive(self) -> str:
        """Return for how long there was no pass; empty if it is not too long."""
        silent = time.monotonic() - self._went_round
        return f"no look for {silent:.0f} s" if silent > STUCK_SECONDS else ""

    @contextmanager
    def served(self, bind: str, limits: ServingSettings) -> Iterator[None]:
        """Answer probes at `bind`, if it is set."""
        server = serve(bind, limits, ready=lambda: self.wrong, alive=self.alive) if bind else None
        try:
            yield
        finally:
            if server is not None:
                server.close()
