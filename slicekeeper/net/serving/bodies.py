# SPDX-License-Identifier: Apache-2.0
"""Read the bodies of requests, within one limit for each body and another for all together.

If all bodies together grow too large, the largest body of the address that holds the most is dropped, never that of a
client with less. No request waits for memory, so a client that sends slowly cannot delay others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus
from typing import Any, Final

Receive = Callable[[], Awaitable[Any]]

_DIGITS: Final = 18
"""A length with more digits is too large in any case."""


class BodyRefused(Exception):
    """A body that is not read to its end. `status` is the HTTP status of the answer; `code` is stable."""

    def __init__(self, status: HTTPStatus, code: str, message: str) -> None:
        super().__init__(message)
        self.status = int(status)
        self.code = code


class _Upload:
    def __init__(self, address: str, timeout: asyncio.Timeout) -> None:
        self.address = address
        self.timeout = timeout
        self.size = 0
        self.kept = False
        """The body is complete and in use, so it cannot be dropped."""


class Bodies:
    """The bodies that a process holds at one time: at most `most` bytes of one, and one and a half times that of all.

    `revocable`: a complete body may be dropped too, because processing it changes nothing.
    """

    def __init__(self, most: int, *, revocable: bool = False) -> None:
        self._most = most
        self._most_of_all = most + most // 2
        self._revocable = revocable
        self._held: dict[_Upload, None] = {}
        self._total = 0

    @asynccontextmanager
    async def received(self, scope: Any, receive: Receive) -> AsyncIterator[bytes | bytearray]:
        """Yield a request's body, which counts as held until the context ends.

        Raises BodyRefused if it is too large, does not arrive, or is dropped.
        """
        length = dict(scope["headers"]).get(b"content-length", b"0").lstrip(b"0")
        if len(length) > _DIGITS or int(length or b"0") > self._most:
            raise self._too_large()
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            yield message.get("body", b"")  # most arrive in one piece
            return
        client = scope.get("client")
        try:
            async with asyncio.timeout(None) as timeout:
                upload = _Upload(client[0] if client else "", timeout)
                self._held[upload] = None
                body = bytearray()
                try:
                    await self._gather(upload, body, receive, message)
                    upload.kept = not self._revocable
                    yield body
                finally:
                    self._forget(upload)
                    # Free it now: a traceback may refer to it until it is collected.
                    with suppress(BufferError):
                        body.clear()
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise _no_room() from error

    async def _gather(self, upload: _Upload, body: bytearray, receive: Receive, message: Any) -> None:
        while True:
            if message["type"] != "http.request":
                raise BodyRefused(HTTPStatus.REQUEST_TIMEOUT, "request-timeout", "the body did not arrive in time")
            if upload not in self._held:
                raise _no_room()
            body += message.get("body", b"")
            if len(body) > self._most:
                raise self._too_large()
            self._total += len(body) - upload.size
            upload.size = len(body)
            if self._total > self._most_of_all:
                self._give_one_up()
            if not message.get("more_body"):
                return
            message = await receive()

    def _give_one_up(self) -> None:
        sums = Counter[str]()
        for one in self._held:
            sums[one.address] += 0 if one.kept else one.size
        address = sums.most_common(1)[0][0]
        largest = max((one for one in self._held if one.address == address and not one.kept), key=lambda one: one.size)
        # Only once for each body: a timeout that is set again starts again, and would never expire while others send.
        self._forget(largest)
        largest.timeout.reschedule(asyncio.get_running_loop().time())

    def _forget(self, upload: _Upload) -> None:
        if upload in self._held:
            del self._held[upload]
            self._total -= upload.size

    def _too_large(self) -> BodyRefused:
        why = f"the body is larger than {self._most} bytes, the most that is read"
        return BodyRefused(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, "request-entity-too-large", why)


def _no_room() -> BodyRefused:
    why = "too many large requests are in progress; try again"
    return BodyRefused(HTTPStatus.SERVICE_UNAVAILABLE, "too-many-large-requests", why)
