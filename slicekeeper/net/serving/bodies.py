# SPDX-License-Identifier: Apache-2.0
"""Reads requests' bodies, each up to a size and all together up to another.

If what is held grows too large, the largest body of the address that holds the most is given up, and never that of a
client with less. Nobody waits for room, so a client that sends slowly takes none from others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, Final

Receive = Callable[[], Awaitable[Any]]

_NO_ROOM: Final = "too many large requests are in progress; try again"

_DIGITS: Final = 18
"""A length of more digits is too large, whatever they are."""


class BodyRefused(Exception):
    """A body that is not read to its end; `status` is that of the answer, `code` is stable."""

    status = 400
    code = "bad-request"


class BodyTooLarge(BodyRefused):
    """The body is larger than one may be."""

    status = 413
    code = "request-entity-too-large"


class BodyLate(BodyRefused):
    """The client sent nothing more in the time that it has."""

    status = 408
    code = "request-timeout"


class NoRoom(BodyRefused):
    """Too much is held for unfinished requests, and the most of it for this client."""

    status = 503
    code = "too-many-large-requests"


class _Held:
    def __init__(self, address: str, timeout: asyncio.Timeout) -> None:
        self.address = address
        self.timeout = timeout
        self.size = 0
        self.kept = False
        """It has come as a whole and is being worked on: it cannot be given up."""


class Bodies:
    """The bodies that a process holds at one time, in bytes: `most` of one, and half as much again of all.

    `revocable`: a body that has come as a whole may be given up too, since nothing is changed by working on it.
    """

    def __init__(self, most: int, *, revocable: bool = False) -> None:
        self._most = most
        self._most_of_all = most + most // 2
        self._revocable = revocable
        self._held: dict[_Held, None] = {}
        self._total = 0

    @asynccontextmanager
    async def received(self, scope: Any, receive: Receive) -> AsyncIterator[bytes | bytearray]:
        """Give a request's body, which counts as held until the context ends.

        Raises BodyRefused if it is too large, does not come, or is given up.
        """
        length = dict(scope["headers"]).get(b"content-length", b"0").lstrip(b"0")
        if len(length) > _DIGITS or int(length or b"0") > self._most:
            raise self._too_large()
        message = await receive()
        if message["type"] == "http.request" and not message.get("more_body"):
            yield message.get("body", b"")  # most come in one piece
            return
        client = scope.get("client")
        try:
            async with asyncio.timeout(None) as timeout:
                held = _Held(client[0] if client else "", timeout)
                self._held[held] = None
                body = bytearray()
                try:
                    await self._gather(held, body, receive, message)
                    held.kept = not self._revocable
                    yield body
                finally:
                    self._let_go(held)
                    # Now, and not when a traceback that refers to it happens to be collected.
                    with suppress(BufferError):
                        body.clear()
        except TimeoutError as error:
            if not timeout.expired():
                raise
            raise NoRoom(_NO_ROOM) from error

    async def _gather(self, held: _Held, body: bytearray, receive: Receive, message: Any) -> None:
        while True:
            if message["type"] != "http.request":
                raise BodyLate("the body did not arrive in time")
            if held not in self._held:
                raise NoRoom(_NO_ROOM)
            body += message.get("body", b"")
            if len(body) > self._most:
                raise self._too_large()
            self._total += len(body) - held.size
            held.size = len(body)
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
        # Once for each: a timeout that is set again waits again, and would never end while others send.
        self._let_go(largest)
        largest.timeout.reschedule(asyncio.get_running_loop().time())

    def _let_go(self, held: _Held) -> None:
        if held in self._held:
            del self._held[held]
            self._total -= held.size

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(f"the body is larger than the {self._most} bytes that are read")
