# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper forwarder`: where the API server reaches the timekeeper's aggregated API.

The API server must always get an answer to discovery: while one aggregated API gives none, no namespace of the cluster
can be deleted. So its connections end here, in a part that keeps nothing and runs twice. Each is forwarded unchanged,
encrypted from the API server to the timekeeper, which still sees the API server's own certificate. While no timekeeper
accepts connections, a server in this process answers instead, with the timekeeper's certificate: discovery as the
timekeeper does, and its routes with 503.
"""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Final, cast
from urllib.parse import urlsplit

import click
import msgspec

from slicekeeper import names
from slicekeeper.cli.main import Context
from slicekeeper.config.settings import ServingSettings, TlsSettings
from slicekeeper.errors import SettingsError
from slicekeeper.net import problem_document
from slicekeeper.net.probes import THREADS
from slicekeeper.net.serving.background import BackgroundServer
from slicekeeper.net.serving.process import prepare
from slicekeeper.net.serving.wsgi import WsgiBridge
from slicekeeper.net.tls import ReloadingContext
from timekeeper.api.schemas.discovery import DOCUMENTS

CONNECT_SECONDS: Final = 2.0
"""How long a connection to the timekeeper may take, its name's look-up included. The API server waits five."""

CHUNK_BYTES: Final = 64 << 10

_ROOT: Final = f"/apis/{names.API}"
_ANSWERS: Final = {path: msgspec.json.encode(document) for path, document in DOCUMENTS.items()}

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@click.command()
@click.pass_obj
def forwarder(context: Context) -> None:
    """Forward the API server's connections to the timekeeper.

    While there is none, discovery is answered here.
    """
    settings = context.begin()
    prepare(settings.serving)
    target = urlsplit(settings.timekeeper_client.url)
    if not target.hostname:
        raise SettingsError(
            "timekeeperClient.url is empty: connections are forwarded to it; "
            "for example https://timekeeper.slicekeeper-system.svc:8444"
        )
    address = (target.hostname, target.port or 443)
    standby = Standby(settings.timekeeper.tls, settings.serving)
    try:
        asyncio.run(_serve(settings.timekeeper.forwarder_bind, Forwarder(address, standby.port, settings.serving)))
    finally:
        standby.close()


async def _serve(bind: str, forwarding: Forwarder) -> None:
    """Accept connections at `bind` (host:port) until SIGTERM."""
    host, _, port = bind.rpartition(":")
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    server = await asyncio.start_server(forwarding.forward, host.strip("[]"), int(port), limit=CHUNK_BYTES)
    try:
        await stop.wait()
    finally:
        server.close()


@dataclass(eq=False)
class _Connection:
    """A connection of a client; `used_at` is when anything was last sent on it, by the loop's clock."""

    address: str
    task: asyncio.Task[None]
    used_at: float
    has_sent: bool = False

    def use(self) -> None:
        """Note that one of the ends has sent something."""
        self.used_at = asyncio.get_running_loop().time()
        self.has_sent = True


class Forwarder:
    """Forwards connections to the timekeeper at `address`, or to the standby at a port of this machine.

    If all places are taken, a new client gets the place of another connection of the address with the most of them: one
    that has sent nothing, or else the one that has been idle for longest. What is sent is encrypted, so no connection
    counts as busy longer than anything is sent on it. So the API server always gets a place.
    """

    def __init__(self, address: tuple[str, int], standby: int, limits: ServingSettings) -> None:
        self._address = address
        self._standby = standby
        self._limits = limits
        self._open: set[_Connection] = set()

    async def forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until both ends have closed it."""
        client = str((writer.get_extra_info("peername") or ("",))[0])
        self._make_room(client)
        task = cast("asyncio.Task[None]", asyncio.current_task())
        mine = _Connection(client, task, asyncio.get_running_loop().time())
        self._open.add(mine)
        try:
            # Gone, late, or its place is needed, or this process is to stop.
            with contextlib.suppress(OSError, asyncio.CancelledError):
                await self._between((reader, writer), mine)
        finally:
            self._open.discard(mine)
            writer.close()

    def _make_room(self, client: str) -> None:
        """End a connection if there is no place for another one of this client."""
        by_address = Counter(one.address for one in self._open)
        if by_address[client] >= self._limits.connections_per_address:
            candidates = {one for one in self._open if one.address == client}
        elif len(self._open) >= self._limits.connections:
            candidates = self._open
        else:
            return
        victim = min(candidates, key=lambda one: (-by_address[one.address], one.has_sent, one.used_at))
        self._open.discard(victim)
        victim.task.cancel()

    async def _between(self, client: Streams, mine: _Connection) -> None:
        # A probe connects and sends nothing: it concerns this process alone.
        first = await asyncio.wait_for(client[0].read(CHUNK_BYTES), self._limits.request_seconds)
        if not first:
            return
        mine.use()
        server = await self._connected()
        server[1].write(first)
        there = asyncio.create_task(_copy(client[0], server[1], mine.use))
        try:
            await _copy(server[0], client[1], mine.use)
        finally:
            there.cancel()
            server[1].close()

    async def _connected(self) -> Streams:
        try:
            return await asyncio.wait_for(asyncio.open_connection(*self._address, limit=CHUNK_BYTES), CONNECT_SECONDS)
        except OSError:
            return await asyncio.open_connection("127.0.0.1", self._standby, limit=CHUNK_BYTES)


async def _copy(source: asyncio.StreamReader, target: asyncio.StreamWriter, used: Callable[[], None]) -> None:
    """Copy what arrives, until one of the ends has gone, and pass on the end."""
    with contextlib.suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            used()
            target.write(data)
            await target.drain()
        target.write_eof()


class Standby(BackgroundServer):
    """The server that answers while there is no timekeeper, on a port of its own of this machine."""

    def __init__(self, tls: TlsSettings, limits: ServingSettings) -> None:
        # Every connection comes from this process, and each serves one request, so that the next one asks the
        # timekeeper again.
        own = msgspec.structs.replace(limits, connections_per_address=limits.connections)
        self.tls = ReloadingContext(tls).context if tls.certificate_file else None
        super().__init__("127.0.0.1:0", WsgiBridge(_answer, threads=THREADS), own, keepalive=0)


def _answer(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
    path = environ.get("PATH_INFO", "")
    if environ["REQUEST_METHOD"] == "GET" and path in _ANSWERS:
        status, media, body = "200 OK", "application/json", _ANSWERS[path]
    elif path.startswith(_ROOT):
        status, media = "503 Service Unavailable", problem_document.MEDIA_TYPE
        detail = "the timekeeper does not answer at present; nothing was changed: try again"
        body = problem_document.encode(status=503, code="timekeeper-away", detail=detail, path=path)
    else:
        # As the timekeeper answers. The API server first asks for discovery at /apis, and takes a 503 there for the end
        # of it; only after a 404 does it ask at the path that both have.
        status, media = "404 Not Found", problem_document.MEDIA_TYPE
        body = problem_document.encode(status=404, code="not-found", detail="there is no such route", path=path)
    start_response(status, [("Content-Type", media), ("Content-Length", str(len(body))), ("Retry-After", "5")])
    return [body]
