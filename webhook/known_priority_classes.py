# SPDX-License-Identifier: Apache-2.0
"""PriorityClasses with their exact values: the cluster's own from a watch, or else those of the settings.

The API server refuses a class whose numbers are not exactly those it would write, so a class that an administrator
created with another value must be known before the first review.
"""

from __future__ import annotations

import logging
from typing import Any

from slicekeeper.config.settings import Classes, KubernetesSettings, PriorityClassSettings
from slicekeeper.errors import SettingsError
from slicekeeper.kube.client import PRIORITY_CLASSES, KubeClient, Object
from slicekeeper.kube.watch import Watch

log = logging.getLogger(__name__)


class SettingsClasses:
    """The two classes of the settings and no others: outside a cluster, and until the watch has seen more."""

    def __init__(self, classes: Classes) -> None:
        self._known = {known.name: known for known in (classes.in_budget, classes.over_budget)}

    def get(self, name: str) -> PriorityClassSettings | None:
        """Return a class of the settings."""
        return self._known.get(name)

    def is_default(self, name: str) -> bool:  # noqa: ARG002 - the twin of the cluster's
        """Return False: which class is the cluster's default is not known."""
        return False


class ClusterClasses:
    """The cluster's classes, as its watch shows them; the settings' if it shows none of that name."""

    def __init__(self, fallback: SettingsClasses) -> None:
        self._fallback = fallback
        self._known: dict[str, PriorityClassSettings] = {}
        self._default = ""

    def get(self, name: str) -> PriorityClassSettings | None:
        """Return a class by its name."""
        return self._known.get(name) or self._fallback.get(name)

    def is_default(self, name: str) -> bool:
        """Whether pods that name no class get this one."""
        return bool(name) and name == self._default

    def on_list(self, objects: list[Object]) -> None:
        """Replace the whole state."""
        known = [_read(obj) for obj in objects]
        self._known = {c.name: c for c in known if c is not None}
        self._default = next((_name(obj) for obj in objects if obj.get("globalDefault") is True), "")

    def on_event(self, kind: str, obj: Object) -> None:
        """Apply one change."""
        name, known = _name(obj), dict(self._known)
        known.pop(name, None)
        read = _read(obj)
        if kind != "DELETED" and read is not None:
            known[name] = read
        self._known = known
        if kind != "DELETED" and obj.get("globalDefault") is True:
            self._default = name
        elif self._default == name:
            self._default = ""


def watch_classes(
    settings: KubernetesSettings, classes: Classes
) -> tuple[ClusterClasses | SettingsClasses, Watch | None]:
    """Return the classes and their watch, not started yet; without a cluster the settings' classes and None."""
    fallback = SettingsClasses(classes)
    try:
        client = KubeClient(settings)
    except SettingsError:
        if settings.server:
            raise
        log.info("no cluster to watch: priority classes are those of the settings")
        return fallback, None
    known = ClusterClasses(fallback)
    return known, Watch(client, PRIORITY_CLASSES, known)


def _name(obj: Object) -> str:
    metadata: dict[str, Any] = obj.get("metadata") or {}
    return str(metadata.get("name", ""))


def _read(obj: Object) -> PriorityClassSettings | None:
    name, value = _name(obj), obj.get("value", 0)
    policy = obj.get("preemptionPolicy", "PreemptLowerPriority")
    if not name or not isinstance(value, int) or policy not in ("PreemptLowerPriority", "Never"):
        return None
    return PriorityClassSettings(name=name, value=value, preemption_policy=policy)
