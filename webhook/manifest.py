# SPDX-License-Identifier: Apache-2.0
"""A pod's manifest under review: as it is read, and beside it as it was sent, for patches and messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, Final, NamedTuple

from slicekeeper.errors import Violation
from slicekeeper.kube.objects import Container, Damage, Pod, examine
from slicekeeper.untyped_json import show
from slicekeeper.wire.json_patch import JsonPatch
from webhook.json_patch import apply

_KIND: Final = {dict: "a mapping", list: "a list", str: "a string", bool: "true or false", int: "a whole number"}
_EXAMPLE: Final = {dict: "{}", list: "[]", str: "text", bool: "false", int: "3600"}


class Slot(NamedTuple):
    """A container and its place in a manifest."""

    path: str
    """As people write it."""
    pointer: str
    """As a patch names it."""
    kind: str
    """`init`, `sidecar`, `app` or `ephemeral`."""
    container: Container
    sent: Mapping[str, Any]

    @property
    def name(self) -> str:
        """The container's name."""
        return self.container.name


class Manifest:
    """A pod's manifest, or that of a template. After `malformed` has found nothing, `sent` has the shape of `pod`."""

    def __init__(self, sent: Mapping[str, Any]) -> None:
        self.sent = sent
        self.pod, self._damaged = examine(sent, Pod)
        self.metadata, self.spec = self.pod.metadata, self.pod.spec

    @property
    def malformed(self) -> list[Violation]:
        """Every field whose type is wrong for a pod."""
        return [_wrong(damage) for damage in self._damaged]

    @cached_property
    def slots(self) -> list[Slot]:
        """All containers, in the manifest's order. Only if nothing is malformed."""
        return [
            Slot(
                each.path,
                f"/spec/{each.field}/{each.index}",
                each.kind,
                each.container,
                self.sent["spec"][each.field][each.index],
            )
            for each in self.spec.placed()
        ]

    def patched(self, patch: JsonPatch) -> Manifest:
        """Return the manifest with a patch applied."""
        return Manifest(apply(self.sent, patch)) if patch else self


def _wrong(damage: Damage) -> Violation:
    name = damage.path.rpartition(".")[2]
    return Violation(
        code="manifest-malformed",
        field=damage.path,
        value=show(damage.value),
        rule=f"it must be {_KIND[damage.wanted]}",
        example=f"{name}: {_EXAMPLE[damage.wanted]}",
    )
