# SPDX-License-Identifier: Apache-2.0
"""The device plugin: offer seats to kubelet over gRPC, and register again whenever kubelet restarts.

A thin shell: every call ends in `Seats`. kubelet fails a pod that starts while it has no seats, so the plugin knows
exactly when kubelet has them: from when they were sent until the stream ends, which is when kubelet dies. A new kubelet
deletes all plugins' sockets, listens, and looks at its pods about a second later; by then it must have seats.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc

from nodeagent.kubelet_protocol import (
    CALL_SECONDS,
    DEVICE_PLUGIN_SERVICE,
    HEALTHY,
    MESSAGE_BYTES,
    REGISTER,
    VERSION,
    call,
    plugin,
    serialise,
)
from nodeagent.seat_refused import SeatRefused
from nodeagent.seats import Seats
from slicekeeper import threads

log = logging.getLogger(__name__)

SOCKET: Final = "slicekeeper-seat.sock"
LOOK_SECONDS: Final = 0.02
"""Pause between two checks for a new kubelet; there is none while it has the seats."""
OTHER_CALLS: Final = 8
"""Maximum number of simultaneous calls that start no container: kubelet's stream, one that is ending, short ones."""


class SeatPlugin:
    """The device plugin of one node."""

    def __init__(self, folder: Path, resource: str, ids: list[str], seats: Seats) -> None:
        self._folder = folder
        self._resource = resource
        self._ids = ids
        self._seats = seats
        self._stop = threading.Event()
        self._server: grpc.Server | None = None
        self._lock = threading.Lock()
        self._stream: threading.Event | None = None
        """Set when kubelet's stream of our seats ends."""
        self._lost = threading.Event()
        self._logged = ""
        self.registered = threading.Event()
        """Set while kubelet has the seats."""

    def start(self) -> None:
        """Start serving, in daemon threads."""
        threads.keep("seat-plugin", self._run, self._stop.is_set)

    def stop(self) -> None:
        """Stop serving; kubelet keeps the seats that it has allocated."""
        self._stop.set()
        self._lost.set()
        self._close()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._lost.clear()
            if not self.registered.is_set():
                try:
                    self._offer()
                    self._logged = ""
                except (grpc.RpcError, OSError, RuntimeError) as error:
                    if self._logged != (what := _what(error)):
                        log.warning("kubelet has not taken the seats: %s", what)
                        self._logged = what
            self._lost.wait(None if self.registered.is_set() else LOOK_SECONDS)

    def _offer(self) -> None:
        """Serve and register, if there is a kubelet; return when it has the seats, or is another."""
        kubelet = self._kubelet()
        if kubelet is None:
            return
        path = self._folder / SOCKET
        if self._server is None or not path.exists():
            self._close()
            self._serve(path)
        self._register()
        end = time.monotonic() + CALL_SECONDS
        while not self.registered.wait(LOOK_SECONDS):
            if self._stop.is_set() or self._kubelet() != kubelet or time.monotonic() > end:
                return
        log.info("kubelet has %d seats of %s", len(self._ids), self._resource)

    def _kubelet(self) -> tuple[int, int] | None:
        """Return the listening kubelet, None if none listens: a killed kubelet leaves its socket behind."""
        path = self._folder / "kubelet.sock"
        try:
            stat = path.stat()
            with socket.socket(socket.AF_UNIX) as probe:
                probe.settimeout(CALL_SECONDS)
                probe.connect(str(path))
        except (FileNotFoundError, ConnectionRefusedError):
            return None
        return stat.st_ino, stat.st_ctime_ns

    def _serve(self, path: Path) -> None:
        # One for each start that is possible, and for starts that kubelet gave up and repeated: none waits for another.
        most = 2 * len(self._ids) + OTHER_CALLS
        path.unlink(missing_ok=True)
        server = grpc.server(
            ThreadPoolExecutor(most, thread_name_prefix="seat"),
            options=[("grpc.max_receive_message_length", MESSAGE_BYTES)],
        )
        server.add_generic_rpc_handlers((self._handlers(),))
        server.add_insecure_port(f"unix://{path}")
        server.start()
        self._server = server

    def _close(self) -> None:
        with self._lock:
            if self._stream is not None:
                self._stream.set()
        if self._server is not None:
            self._server.stop(grace=0.2).wait(2.0)
            self._server = None

    def _register(self) -> None:
        request = plugin.RegisterRequest(
            version=VERSION, endpoint=SOCKET, resource_name=self._resource, options=_options()
        )
        with grpc.insecure_channel(f"unix://{self._folder}/kubelet.sock") as channel:
            call(channel, REGISTER, request, plugin.Empty)

    def _handlers(self) -> grpc.GenericRpcHandler:
        """Return the calls of kubelet that the plugin answers."""

        def unary(kind: Any, method: Callable[[Any, grpc.ServicerContext], Any]) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.unary_unary_rpc_method_handler(method, kind.FromString, serialise)

        methods = {
            "GetDevicePluginOptions": unary(plugin.Empty, lambda _request, _context: _options()),
            "Allocate": unary(plugin.AllocateRequest, self._allocate),
            "PreStartContainer": unary(plugin.PreStartContainerRequest, self._pre_start),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                lambda _request, context: self._list_and_watch(context), plugin.Empty.FromString, serialise
            ),
        }
        return grpc.method_handlers_generic_handler(DEVICE_PLUGIN_SERVICE, methods)

    def _list_and_watch(self, context: grpc.ServicerContext) -> Iterator[Any]:
        ended = threading.Event()

        def end() -> None:
            ended.set()
            with self._lock:
                if self._stream is ended:
                    self._stream = None
                    self.registered.clear()
                    self._lost.set()

        if not context.add_callback(end):
            return
        yield plugin.ListAndWatchResponse(devices=[plugin.Device(ID=seat, health=HEALTHY) for seat in self._ids])
        # Asked for the next answer: kubelet has been sent this one.
        with self._lock:
            if not ended.is_set():
                self._stream = ended
                self.registered.set()
        ended.wait()  # seats never change, but the stream must stay open

    def _allocate(self, request: Any, context: grpc.ServicerContext) -> Any:
        responses = []
        for container in request.container_requests:
            if len(container.devices_ids) != 1:
                _abort(context, f"a container holds exactly one {self._resource}, not {len(container.devices_ids)}")
            try:
                name = self._seats.allocate(container.devices_ids[0])
            except OSError as error:
                log.warning("seat %s cannot be remembered: %s", container.devices_ids[0], error)
                _abort(context, f"seat {container.devices_ids[0]} cannot be remembered: {error}")
            responses.append(plugin.ContainerAllocateResponse(cdi_devices=[plugin.CDIDevice(name=name)]))
        return plugin.AllocateResponse(container_responses=responses)

    def _pre_start(self, request: Any, context: grpc.ServicerContext) -> Any:
        for seat_id in request.devices_ids:
            try:
                self._seats.start(seat_id)
            except (SeatRefused, OSError, grpc.RpcError) as error:
                log.warning("seat %s: %s", seat_id, _what(error))
                _abort(context, _what(error))
        return plugin.PreStartContainerResponse()


def _options() -> Any:
    return plugin.DevicePluginOptions(pre_start_required=True)


def _abort(context: grpc.ServicerContext, message: str) -> NoReturn:
    context.abort(grpc.StatusCode.FAILED_PRECONDITION, message)
    raise AssertionError("abort returned")


def _what(error: Exception) -> str:
    if isinstance(error, grpc.RpcError):
        with contextlib.suppress(AttributeError):
            return f"{error.code().name}: {error.details()}"
    return str(error)
