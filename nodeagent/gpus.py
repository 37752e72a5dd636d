# SPDX-License-Identifier: Apache-2.0
"""Where the node's GPUs come from, and what a container needs to use one.

Fake GPUs are made up from a count and a model; a source that asks the driver has the same two methods.
"""

from __future__ import annotations

import uuid
from typing import Any, Final, Protocol

from slicekeeper.errors import SettingsError
from slicekeeper.inventory import Gpu

MODELS: Final[dict[str, int]] = {
    "Tesla-T4": 15360,
    "Tesla-V100-SXM2-32GB": 32768,
    "A10": 23040,
    "A100-SXM4-40GB": 40960,
    "A100-SXM4-80GB": 81920,
    "H100-SXM5-80GB": 81920,
    "H200": 143360,
}
"""Models that can be made up, with their memory in MiB."""

DEFAULT_MODEL: Final = "A100-SXM4-80GB"
MAX_FAKE_GPUS: Final = 64

_NAMESPACE: Final = uuid.UUID("6b0e9c1c-52a4-4a67-9f54-0d5a1c1d6d1e")
"""Makes a fake GPU's UUID the same at every start of the same node."""


class GpuSource(Protocol):
    """What the agent must know of a machine's GPUs."""

    def gpus(self) -> list[Gpu]:
        """Return the GPUs as they are now, in a stable order."""

    def edits(self, uuids: tuple[str, ...]) -> dict[str, Any]:
        """Return the CDI container edits (device nodes, mounts, hooks) that make these GPUs usable."""


class FakeGpus:
    """GPUs that exist by name only: containers get their seat, and no device."""

    def __init__(self, node: str, count: int, model: str = DEFAULT_MODEL) -> None:
        if not 1 <= count <= MAX_FAKE_GPUS:
            raise SettingsError(f"nodeAgent.fakeGpus is {count}: it must be 1 to {MAX_FAKE_GPUS}, for example 4")
        if model not in MODELS:
            raise SettingsError(f"nodeAgent.fakeGpus: unknown model {model!r}; known: {', '.join(MODELS)}")
        self._gpus = [Gpu(fake_uuid(node, index), model, MODELS[model]) for index in range(count)]

    def gpus(self) -> list[Gpu]:
        """Return all of them, always healthy."""
        return list(self._gpus)

    def edits(self, uuids: tuple[str, ...]) -> dict[str, Any]:  # noqa: ARG002 - there is no device to add
        """Return no edit: there is no device."""
        return {}


def fake_uuid(node: str, index: int) -> str:
    """Return the UUID of a node's fake GPU."""
    return f"GPU-{uuid.uuid5(_NAMESPACE, f'{node}/{index}')}"


def parse_fake(text: str, node: str) -> FakeGpus:
    """Return the source that `N` or `N:MODEL` describes.

    Raises SettingsError naming what is allowed.
    """
    count, _, model = text.partition(":")
    if not (count.isascii() and count.isdecimal() and len(count) <= 3):
        raise SettingsError(f"nodeAgent.fakeGpus is {text!r}: it must be N or N:MODEL, for example 4:{DEFAULT_MODEL}")
    return FakeGpus(node, int(count), model or DEFAULT_MODEL)
