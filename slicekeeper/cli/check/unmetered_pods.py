# SPDX-License-Identifier: Apache-2.0
"""Pods that use GPUs unmetered, for `slicekeeper check`: older than the installation, or made with the webhook off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import click
import msgspec

from slicekeeper import clock, names
from slicekeeper.cli.check.remedies import Finding
from slicekeeper.config.policy_file import read_book
from slicekeeper.config.policy_objects import apply_policies, read
from slicekeeper.config.settings import Resources, Settings
from slicekeeper.errors import Conflict, NotFound, RequestRefused
from slicekeeper.gpu.pod_request import parse_admitted, parse_pod
from slicekeeper.kube import objects
from slicekeeper.kube.client import PODS, KubeClient, Object
from slicekeeper.kube.pod import full_name, has_ended
from slicekeeper.kube.policy_watch import GPU_POLICIES
from slicekeeper.units import format_instant


def unmetered(client: KubeClient, settings: Settings) -> Iterator[Finding]:
    """Yield a finding for each."""
    return _findings(_pods(client, settings), settings)


def adopt(client: KubeClient, settings: Settings) -> Iterator[Finding]:
    """Write the marks of an admitted pod to old ones, so that the timekeeper's watch sees them; yield the rest.

    The guards allow this only to users who may override them by RBAC: administrators.
    """
    now = format_instant(clock.from_settings(settings.clock).now_ms())
    for pod in _pods(client, settings):
        if _not_adoptable(pod, settings.resources):
            yield from _findings([pod], settings)
            continue
        metadata = pod["metadata"]
        marks = {
            "resourceVersion": metadata["resourceVersion"],
            "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
            "annotations": {names.ADOPTED_AT: now},
            "finalizers": [*(metadata.get("finalizers") or []), names.FINALIZER],
        }
        try:
            client.patch(PODS, metadata["name"], {"metadata": marks}, metadata["namespace"])
        except (Conflict, NotFound):
            yield (f"pod {full_name(pod)} has changed in the meantime and was not adopted", "slicekeeper check --adopt")
        else:
            click.echo(f"pod {full_name(pod)} is charged from now on", err=True)


def _pods(client: KubeClient, settings: Settings) -> Iterator[Object]:
    """Yield the running ones."""
    try:
        policies, _ = client.list(GPU_POLICIES)
    except NotFound:  # the component `objects` is not installed
        policies = []
    book, resources = apply_policies(read_book(settings.policy), map(read, policies)).book, settings.resources
    for pod in client.list(PODS)[0]:
        metadata = pod["metadata"]
        managed = (metadata.get("labels") or {}).get(names.MANAGED_LABEL) == names.MANAGED_VALUE
        policy = book.of(metadata["namespace"])
        known = msgspec.structs.replace(resources, device=()) if policy.nvidia_gpu == "ignored" else resources
        if not managed and not has_ended(pod) and policy.mode != "off" and _asks_for_gpus(pod, known):
            yield pod


def _asks_for_gpus(pod: Object, resources: Resources) -> bool:
    """Whether a pod requests GPUs, or something that cannot be read; an amount of 0 is no request."""
    asking = objects.read(pod, objects.Pod)
    if not asking.spec.names_any((resources.core, resources.memory, *resources.devices)):
        return False
    request, refusal = parse_admitted(asking, resources)
    return request.holds_gpus or bool(refusal)


def _findings(pods: Iterable[Object], settings: Settings) -> Iterator[Finding]:
    for pod in pods:
        reason = _not_adoptable(pod, settings.resources)
        again = "create it again, so that it is admitted"
        yield (
            f"pod {full_name(pod)} uses GPUs unmetered{f', and cannot be charged: {reason}' if reason else ''}",
            again if reason else f"slicekeeper check --adopt charges it from now on; or {again}",
        )


def _not_adoptable(pod: Object, resources: Resources) -> str:
    """Return why the pod cannot be charged; empty if it can."""
    if pod["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    try:
        parse_pod(objects.read(pod, objects.Pod), resources)
    except RequestRefused as error:
        return str(error)
    return ""
