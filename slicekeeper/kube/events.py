# SPDX-License-Identifier: Apache-2.0
"""Events on pods and namespaces, so that `kubectl describe` says why something happened to them."""

from __future__ import annotations

import logging
import uuid
from contextlib import suppress

from slicekeeper.clock import Clock
from slicekeeper.errors import Conflict, NotFound, ServiceError
from slicekeeper.kube.client import EVENTS, KubeClient, Object
from slicekeeper.units import format_instant, format_seconds

log = logging.getLogger(__name__)


def tell_namespace(
    client: KubeClient, clock: Clock, namespace: str, uid: str, *, name: str, kind: str, reason: str, action: str,
    note: str, reporter: str,
) -> None:  # fmt: skip
    """Write one event on a namespace, once for its `name`: one that is there already is left as it is.

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
    about = {
        "apiVersion": "v1", "kind": "Pod", "namespace": metadata["namespace"], "name": metadata["name"],
        "uid": metadata.get("uid", ""),
    }  # fmt: skip
    name = f"{metadata['name'][:200]}.{uuid.uuid4().hex[:16]}"
    event = _event(clock, name, about, kind=kind, reason=reason, action=action, note=note, reporter=reporter)
    try:
        client.create(EVENTS, event, metadata["namespace"])
    except ServiceError as error:
        log.info("event %s on %s/%s not written: %s", reason, metadata["namespace"], metadata["name"], error)


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
