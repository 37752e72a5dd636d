# SPDX-License-Identifier: Apache-2.0
"""A TLS server for tests, on loopback, and how long its certificates live."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from http.server import ThreadingHTTPServer
from typing import Any

from support.quiet_handler import QuietHandler

NOW = datetime.now(UTC)
LIFE = timedelta(hours=2)


class _Quiet(ThreadingHTTPServer):
    def handle_error(self, *_: Any) -> None:
        """Say nothing: clients that do not trust the server hang up."""


class TlsServer:
    """Answers each GET with a body, until `stop`; `seen` gets the request's Authorization and its client's name.

    `headers` are those of the last request.
    """

    def __init__(self, context: ssl.SSLContext, body: bytes, seen: Callable[[str, str], object]) -> None:
        self.headers: list[tuple[str, str]] = []
        outer = self

        class Handler(QuietHandler):
            connection: ssl.SSLSocket

            def setup(self) -> None:
                self.request = context.wrap_socket(self.request, server_side=True)
                super().setup()

            def finish(self) -> None:
                super().finish()
                self.request.close()

            def do_GET(self) -> None:
                subject = dict(part[0] for part in (self.connection.getpeercert() or {}).get("subject", ()))
                outer.headers = self.headers.items()
                seen(self.headers.get("Authorization", ""), str(subject.get("commonName", "")))
                self.send(body)

        self._http = _Quiet(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._http.serve_forever, args=(0.01,), daemon=True).start()
        self.port = self._http.server_port

    def stop(self) -> None:
        """Stop; connections are refused from now on."""
        self._http.shutdown()
        self._http.server_close()
