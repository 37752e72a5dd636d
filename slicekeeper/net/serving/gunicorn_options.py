# SPDX-License-Identifier: Apache-2.0
"""The options of gunicorn for every server, with worker processes or without: how it logs, and how long it waits."""

from __future__ import annotations

from typing import Any, Final

from gunicorn.glogging import Logger


class RootLogger(Logger):
    """Passes gunicorn's messages to the process's own logging; requests are counted, not logged."""

    def __init__(self, cfg: Any) -> None:
        super().__init__(cfg)
        self.error_log.propagate = True


GUNICORN: Final[dict[str, Any]] = {
    "logger_class": RootLogger,
    "errorlog": None,  # or the shared logger would write each line a second time, in gunicorn's format
    "accesslog": None,
    "asgi_loop": "asyncio",
    # Longer than the API server's 90 s, so that the client closes idle connections, and never sends a request on one
    # that the server is closing.
    "keepalive": 120,
    "limit_request_line": 8190,  # gunicorn's maximum; the application cannot refuse longer lines in its own words
}
