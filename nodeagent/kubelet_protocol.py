# SPDX-License-Identifier: Apache-2.0
"""kubelet's two gRPC interfaces, described here by field number: device plugin v1beta1 and PodResources v1.

Only the messages and fields that we use are described; protobuf ignores the others. Describing them keeps generated
code and a compiler out of the tree. The numbers are those of the Kubernetes project's `api.proto` files (Apache-2.0).
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, Final

import grpc
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

_STRING: Final = descriptor_pb2.FieldDescriptorProto.TYPE_STRING
_BOOL: Final = descriptor_pb2.FieldDescriptorProto.TYPE_BOOL
_MESSAGE: Final = descriptor_pb2.FieldDescriptorProto.TYPE_MESSAGE

# Message → {field: (number, type, repeated)}; the type is `str`, `bool`, or another message's name.
_Fields = dict[str, tuple[int, type | str, bool]]

_DEVICE_PLUGIN: Final[dict[str, _Fields]] = {
    "Empty": {},
    "DevicePluginOptions": {"pre_start_required": (1, bool, False)},
    "RegisterRequest": {
        "version": (1, str, False),
        "endpoint": (2, str, False),
        "resource_name": (3, str, False),
        "options": (4, "DevicePluginOptions", False),
    },
    "Device": {"ID": (1, str, False), "health": (2, str, False)},
    "ListAndWatchResponse": {"devices": (1, "Device", True)},
    "ContainerAllocateRequest": {"devices_ids": (1, str, True)},
    "AllocateRequest": {"container_requests": (1, "ContainerAllocateRequest", True)},
    "CDIDevice": {"name": (1, str, False)},
    "ContainerAllocateResponse": {"cdi_devices": (5, "CDIDevice", True)},
    "AllocateResponse": {"container_responses": (1, "ContainerAllocateResponse", True)},
    "PreStartContainerRequest": {"devices_ids": (1, str, True)},
    "PreStartContainerResponse": {},
}

_POD_RESOURCES: Final[dict[str, _Fields]] = {
    "ListPodResourcesRequest": {},
    "ListPodResourcesResponse": {"pod_resources": (1, "PodResources", True)},
    "PodResources": {
        "name": (1, str, False),
        "namespace": (2, str, False),
        "containers": (3, "ContainerResources", True),
    },
    "ContainerResources": {"name": (1, str, False), "devices": (2, "ContainerDevices", True)},
    "AllocatableResourcesRequest": {},
    "AllocatableResourcesResponse": {"devices": (1, "ContainerDevices", True)},
    "ContainerDevices": {"resource_name": (1, str, False), "device_ids": (2, str, True)},
}


def _messages(package: str, described: dict[str, _Fields]) -> SimpleNamespace:
    """Return the message classes of a protocol package by name."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file(package, described))
    types = {name: pool.FindMessageTypeByName(f"{package}.{name}") for name in described}
    return SimpleNamespace(**{name: message_factory.GetMessageClass(found) for name, found in types.items()})


def _file(package: str, messages: dict[str, _Fields]) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"{package}.proto", package=package, syntax="proto3")
    for name, fields in messages.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in fields.items():
            added = message.field.add(name=field, number=number)
            added.label = added.LABEL_REPEATED if repeated else added.LABEL_OPTIONAL
            if isinstance(kind, str):
                added.type, added.type_name = _MESSAGE, f".{package}.{kind}"
            else:
                added.type = _BOOL if kind is bool else _STRING
    return file


plugin: Final = _messages("v1beta1", _DEVICE_PLUGIN)
pod_resources: Final = _messages("v1", _POD_RESOURCES)

VERSION: Final = "v1beta1"
REGISTER: Final = "/v1beta1.Registration/Register"
DEVICE_PLUGIN_SERVICE: Final = "v1beta1.DevicePlugin"
LIST_POD_RESOURCES: Final = "/v1.PodResourcesLister/List"
GET_ALLOCATABLE_RESOURCES: Final = "/v1.PodResourcesLister/GetAllocatableResources"
HEALTHY: Final = "Healthy"

# kubelet refuses larger messages, so we need not allow them either.
MESSAGE_BYTES: Final = 4 << 20

CALL_SECONDS: Final = 5.0


def call(channel: grpc.Channel, method: str, request: Any, answer: Any) -> Any:
    """Send one unary request; return its answer."""
    stub: grpc.UnaryUnaryMultiCallable[Any, Any] = channel.unary_unary(method, serialise, answer.FromString)
    return stub(request, timeout=CALL_SECONDS)


def serialise(message: Any) -> bytes:
    """Return a message as it is sent."""
    return bytes(message.SerializeToString())
