# SPDX-License-Identifier: Apache-2.0
"""Events on pods and namespaces, so that `kubectl describe` says why something happened to them."""

from __future__ import annotations

import hashlib
import logging
import uuid
from contextlib import suppress

from slicekeeper.clock import Clock
from slicekeeper.errors import Conflict, NotFound, ServiceError
from slicekeeper.kube.client import EVENTS, KubeClient, Object
from slicekeeper.units import format_instant, format_seconds

log = logging.getLogger(__name__)


def tell_namespace(
    client: KubeClient,
    clock: Clock,
    namespace: str,
    uid: str,
    *,
    name: str,
    kind: str,
    reason: str,
    action: str,
    note: str,
    reporter: str,
) -> None:
    """Write one event on a namespace, once for its `name`: an existing one is not changed.

    `kind`, `reason` and `action` are as for `tell`. Raises ServiceError if it could not be written.
    """
    about = {"apiVersion": "v1", "kind": "Namespace", "namespace": namespace, "name": namespace, "uid": uid}
    event = _event(clock, name, about, kind=kind, reason=reason, action=action, note=note, reporter=reporter)
    with suppress(Conflict, NotFound):  # it was written before; the namespace is gone
        client.create(EVENTS, event, namespace)


def tell(
    client: KubeClient,
    clock: Clock,
    pod: Object,
    *,
    kind: str,
    reason: str,
    action: str,
    note: str,
    reporter: str,
) -> None:
    """Write one event on a pod. An event that cannot be written is logged, never an error: it only informs.

    `kind` is `Normal` or `Warning`, `reason` and `action` CamelCase words.
    """
    metadata = pod["metadata"]
    name = f"{metadata['name'][:200]}.{uuid.uuid4().hex[:16]}"
    event = _event(clock, name, _about(pod), kind=kind, reason=reason, action=action, note=note, reporter=reporter)
    try:
        client.create(EVENTS, event, metadata["namespace"])
    except ServiceError as error:
        log.info("event %s on %s/%s not written: %s", reason, metadata["namespace"], metadata["name"], error)


def tell_again(
    client: KubeClient,
    clock: Clock,
    pod: Object,
    *,
    times: int,
    kind: str,
    reason: str,
    action: str,
    note: str,
    reporter: str,
) -> None:
    """Write an event on a pod that replaces the one with the same reason, with a count of `times`; else like `tell`."""
    metadata = pod["metadata"]
    key = hashlib.sha256(f"{metadata.get('uid', '')}/{reason}".encode()).hexdigest()[:16]
    event = _event(
        clock,
        f"{metadata['name'][:200]}.{key}",
        _about(pod),
        kind=kind,
        reason=reason,
        action=action,
        note=note,
        reporter=reporter,
    )
    event["count"] = times
    changes = {field: event[field] for field in ("message", "count", "lastTimestamp")}
    try:
        try:
            client.patch(EVENTS, event["metadata"]["name"], changes, metadata["namespace"])
        except NotFound:
            client.create(EVENTS, event, metadata["namespace"])
    except ServiceError as error:
        log.info("event %s on %s/%s not written: %s", reason, metadata["namespace"], metadata["name"], error)


def _about(pod: Object) -> dict[str, str]:
    metadata = pod["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
    }


def _event(
    clock: Clock, name: str, about: dict[str, str], *, kind: str, reason: str, action: str, note: str, reporter: str
) -> Object:
    now = clock.now_ms()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": about["namespace"]},
        "involvedObject": about,
        "type": kind,
        "reason": reason,
        "action": action,
        "message": note[:1024],
        "eventTime": format_instant(now)[:-1] + "000Z",
        "firstTimestamp": format_seconds(now),
        "lastTimestamp": format_seconds(now),
        "count": 1,
        "reportingComponent": reporter,
        "reportingInstance": reporter,
        "source": {"component": reporter},
    }
