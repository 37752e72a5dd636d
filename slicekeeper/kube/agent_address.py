# SPDX-License-Identifier: Apache-2.0
"""The address of a node's agent: the annotation `slicekeeper.io/agent`, an IP address and a port for `/readyz`.

No name and no path is accepted there, because the scheduler connects to this address.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.kube.pod_manifest import annotations_of

STOPPING: Final = "stopping"
"""What an agent writes when it stops: no agent answers until the next one has written its own address."""

Address = tuple[str, int]

_SHAPE: Final = re.compile(r"(?:\[([0-9a-fA-F:.]{2,45})\]|([0-9.]{7,15})):([1-9][0-9]{0,4})")


def encode(ip: str, port: int) -> str:
    """Return the annotation's value."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def decode(value: str) -> Address:
    """Return the address and port of an annotation's value.

    Raises ValueError if an agent would not write it, or if a pod cannot have the address.
    """
    found = _SHAPE.fullmatch(value)
    if found is None:
        raise ValueError(f"annotation {names.NODE_AGENT}: {value[:60]!r} is not IP:port")
    ip, port = ipaddress.ip_address(found[1] or found[2]), int(found[3])
    if (found[1] is not None) != (ip.version == 6) or port > 65535:
        raise ValueError(f"annotation {names.NODE_AGENT}: {value!r} is not IP:port")
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        raise ValueError(f"annotation {names.NODE_AGENT}: {value!r} is not a pod's address")
    return str(ip), port


def of_node(node: Mapping[str, Any]) -> str:
    """Return the annotation's value on a Node object; empty if it has none."""
    value = annotations_of(node).get(names.NODE_AGENT)
    return value if isinstance(value, str) else ""
