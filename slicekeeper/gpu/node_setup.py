# SPDX-License-Identifier: Apache-2.0
"""Driver and CDI of a GPU node as its agent finds them: the annotation `slicekeeper.io/machine`, for `check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from slicekeeper import names, typed_json
from slicekeeper.kube.pod_manifest import annotations_of


class NodeSetup(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """The findings about one node.

    `driver` is the version of NVIDIA's driver; empty: `driver_trouble` says why it does not answer. `device_trouble`
    says why its GPUs cannot be given to containers. `cdi_read` tells whether a container runtime reads the folder of
    CDI specifications that seats are written to; None: not known yet.
    """

    driver: str = ""
    driver_trouble: str = ""
    device_trouble: str = ""
    cdi_read: bool | None = None


def encode(setup: NodeSetup) -> str:
    """Return the annotation's value."""
    return msgspec.json.encode(setup).decode()


def of_node(node: Mapping[str, Any]) -> NodeSetup | None:
    """Return the findings about a Node; None if its agent has written none that can be read."""
    value = annotations_of(node).get(names.NODE_MACHINE)
    try:
        return typed_json.decode(value, NodeSetup) if isinstance(value, str) else None
    except msgspec.MsgspecError:
        return None
