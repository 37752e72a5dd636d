# SPDX-License-Identifier: Apache-2.0
"""Ask kubelet's PodResources interface which container holds which devices."""

from __future__ import annotations

import time
from collections import defaultdict
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.coalesced_call import CoalescedCall
from nodeagent.kubelet_protocol import (
    CALL_SECONDS,
    GET_ALLOCATABLE_RESOURCES,
    LIST_POD_RESOURCES,
    MESSAGE_BYTES,
    call,
    pod_resources,
)
from nodeagent.seats import Owner
from slicekeeper.config.resource_names import is_named

BUSY_SECONDS: Final = 0.02
"""Pause before a request is repeated that kubelet refused because of too many requests in this second."""


class PodResources:
    """Client of kubelet's list: which container holds a seat, and what other plugins allocate.

    kubelet answers 100 requests a second of all clients together, 10 of them at once, and refuses the others.
    """

    def __init__(self, socket: Path, resource: str) -> None:
        self._target = f"unix://{socket}"
        self._resource = resource
        self._by_seat = CoalescedCall(self._listed_by_seat)

    def owners(self, seat_id: str) -> list[Owner]:
        """Return every container that holds the seat, from a list that kubelet made after this call began.

        Raises grpc.RpcError if kubelet does not answer.
        """
        return self._by_seat().get(seat_id, [])

    def devices(self, resources: tuple[str, ...]) -> set[str]:
        """Return all devices of these resources: those on offer, and those that containers hold.

        Raises grpc.RpcError if kubelet does not answer.
        """
        with self._channel() as channel:
            pods = _listed(channel)
            request = pod_resources.AllocatableResourcesRequest()
            offered = _ask(channel, GET_ALLOCATABLE_RESOURCES, request, pod_resources.AllocatableResourcesResponse)
        held = (device for pod in pods for container in pod.containers for device in container.devices)
        return {
            device_id
            for device in (*offered.devices, *held)
            if is_named(device.resource_name, resources)
            for device_id in device.device_ids
        }

    def _listed_by_seat(self) -> dict[str, list[Owner]]:
        with self._channel() as channel:
            pods = _listed(channel)
        owners = defaultdict(list)
        for pod in pods:
            for container in pod.containers:
                for device in container.devices:
                    if device.resource_name == self._resource:
                        for seat_id in device.device_ids:
                            owners[seat_id].append((pod.namespace, pod.name, container.name))
        return dict(owners)

    def _channel(self) -> grpc.Channel:
        return grpc.insecure_channel(self._target, options=[("grpc.max_receive_message_length", 4 * MESSAGE_BYTES)])


def _listed(channel: grpc.Channel) -> Any:
    """Return all pods with the devices of their containers."""
    request = pod_resources.ListPodResourcesRequest()
    return _ask(channel, LIST_POD_RESOURCES, request, pod_resources.ListPodResourcesResponse).pod_resources


def _ask(channel: grpc.Channel, method: str, request: Any, answer: Any) -> Any:
    """Send a request; return the answer, for which it may have to be sent again."""
    end = time.monotonic() + CALL_SECONDS
    while True:
        try:
            return call(channel, method, request, answer)
        except grpc.RpcError as error:
            if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED or time.monotonic() > end:
                raise
        time.sleep(BUSY_SECONDS)
