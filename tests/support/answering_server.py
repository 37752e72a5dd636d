# SPDX-License-Identifier: Apache-2.0
"""A server that answers every request alike, for tests of who is asked."""

from __future__ import annotations

import threading
from http.server import ThreadingHTTPServer

from support.quiet_handler import QuietHandler


class AnsweringServer:
    """Answers every GET with `answer`, and keeps the path and the authorization of each request."""

    def __init__(self, answer: bytes) -> None:
        self.asked: list[tuple[str, str]] = []
        self.status, self.answer = 200, answer
        served = self

        class Handler(QuietHandler):
            def do_GET(self) -> None:
                served.asked.append((self.path, self.headers.get("Authorization", "")))
                self.send(served.answer, served.status)

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def close(self) -> None:
        """Stop listening."""
        self.http.shutdown()
        self.http.server_close()
