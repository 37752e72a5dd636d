# SPDX-License-Identifier: Apache-2.0
"""The device plugin: offers seats to kubelet over gRPC, and registers again whenever kubelet starts anew.

A thin shell: every call ends in `Seats`. kubelet deletes all plugins' sockets when it starts, so a missing socket
is the sign to serve and register again.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final, NoReturn

import grpc

from nodeagent.booking import SeatRefused
from nodeagent.protocol import (
    DEVICE_PLUGIN_SERVICE,
    HEALTHY,
    LIST_POD_RESOURCES,
    MESSAGE_BYTES,
    REGISTER,
    VERSION,
    plugin,
    pod_resources,
)
from nodeagent.seats import Owner, Seats

log = logging.getLogger(__name__)

SOCKET: Final = "slicekeeper-seat.sock"
CALL_SECONDS: Final = 5.0
LOOK_SECONDS: Final = 0.5
THREADS: Final = 16
"""One is held by every ListAndWatch stream; the others start containers side by side."""


class SeatPlugin:
    """The device plugin of one node."""

    def __init__(self, folder: Path, resource: str, ids: list[str], seats: Seats) -> None:
        self._folder = folder
        self._resource = resource
        self._ids = ids
        self._seats = seats
        self._stop = threading.Event()
        self._server: grpc.Server | None = None
        self._closed = threading.Event()
        self._kubelet: tuple[int, int] | None = None
        self.registered = threading.Event()

    def start(self) -> None:
        """Start serving, in daemon threads."""
        threading.Thread(target=self._run, name="seat-plugin", daemon=True).start()

    def stop(self) -> None:
        """Stop serving; kubelet keeps the seats that it has given out."""
        self._stop.set()
        self._close()

    def _run(self) -> None:
        while not self._stop.is_set():
            try:
                self._look()
            except (grpc.RpcError, OSError, RuntimeError) as error:
                log.warning("kubelet has not taken the seats: %s", _what(error))
                self.registered.clear()
            self._stop.wait(LOOK_SECONDS)

    def _look(self) -> None:
        """Serve and register if kubelet is another one than last time, or has taken our socket away."""
        socket = self._folder / SOCKET
        try:
            stat = (self._folder / "kubelet.sock").stat()
        except FileNotFoundError:
            self.registered.clear()
            return
        kubelet = (stat.st_ino, stat.st_ctime_ns)
        if self.registered.is_set() and kubelet == self._kubelet and socket.exists():
            return
        self.registered.clear()
        self._close()
        self._serve(socket)
        self._register()
        self._kubelet = kubelet
        self.registered.set()
        log.info("kubelet has %d seats of %s", len(self._ids), self._resource)

    def _serve(self, socket: Path) -> None:
        socket.unlink(missing_ok=True)
        self._closed = threading.Event()
        server = grpc.server(
            ThreadPoolExecutor(THREADS, thread_name_prefix="seat"),
            options=[("grpc.max_receive_message_length", MESSAGE_BYTES)],
        )
        server.add_generic_rpc_handlers((self._handlers(self._closed),))
        server.add_insecure_port(f"unix://{socket}")
        server.start()
        self._server = server

    def _close(self) -> None:
        self._closed.set()
        if self._server is not None:
            self._server.stop(grace=0.2).wait(2.0)
            self._server = None

    def _register(self) -> None:
        request = plugin.RegisterRequest(
            version=VERSION, endpoint=SOCKET, resource_name=self._resource, options=_options()
        )
        with grpc.insecure_channel(f"unix://{self._folder}/kubelet.sock") as channel:
            call(channel, REGISTER, request, plugin.Empty)

    def _handlers(self, closed: threading.Event) -> grpc.GenericRpcHandler:
        def unary(kind: Any, method: Callable[[Any, grpc.ServicerContext], Any]) -> grpc.RpcMethodHandler[Any, Any]:
            return grpc.unary_unary_rpc_method_handler(
                method, kind.FromString, lambda message: message.SerializeToString()
            )

        methods = {
            "GetDevicePluginOptions": unary(plugin.Empty, lambda _request, _context: _options()),
            "GetPreferredAllocation": unary(
                plugin.PreferredAllocationRequest, lambda _request, _context: plugin.PreferredAllocationResponse()
            ),
            "Allocate": unary(plugin.AllocateRequest, self._allocate),
            "PreStartContainer": unary(plugin.PreStartContainerRequest, self._pre_start),
            "ListAndWatch": grpc.unary_stream_rpc_method_handler(
                lambda _request, context: self._list_and_watch(context, closed),
                plugin.Empty.FromString,
                _serialise,
            ),
        }
        return grpc.method_handlers_generic_handler(DEVICE_PLUGIN_SERVICE, methods)

    def _list_and_watch(self, context: grpc.ServicerContext, closed: threading.Event) -> Iterator[Any]:
        yield plugin.ListAndWatchResponse(devices=[plugin.Device(ID=seat, health=HEALTHY) for seat in self._ids])
        # Seats never change, but the stream must stay open; it ends with the server or with kubelet.
        while not closed.wait(1.0) and context.is_active():
            pass

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


class PodResources:
    """Asks kubelet which container holds a seat."""

    def __init__(self, socket: Path, resource: str) -> None:
        self._target = f"unix://{socket}"
        self._resource = resource

    def owners(self, seat_id: str) -> list[Owner]:
        """Return every container that holds the seat.

        Raises grpc.RpcError where kubelet does not answer.
        """
        with grpc.insecure_channel(
            self._target, options=[("grpc.max_receive_message_length", 4 * MESSAGE_BYTES)]
        ) as channel:
            answer = call(
                channel,
                LIST_POD_RESOURCES,
                pod_resources.ListPodResourcesRequest(),
                pod_resources.ListPodResourcesResponse,
            )
        return [
            (pod.namespace, pod.name, container.name)
            for pod in answer.pod_resources
            for container in pod.containers
            for device in container.devices
            if device.resource_name == self._resource and seat_id in device.device_ids
        ]


def call(channel: grpc.Channel, method: str, request: Any, answer: Any) -> Any:
    """Send one unary request; return its answer."""
    stub: grpc.UnaryUnaryMultiCallable[Any, Any] = channel.unary_unary(method, _serialise, answer.FromString)
    return stub(request, timeout=CALL_SECONDS)


def _serialise(message: Any) -> bytes:
    return bytes(message.SerializeToString())


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
