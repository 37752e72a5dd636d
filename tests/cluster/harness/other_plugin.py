# SPDX-License-Identifier: Apache-2.0
"""A device plugin that gives GPUs out whole, as NVIDIA's does: run in a pod on the node, as a program of its own.

Its arguments are the UUIDs. Answers kubelet and does nothing to containers.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.kubelet_protocol import DEVICE_PLUGIN_SERVICE, HEALTHY, REGISTER, VERSION, call, plugin

FOLDER: Final = Path("/var/lib/kubelet/device-plugins")
RESOURCE: Final = "nvidia.com/gpu"
SOCKET: Final = "other.sock"


def serve(uuids: list[str]) -> None:
    """Offer the GPUs until the process ends."""

    def watch(_request: Any, _context: grpc.ServicerContext) -> Iterator[Any]:
        yield plugin.ListAndWatchResponse(devices=[plugin.Device(ID=uuid, health=HEALTHY) for uuid in uuids])
        time.sleep(3600)

    def allocate(request: Any, _context: grpc.ServicerContext) -> Any:
        return plugin.AllocateResponse(
            container_responses=[plugin.ContainerAllocateResponse() for _ in request.container_requests]
        )

    def encode(message: Any) -> bytes:
        return bytes(message.SerializeToString())

    unary, stream = grpc.unary_unary_rpc_method_handler, grpc.unary_stream_rpc_method_handler
    methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "GetDevicePluginOptions": unary(
            lambda _request, _context: plugin.DevicePluginOptions(), plugin.Empty.FromString, encode
        ),
        "ListAndWatch": stream(watch, plugin.Empty.FromString, encode),
        "Allocate": unary(allocate, plugin.AllocateRequest.FromString, encode),
    }
    server = grpc.server(ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(DEVICE_PLUGIN_SERVICE, methods),))
    (FOLDER / SOCKET).unlink(missing_ok=True)
    server.add_insecure_port(f"unix://{FOLDER}/{SOCKET}")
    server.start()
    asked = plugin.RegisterRequest(version=VERSION, endpoint=SOCKET, resource_name=RESOURCE)
    with grpc.insecure_channel(f"unix://{FOLDER}/kubelet.sock") as channel:
        call(channel, REGISTER, asked, plugin.Empty)
    server.wait_for_termination()


if __name__ == "__main__":
    serve(sys.argv[1:])
