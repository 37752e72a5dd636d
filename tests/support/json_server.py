# SPDX-License-Identifier: Apache-2.0
"""A real HTTP server for tests: what is POSTed to it is answered by a function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import ThreadingHTTPServer
from typing import Any

from support.quiet_handler import QuietHandler


class JsonServer:
    """Answers with `answer(path, body)`, on loopback, until `stop`."""

    def __init__(self, answer: Callable[[str, Any], Any]) -> None:
        class Handler(QuietHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                self.send(json.dumps(answer(self.path, body)).encode())

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True).start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def stop(self) -> None:
        """Stop; connections are refused from now on."""
        self._server.shutdown()
        self._server.server_close()
