# SPDX-License-Identifier: Apache-2.0
"""A kubelet as far as a device plugin sees it: real gRPC over real sockets, with restarts."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc

from nodeagent.kubelet_protocol import plugin, pod_resources


class FakeKubelet:
    """Takes registrations, answers PodResources, and calls the plugin as kubelet does."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.registered: list[Any] = []
        self.came = threading.Event()
        """Set once a plugin has registered and offered its seats."""
        self.offered: list[str] = []
        self.owners: dict[str, list[tuple[str, str, str]]] = {}
        """Seat id → the containers that PodResources names."""
        self.resource = "slicekeeper.io/seat"
        self.others: dict[str, list[str]] = {}
        """Resource → devices that another plugin offers; `held` are those that pods hold."""
        self.held: dict[str, list[str]] = {}
        self.lists = 0
        """How many times all pods' resources were asked for, those that were refused among them."""
        self.answers = threading.Event()
        """Lists are answered while this is set."""
        self.answers.set()
        self.refusals = 0
        """So many questions are refused before others are answered."""
        self._tokens = 10.0
        self._counted = time.monotonic()
        self._servers: list[grpc.Server] = []
        self._followed: grpc.Channel | None = None
        self._lock = threading.Lock()
        self._life = 0

    def start(self) -> None:
        """Begin to listen; as kubelet does, delete every socket first."""
        for file in self.folder.glob("*.sock"):
            file.unlink()
        self.came.clear()
        register = {"Register": (plugin.RegisterRequest, self._register)}
        self._serve("kubelet.sock", "v1beta1.Registration", register)
        lister = {
            "List": (pod_resources.ListPodResourcesRequest, self._list),
            "GetAllocatableResources": (pod_resources.AllocatableResourcesRequest, self._allocatable),
        }
        self._serve("pods.sock", "v1.PodResourcesLister", lister)

    def stop(self) -> None:
        """Stop listening and following, as a kubelet that is killed does: its socket stays behind."""
        there = [file for file in self.folder.glob("kubelet.sock") if self._servers]
        for server in self._servers:
            server.stop(0).wait(5)
        self._servers.clear()
        with self._lock:
            self._life += 1
            if self._followed is not None:
                self._followed.close()
        for file in there:
            file.unlink(missing_ok=True)
            with socket.socket(socket.AF_UNIX) as left:
                left.bind(str(file))

    def _serve(self, name: str, service: str, methods: dict[str, tuple[Any, Any]]) -> None:
        server = grpc.server(ThreadPoolExecutor(4))
        handlers = {
            method: grpc.unary_unary_rpc_method_handler(answer, request.FromString, lambda m: m.SerializeToString())
            for method, (request, answer) in methods.items()
        }
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
        server.add_insecure_port(f"unix://{self.folder}/{name}")
        server.start()
        self._servers.append(server)

    def _register(self, request: Any, _context: Any) -> Any:
        self.registered.append(request)
        threading.Thread(target=self._follow, args=(self._life,), daemon=True).start()  # kubelet answers first, too
        return plugin.Empty()

    def _follow(self, life: int) -> None:
        """Follow ListAndWatch to its end, or that of this life."""
        with self._lock:
            if life != self._life:
                return
            self._followed = channel = self._channel()
        stub = channel.unary_stream(
            "/v1beta1.DevicePlugin/ListAndWatch",
            lambda m: m.SerializeToString(),
            plugin.ListAndWatchResponse.FromString,
        )
        with contextlib.suppress(grpc.RpcError, ValueError):  # ValueError: the channel was closed here
            for answer in stub(plugin.Empty()):
                self.offered = [device.ID for device in answer.devices]
                self.came.set()

    def _limit(self, context: Any) -> None:
        with self._lock:
            before, self._counted = self._counted, time.monotonic()
            self._tokens = min(10.0, self._tokens + (self._counted - before) * 100.0)  # kubelet's own limits
            if self.refusals:
                self.refusals, allowed = self.refusals - 1, False
            elif allowed := self._tokens >= 1:
                self._tokens -= 1
        if not allowed:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")

    def _list(self, _request: Any, context: Any) -> Any:
        self.lists += 1
        assert self.answers.wait(60)
        self._limit(context)
        answer = pod_resources.ListPodResourcesResponse()
        for seat, owners in self.owners.items():
            for namespace, name, container in owners:
                pod = answer.pod_resources.add(name=name, namespace=namespace)
                there = pod.containers.add(name=container)
                there.devices.add(resource_name=self.resource, device_ids=[seat])
                there.devices.add(resource_name="other.example/device", device_ids=["seat-0000"])
        for resource, devices in self.held.items():
            pod = answer.pod_resources.add(name="theirs", namespace="other")
            pod.containers.add(name="c").devices.add(resource_name=resource, device_ids=devices)
        return answer

    def _allocatable(self, _request: Any, context: Any) -> Any:
        self._limit(context)
        answer = pod_resources.AllocatableResourcesResponse()
        answer.devices.add(resource_name=self.resource, device_ids=self.offered)
        for resource, devices in self.others.items():
            answer.devices.add(resource_name=resource, device_ids=devices)
        return answer

    def call(self, method: str, request: Any, answer: Any) -> Any:
        """Call the plugin that registered last."""
        with self._channel() as channel:
            stub = channel.unary_unary(
                f"/v1beta1.DevicePlugin/{method}", lambda m: m.SerializeToString(), answer.FromString
            )
            return stub(request, timeout=60)

    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(f"unix://{self.folder}/{self.registered[-1].endpoint}")

    def allocate(self, *seats: str) -> list[str]:
        """Allocate one seat for each container; return the CDI names."""
        request = plugin.AllocateRequest(
            container_requests=[plugin.ContainerAllocateRequest(devices_ids=[seat]) for seat in seats]
        )
        answer = self.call("Allocate", request, plugin.AllocateResponse)
        return [container.cdi_devices[0].name for container in answer.container_responses]

    def pre_start(self, seat: str) -> None:
        """Announce a container's start."""
        request = plugin.PreStartContainerRequest(devices_ids=[seat])
        self.call("PreStartContainer", request, plugin.PreStartContainerResponse)
