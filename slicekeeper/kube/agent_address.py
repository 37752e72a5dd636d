# SPDX-License-Identifier: Apache-2.0
"""Where a node's agent tells whether it is ready: the annotation `slicekeeper.io/agent`, an IP address and a port.

Nothing else is taken from it, no name and no path: the scheduler connects to the address given there.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names

STOPPING: Final = "stopping"
"""What an agent writes instead when it ends: no agent answers until the next one has written its own address."""

Address = tuple[str, int]

_SHAPE: Final = re.compile(r"(?:\[([0-9a-fA-F:.]{2,45})\]|([0-9.]{7,15})):([1-9][0-9]{0,4})")


def encode(ip: str, port: int) -> str:
    """Return the annotation's value."""
    return f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}"


def decode(value: str) -> Address:
    """Return the address and port of an annotation's value.

    Raises ValueError if it is not what an agent writes, or no address that a pod may have.
    """
    found = _SHAPE.fullmatch(value)
    if found is None:
        raise ValueError(f"annotation {names.NODE_AGENT}: {value[:60]!r} is no IP:port")
    ip, port = ipaddress.ip_address(found[1] or found[2]), int(found[3])
    if (found[1] is not None) != (ip.version == 6) or port > 65535:
        raise ValueError(f"annotation {names.NODE_AGENT}: {value!r} is no IP:port")
    if ip.is_link_local or ip.is_multicast or ip.is_unspecified:
        raise ValueError(f"annotation {names.NODE_AGENT}: {value!r} is no pod's address")
    return str(ip), port


def of_node(node: Mapping[str, Any]) -> str:
    """Return the annotation's value of a Node object, empty if it has none."""
    value = (node.get("metadata", {}).get("annotations") or {}).get(names.NODE_AGENT)
    return value if isinstance(value, str) else ""
