# SPDX-License-Identifier: Apache-2.0
"""PriorityClasses with their exact values: the cluster's own from a watch, or else those of the settings.

The API server refuses a class whose numbers are not exactly those it would write, so a class that an administrator
created with another value must be known before the first review.
"""

from __future__ import annotations

from typing import Any

from slicekeeper.config.settings import Classes, PriorityClassSettings
from slicekeeper.kube.client import Object


class PriorityClasses:
    """The cluster's classes, as a watch has shown them; those of the settings if it has shown none of that name."""

    def __init__(self, classes: Classes) -> None:
        self._of_settings = {known.name: known for known in (classes.in_budget, classes.over_budget)}
        self._of_cluster: dict[str, PriorityClassSettings] = {}
        self._default = ""

    def get(self, name: str) -> PriorityClassSettings | None:
        """Return a class with its exact value; None if it is not known."""
        return self._of_cluster.get(name) or self._of_settings.get(name)

    @property
    def default(self) -> PriorityClassSettings | None:
        """The class of pods that name none; None if the cluster has no such class."""
        return self._of_cluster.get(self._default)

    def is_default(self, name: str) -> bool:
        """Whether pods that name no class get this one."""
        return bool(name) and name == self._default

    def on_list(self, objects: list[Object]) -> None:
        """Replace the whole state."""
        known = [_read(obj) for obj in objects]
        self._of_cluster = {c.name: c for c in known if c is not None}
        self._default = next((_name(obj) for obj in objects if obj.get("globalDefault") is True), "")

    def on_event(self, kind: str, obj: Object) -> None:
        """Apply one change."""
        name, known = _name(obj), dict(self._of_cluster)
        known.pop(name, None)
        read = _read(obj)
        if kind != "DELETED" and read is not None:
            known[name] = read
        self._of_cluster = known
        if kind != "DELETED" and obj.get("globalDefault") is True:
            self._default = name
        elif self._default == name:
            self._default = ""


def _name(obj: Object) -> str:
    metadata: dict[str, Any] = obj.get("metadata") or {}
    return str(metadata.get("name", ""))


def _read(obj: Object) -> PriorityClassSettings | None:
    name, value = _name(obj), obj.get("value", 0)
    policy = obj.get("preemptionPolicy", "PreemptLowerPriority")
    if not name or not isinstance(value, int) or policy not in ("PreemptLowerPriority", "Never"):
        return None
    return PriorityClassSettings(name=name, value=value, preemption_policy=policy)
