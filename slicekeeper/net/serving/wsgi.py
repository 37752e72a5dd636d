# SPDX-License-Identifier: Apache-2.0
"""Call a WSGI application from the event loop: in a thread, and only when the request has arrived completely.

So no client can occupy a thread, neither by sending slowly nor by reading slowly.
"""

from __future__ import annotations

import asyncio
import io
import sys
import tempfile
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from http import HTTPStatus
from typing import IO, Any, Final
from urllib.parse import quote

from slicekeeper.net import problem_document, tls
from slicekeeper.net.serving.bodies import Bodies, BodyRefused, Receive

WsgiApp = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]
Send = Callable[[dict[str, Any]], Any]
Answer = tuple[int, list[tuple[bytes, bytes]], IO[bytes]]
"""Status, headers and body."""

HEADERS: Final = "slicekeeper.headers"
"""Key of the environment for the unchanged headers: elsewhere in it, `X_A` and `X-A` are one, and `a, b` may be two."""

_PIECE: Final = 64 << 10
_IN_MEMORY: Final = 1 << 20
"""A larger answer waits for its client in a file."""


class WsgiBridge:
    """An ASGI application that wraps a WSGI one, with its own threads."""

    def __init__(self, app: WsgiApp, *, threads: int, max_body_bytes: int = 1 << 20) -> None:
        self._app = app
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="request")
        self._bodies = Bodies(max_body_bytes)
        self._too_large = str(max_body_bytes + 1)

    async def __call__(self, scope: Any, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        try:
            async with self._bodies.received(scope, receive) as body:
                status, headers, content = await self._run(scope, body, "")
        except BodyRefused as error:
            if error.status != HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                await _refuse(send, scope["path"], error)
                return
            # The application refuses it because of its length, in its own words.
            status, headers, content = await self._run(scope, b"", self._too_large)
        try:
            await send({"type": "http.response.start", "status": status, "headers": headers})
            while True:
                piece = content.read(_PIECE)
                await send({"type": "http.response.body", "body": piece, "more_body": len(piece) == _PIECE})
                if len(piece) < _PIECE:
                    break
        finally:
            content.close()

    async def _run(self, scope: Any, *call: Any) -> Answer:
        running = self._threads.submit(self._call, scope, *call)
        try:
            return await asyncio.wrap_future(running)
        except asyncio.CancelledError:  # the client has gone
            running.add_done_callback(_close)
            raise

    def _call(self, scope: Any, body: bytes | bytearray, length: str) -> Answer:
        """Run the application."""
        begun: list[Any] = []

        def start_response(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> None:
            if exc_info is not None and begun:
                raise exc_info[1]
            begun[:] = [status, headers]

        content = tempfile.SpooledTemporaryFile(_IN_MEMORY)  # noqa: SIM115 - closed once it has been sent
        try:
            parts = self._app(_environ(scope, body, length), start_response)
            try:
                for part in parts:
                    content.write(part)
            finally:
                if hasattr(parts, "close"):
                    parts.close()
        except BaseException:
            content.close()
            raise
        content.seek(0)
        status, headers = begun
        encoded = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        return int(status.split(" ", 1)[0]), encoded, content


def _close(answered: Future[Answer]) -> None:
    """Close an answer that will not be sent."""
    if not answered.cancelled() and answered.exception() is None:
        answered.result()[2].close()


def _environ(scope: Any, body: bytes | bytearray, length: str) -> dict[str, Any]:
    """Return a request's environment, as PEP 3333 defines it."""
    server, client = scope.get("server") or ("", 0), scope.get("client") or ("", 0)
    environ: dict[str, Any] = {
        "REQUEST_METHOD": scope["method"],
        "SCRIPT_NAME": "",
        "PATH_INFO": scope["path"].encode("utf-8", "surrogateescape").decode("latin-1"),
        "RAW_URI": scope.get("raw_path", b"").decode("latin-1") or quote(scope["path"]),
        "QUERY_STRING": scope["query_string"].decode("latin-1"),
        "SERVER_NAME": server[0],
        "SERVER_PORT": str(server[1]),
        "SERVER_PROTOCOL": f"HTTP/{scope['http_version']}",
        "REMOTE_ADDR": client[0],
        "REMOTE_PORT": str(client[1]),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scope.get("scheme", "http"),
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
        tls.CLIENT: scope.get(tls.CLIENT),
        HEADERS: scope["headers"],
    }
    for name, value in scope["headers"]:
        key = name.decode("latin-1").upper().replace("-", "_")
        if key in ("CONTENT_LENGTH", "TRANSFER_ENCODING"):
            continue  # the body is complete, so its length is known
        key = key if key == "CONTENT_TYPE" else f"HTTP_{key}"
        text = value.decode("latin-1")
        environ[key] = f"{environ[key]},{text}" if key in environ else text
    if body or length or scope["method"] in ("POST", "PUT", "PATCH"):
        environ["CONTENT_LENGTH"] = length or str(len(body))
    return environ


async def _refuse(send: Send, path: str, error: BodyRefused) -> None:
    """Refuse a request without calling the application."""
    body = problem_document.encode(status=error.status, code=error.code, detail=str(error), path=path)
    headers = [(b"content-type", problem_document.MEDIA_TYPE.encode()), (b"content-length", str(len(body)).encode())]
    if error.status == HTTPStatus.SERVICE_UNAVAILABLE:
        headers.append((b"retry-after", b"1"))
    await send({"type": "http.response.start", "status": error.status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
