# SPDX-License-Identifier: Apache-2.0
"""Events on pods and namespaces, so that `kubectl describe` says why something happened to them."""

from __future__ import annotations

import hashlib
import logging
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Final, TypedDict, Unpack

from slicekeeper.clock import Clock
from slicekeeper.errors import Conflict, NotFound, ServiceError
from slicekeeper.kube.client import EVENTS, KubeClient, Object
from slicekeeper.units import format_micro_time, format_seconds

log = logging.getLogger(__name__)

_NOTE_BYTES: Final = 1024
"""The API server refuses an event with a longer message; it counts bytes."""


class EventText(TypedDict):
    """What an event says. `kind` is `Normal` or `Warning`, `reason` and `action` are CamelCase words."""

    kind: str
    reason: str
    action: str
    note: str
    reporter: str


def write_on_namespace(
    client: KubeClient, clock: Clock, namespace: str, uid: str, *, name: str, **text: Unpack[EventText]
) -> None:
    """Write one event on a namespace, once for its `name`: an existing one is not changed.

    Raises ServiceError if it could not be written.
    """
    about = {"apiVersion": "v1", "kind": "Namespace", "namespace": namespace, "name": namespace, "uid": uid}
    with suppress(Conflict, NotFound):  # it was written before; the namespace is gone
        client.create(EVENTS, _event(clock, name, about, text), namespace)


def write(client: KubeClient, clock: Clock, pod: Object, **text: Unpack[EventText]) -> None:
    """Write one event on a pod. An event that cannot be written is logged, never an error: it only informs."""
    event = _event(clock, _name(pod, uuid.uuid4().hex), _about(pod), text)
    with _logged(event):
        client.create(EVENTS, event, pod["metadata"]["namespace"])


def write_again(client: KubeClient, clock: Clock, pod: Object, *, times: int, **text: Unpack[EventText]) -> None:
    """Write an event that replaces the one with the same reason on a pod, as the `times`-th; otherwise as `write`."""
    metadata = pod["metadata"]
    key = hashlib.sha256(f"{metadata.get('uid', '')}/{text['reason']}".encode()).hexdigest()
    event = {**_event(clock, _name(pod, key), _about(pod), text), "count": times}
    changes = {field: event[field] for field in ("message", "count", "lastTimestamp")}
    with _logged(event):
        try:
            client.patch(EVENTS, event["metadata"]["name"], changes, metadata["namespace"])
        except NotFound:
            client.create(EVENTS, event, metadata["namespace"])


@contextmanager
def _logged(event: Object) -> Iterator[None]:
    """Log that an event could not be written, instead of an error."""
    try:
        yield
    except ServiceError as error:
        about = event["involvedObject"]
        log.info("event %s on %s/%s not written: %s", event["reason"], about["namespace"], about["name"], error)


def _name(pod: Object, distinction: str) -> str:
    """Return an event's name, of at most 253 characters: a pod's name may have as many by itself."""
    return f"{pod['metadata']['name'][:200]}.{distinction[:16]}"


def _about(pod: Object) -> dict[str, str]:
    metadata = pod["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "namespace": metadata["namespace"],
        "name": metadata["name"],
        "uid": metadata.get("uid", ""),
    }


def _event(clock: Clock, name: str, about: dict[str, str], text: EventText) -> Object:
    now = clock.now_ms()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": about["namespace"]},
        "involvedObject": about,
        "type": text["kind"],
        "reason": text["reason"],
        "action": text["action"],
        "message": text["note"].encode()[:_NOTE_BYTES].decode(errors="ignore"),
        # kubectl sorts by the older fields, other tools by `eventTime`: all of them are set.
        "eventTime": format_micro_time(now),
        "firstTimestamp": format_seconds(now),
        "lastTimestamp": format_seconds(now),
        "count": 1,
        "reportingComponent": text["reporter"],
        "reportingInstance": text["reporter"],
        "source": {"component": text["reporter"]},
    }
