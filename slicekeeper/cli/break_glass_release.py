# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper check --break-glass`: release pods that wait for a broken timekeeper, and record what they owe.

A pod is recorded first, and its finalizer is removed only if it has not changed since: so each released pod is recorded
in its last state, even if this command is killed in between. Only pods are released whose record is final: pods that
have ended, that were never bound, or for which kubelet has had enough time to report how they ended.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

import click

from slicekeeper.errors import Conflict, NotFound, ServiceError
from slicekeeper.kube import break_glass_record
from slicekeeper.kube.client import CONFIG_MAPS, JSON_PATCH, NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.kube.pod import (
    KUBELET_MS,
    deletion_due_at,
    full_name,
    has_ended,
    has_finalizer,
    is_bound,
    without_finalizer,
)
from slicekeeper.units import Instant, format_instant

_AGAIN: Final = "slicekeeper check --break-glass"
_AT_ONCE: Final = 8


def release_held(client: KubeClient, namespace: str, now: Instant) -> Iterator[tuple[str, str]]:
    """Release all pods that only our finalizer holds; yield those that stay, each with a remedy.

    What they owe is recorded in `namespace` first: if that fails, they stay.
    """
    held = [pod for pod in client.list(PODS)[0] if _is_held(pod)]
    due = [pod for pod in held if _says_no_more(pod, now)]
    uids = {one["metadata"]["name"]: one["metadata"]["uid"] for one in client.list(NAMESPACES)[0]}
    nodes = {one["metadata"]["name"]: one for one in client.list(NODES)[0]}
    gone = 0
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for config_map, pods in break_glass_record.records(due, uids, nodes):
            with suppress(Conflict):  # the same record, from an interrupted run
                client.create(CONFIG_MAPS, config_map, namespace)
            for pod, left in zip(pods, pool.map(lambda pod: _release(client, pod), pods), strict=True):
                gone += not left
                if left:
                    yield f"pod {full_name(pod)} {left}, and stays", _AGAIN
    for pod in held:
        if not _says_no_more(pod, now):
            end = deletion_due_at(pod)
            until = "" if end is None else f", until {format_instant(Instant(end + KUBELET_MS))}"
            yield f"kubelet may still report how pod {full_name(pod)} ended{until}", f"{_AGAIN}, after that"
    click.echo(f"{gone} pods released; they are charged when the timekeeper runs again", err=True)


def _is_held(pod: Object) -> bool:
    return bool(pod["metadata"].get("deletionTimestamp")) and has_finalizer(pod)


def _says_no_more(pod: Object, now: Instant) -> bool:
    """Whether kubelet will not report any more how a deleted pod ended."""
    due = deletion_due_at(pod)
    return has_ended(pod) or not is_bound(pod) or (due is not None and now > due + KUBELET_MS)


def _release(client: KubeClient, pod: Object) -> str:
    """Remove our finalizer from a pod in its recorded state; return why that failed, empty if it is removed."""
    metadata = pod["metadata"]
    unchanged = {"op": "test", "path": "/metadata/resourceVersion", "value": metadata["resourceVersion"]}
    patch = [unchanged, *without_finalizer(pod)]
    try:
        client.patch(PODS, metadata["name"], patch, metadata["namespace"], content_type=JSON_PATCH)
    except NotFound:
        return ""
    except ServiceError as error:
        return "changed meanwhile" if error.status in (409, 422) else f"was not released ({error})"
    return ""
