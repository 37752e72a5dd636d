# SPDX-License-Identifier: Apache-2.0
"""Findings of node agents about their machines: the annotation `slicekeeper.io/machine`, for `slicekeeper check`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from slicekeeper import names, typed


class Machine(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One machine.

    `driver` is the version of NVIDIA's driver; empty: `driver_trouble` says why it does not answer. `device_trouble`
    says why its GPUs cannot be given to containers. `cdi_read` tells whether a container runtime reads the folder of
    CDI specifications that seats are written to; None: not known yet.
    """

    driver: str = ""
    driver_trouble: str = ""
    device_trouble: str = ""
    cdi_read: bool | None = None


def encode(machine: Machine) -> str:
    """Return the annotation's value."""
    return msgspec.json.encode(machine).decode()


def of_node(node: Mapping[str, Any]) -> Machine | None:
    """Return the findings of a Node's agent; None if there are none that can be read."""
    value = (node.get("metadata", {}).get("annotations") or {}).get(names.NODE_MACHINE)
    try:
        return typed.decode(value, Machine) if isinstance(value, str) else None
    except msgspec.MsgspecError:
        return None
