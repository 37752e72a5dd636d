# SPDX-License-Identifier: Apache-2.0
"""Write the statuses of objects: when it is worth it, and so that one that is refused does not delay the others."""

from __future__ import annotations

import logging
from collections.abc import Collection
from typing import Final

from slicekeeper.errors import ServiceError, Unavailable
from slicekeeper.kube.client import KubeClient, Object, Resource
from slicekeeper.units import Instant, format_seconds, parse_instant
from slicekeeper.untyped_json import as_map

log = logging.getLogger(__name__)

FIGURES_MS: Final = 30_000
"""Minimum interval between two writes of figures alone: each write wakes every watcher of the object."""


def worth_writing(obj: Object, new: Object, figures: Collection[str], now: Instant) -> Object | None:
    """Return a new status with its time, as a merge patch; None if the current one may stay.

    `figures` are the fields that change all the time.
    """
    old = as_map(obj.get("status"))
    changed = {key for key, value in new.items() if old.get(key) != value}
    # A clock that was ahead may have written last: its `asOf` must not keep the figures until then.
    recent = 0 <= now - _written_at(obj) < FIGURES_MS
    if not changed or (recent and changed <= set(figures)):
        return None
    return {**new, "asOf": format_seconds(now)}


def write_status(client: KubeClient, resource: Resource, obj: Object, status: Object) -> None:
    """Write a status, given as a merge patch, if the object is still the one that was read.

    Raises Unavailable if the API server does not answer.
    """
    metadata = obj["metadata"]
    namespace = metadata.get("namespace", "")
    body = {"metadata": {"resourceVersion": metadata["resourceVersion"]}, "status": status}
    try:
        client.patch(resource, metadata["name"], body, namespace, subresource="status")
    except Unavailable:
        raise
    except ServiceError as error:
        # It has changed since, or is gone, or another's policy refuses it: no other object waits for this one.
        log.info("%s %s/%s: status not written: %s", resource.plural, namespace, metadata["name"], error)


def _written_at(obj: Object) -> Instant:
    """Return when an object's status was written, from its `asOf`; the epoch if it has none."""
    try:
        return parse_instant(str(as_map(obj.get("status")).get("asOf")))
    except ValueError:
        return Instant(0)
