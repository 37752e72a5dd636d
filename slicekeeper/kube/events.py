# SPDX-License-Identifier: Apache-2.0
"""Events on pods, so that `kubectl describe pod` says why something happened to it."""

from __future__ import annotations

import logging
import uuid

from slicekeeper.clock import Clock
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import EVENTS, KubeClient, Object
from slicekeeper.units import format_instant, format_seconds

log = logging.getLogger(__name__)


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
    now = clock.now_ms()
    event = {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {
            "name": f"{metadata['name'][:200]}.{uuid.uuid4().hex[:16]}",
            "namespace": metadata["namespace"],
        },
        "involvedObject": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata.get("uid", ""),
        },
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
    try:
        client.create(EVENTS, event, metadata["namespace"])
    except ServiceError as error:
        log.info("event %s on %s/%s not written: %s", reason, metadata["namespace"], metadata["name"], error)
