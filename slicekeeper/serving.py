# SPDX-License-Identifier: Apache-2.0
"""Runs a WSGI application under gunicorn (gthread) in this process, with certificates that may change.

A server has one TLS context; each handshake moves on to that of the files' newest version, so rotation needs no
restart and costs one `stat` per connection. While the files don't fit together, the last context stays.

gunicorn's gthread keeps a thread for a TLS connection from its handshake to its first request, however long that takes.
Go's HTTP client, and so the API server, opens connections ahead of need: a burst left all threads waiting for requests
that never came, and reviews on other connections waiting for a thread. Here such a connection waits without one.
"""

from __future__ import annotations

import errno
import logging
import ssl
from collections.abc import Callable
from pathlib import Path
from typing import Any

from slicekeeper.settings import TlsSettings

log = logging.getLogger(__name__)

App = Callable[..., Any]

SILENCE_SECONDS = 10.0
"""How long a thread waits for a client that has begun a handshake or a request and goes on with neither."""


class PatientSocket(ssl.SSLSocket):
    """A connection whose client may fall silent: a thread waits for it for a while only."""

    def setblocking(self, flag: bool) -> None:
        """Wait, but not for ever, or not at all."""
        self.settimeout(SILENCE_SECONDS if flag else 0)

    def do_handshake(self, block: bool = False) -> None:
        """Raise ConnectionResetError where the client is silent."""
        self.setblocking(True)
        try:
            super().do_handshake(block)
        except TimeoutError as error:
            raise self._given_up() from error

    def recv(self, buflen: int = 1024, flags: int = 0) -> bytes:
        """Raise ConnectionResetError where the client is silent."""
        try:
            return super().recv(buflen, flags)
        except TimeoutError as error:
            raise self._given_up() from error

    def _given_up(self) -> ConnectionResetError:
        """Close, or gunicorn's main loop would wait for the client to do so; return what it makes no fuss of."""
        self.close()
        return ConnectionResetError(errno.ECONNRESET, f"nothing was sent for {SILENCE_SECONDS:g} s")


class ReloadingContext:
    """A server-side TLS context whose handshakes show the newest certificate that works."""

    def __init__(self, tls: TlsSettings) -> None:
        """Raise ssl.SSLError or OSError where the files don't work."""
        self._tls = tls
        self._seen, self._newest = self._stamp(), self._load()
        self.context = self._newest
        self.context.sni_callback = self._move_on  # called too for a client that names no server

    def _move_on(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        try:
            seen = self._stamp()
            if seen != self._seen:
                self._newest, self._seen = self._load(), seen
        except OSError as error:  # an ssl.SSLError is one
            log.warning("certificate %s not loaded, the old one stays: %s", self._tls.certificate_file, error)
        connection.context = self._newest

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.sslsocket_class = PatientSocket
        context.load_cert_chain(self._tls.certificate_file, self._tls.key_file)
        return context

    def _stamp(self) -> tuple[int, int]:
        return (
            Path(self._tls.certificate_file).stat().st_mtime_ns,
            Path(self._tls.key_file).stat().st_mtime_ns,
        )


def serve(
    make_app: Callable[[], App],
    *,
    bind: str,
    threads: int,
    workers: int = 1,
    tls: TlsSettings | None = None,
    **options: Any,
) -> None:
    """Serve until SIGTERM. `make_app` runs once in every worker, after the fork: threads may start there.

    `options` are gunicorn settings (server hooks such as `child_exit`).
    """
    from gunicorn.workers import gthread  # noqa: PLC0415 - an extra: only servers have it

    class Worker(gthread.ThreadWorker):
        """gthread, but a thread is for a request, and not for a connection on which none has come yet."""

        def handle(self, conn: Any) -> Any:
            """Serve what has come on a connection; in a thread. Where nothing has, the poller waits for it."""
            if not conn.initialized:
                if not conn.wait_for_data(0):
                    return gthread._DEFER  # type: ignore[attr-defined]
                try:
                    conn.init()
                except OSError as error:  # an ssl.SSLError is one
                    log.debug("no connection with %s: %s", conn.client, error)
                    conn.sock.close()
                    return False
                conn.data_ready = False  # what came was the handshake
            if not conn.wait_for_data(0):
                return gthread._DEFER  # type: ignore[attr-defined]
            return super().handle(conn)

    run(make_app, Worker, bind=bind, workers=workers, tls=tls, threads=threads, **options)


def run(
    make_app: Callable[[], App], worker: type, *, bind: str, workers: int, tls: TlsSettings | None, **options: Any
) -> None:
    """Serve by a kind of worker; the arguments are those of `serve`."""
    from gunicorn.app.base import BaseApplication  # noqa: PLC0415 - an extra: only servers have it
    from gunicorn.glogging import Logger  # noqa: PLC0415

    class RootLogger(Logger):
        """Hands gunicorn's messages to the process's own logging; a request is counted, not logged."""

        def __init__(self, cfg: Any) -> None:
            super().__init__(cfg)
            self.error_log.propagate = True

    class Server(BaseApplication):
        def load_config(self) -> None:
            settings: dict[str, Any] = {
                "bind": bind,
                "worker_class": worker,
                "workers": workers,
                # Longer than the API server's 90 s: the end that calls closes an idle connection, and never meets one
                # that is being closed under its call.
                "keepalive": 120,
                "graceful_timeout": 10,
                "limit_request_line": 8190,  # the most: what is longer the application cannot refuse in its own words
                "control_socket_disable": True,
                "worker_tmp_dir": "/dev/shm" if Path("/dev/shm").is_dir() else None,  # noqa: S108
                "logger_class": RootLogger,
                "errorlog": None,
                "accesslog": None,
                **options,
            }
            if tls is not None and tls.certificate_file:
                context = ReloadingContext(tls).context
                settings |= {
                    "certfile": tls.certificate_file,
                    "keyfile": tls.key_file,
                    "ssl_context": lambda _config, _default: context,
                }
            for key, value in settings.items():
                self.cfg.set(key, value)

        def load(self) -> App:
            return make_app()

    Server().run()
