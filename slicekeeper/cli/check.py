# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper check`: what an installation lacks, what uses GPUs unmetered, and finalizers nobody will remove.

Writes nothing unless it is told to: `--adopt` has pods charged that were there before, `--repair` cleans up behind us.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from typing import Any, Final

import click

from slicekeeper import clock, inventory, names
from slicekeeper.cli.main import EXIT_FAILED, Context
from slicekeeper.cli.output import output_option, show, table
from slicekeeper.errors import Conflict, NotFound, RequestRefused
from slicekeeper.kube.client import (
    DEPLOYMENTS,
    JSON_PATCH,
    MERGE_PATCH,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    KubeClient,
    Object,
    Resource,
)
from slicekeeper.namespace_policy import read_book
from slicekeeper.request import asks_for, parse_pod
from slicekeeper.settings import Resources, Settings
from slicekeeper.units import format_instant

_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_CONFIGURATIONS: Final = tuple(
    Resource(_ADMISSION, plural, namespaced=False)
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
)
_GUARDS: Final = Resource(_ADMISSION, "validatingadmissionpolicybindings", namespaced=False)
_GUARD_NAMES: Final = (
    "slicekeeper-pod-metadata",
    "slicekeeper-bindings",
    "slicekeeper-timekeeper",
    "slicekeeper-nodes",
)
_INSTALL: Final = "kubectl apply -k manifests/overlays/default"
_PARTS: Final = ("certificates", "timekeeper", "webhook", "scheduler")


@dataclass(frozen=True)
class Finding:
    """One thing that is not as it should be."""

    problem: str
    remedy: str


@click.command()
@click.option("-n", "--namespace", default="slicekeeper-system", show_default=True, help="Where it is installed.")
@click.option("--repair", is_flag=True, help="Take away what nobody will remove: the last step of uninstalling.")
@click.option("--adopt", is_flag=True, help="Have pods that use GPUs unmetered charged from now on.")
@output_option()
@click.pass_obj
def check(context: Context, namespace: str, repair: bool, adopt: bool, output: str) -> None:
    """Name what is missing, and what uses GPUs unmetered. Exit code 1: something was found.

    Speaks to the API server of the settings; with `kubectl proxy` that is kubernetes.server http://127.0.0.1:8001.
    """
    settings = context.loaded.settings
    client = KubeClient(settings.kubernetes)
    left = (
        _left_behind(client, settings.resources) if _get(client, DEPLOYMENTS, "timekeeper", namespace) is None else []
    )
    if repair:
        for thing in left:
            thing.strip()
        click.echo(f"{len(left)} things taken away", err=True)
        findings = list(_findings(_unmetered(client, settings), settings))
    elif adopt:
        findings = list(_adopt(client, settings))
    else:
        findings = [*_missing(client, settings, namespace), *_findings(_unmetered(client, settings), settings)]
        findings += [
            Finding(f"{thing.what}, and nobody will remove it", "slicekeeper check --repair") for thing in left
        ]
    rows = [(finding.problem, finding.remedy) for finding in findings]
    show(
        [asdict(finding) for finding in findings],
        output,
        lambda: table(("PROBLEM", "REMEDY"), rows) if rows else "nothing is missing, nothing is unmetered",
    )
    if findings:
        sys.exit(EXIT_FAILED)


def _missing(client: KubeClient, settings: Settings, namespace: str) -> Iterator[Finding]:
    for part in _PARTS:
        found = _get(client, DEPLOYMENTS, part, namespace)
        if found is not None and not (found.get("status") or {}).get("readyReplicas"):
            yield Finding(f"deployment {part} has no ready pod", f"kubectl logs -n {namespace} deployment/{part}")
        elif found is None:
            yield Finding(f"deployment {part} is missing", _INSTALL)
    for known in (settings.classes.in_budget, settings.classes.over_budget):
        if _get(client, PRIORITY_CLASSES, known.name) is None:
            yield Finding(f"PriorityClass {known.name} is missing", _INSTALL)
    yield from _admission(client, namespace)
    nodes, _ = client.list(NODES)
    if not any(inventory.of_node(node) for node in nodes):
        yield Finding("no node shows GPUs", "label GPU nodes slicekeeper.io/gpus=true and look at the node agent's log")


def _admission(client: KubeClient, namespace: str) -> Iterator[Finding]:
    for resource in _CONFIGURATIONS:
        hooks = (_get(client, resource, "slicekeeper") or {}).get("webhooks") or []
        if not hooks:
            yield Finding(f"{resource.plural} slicekeeper is missing", _INSTALL)
        elif not all((hook.get("clientConfig") or {}).get("caBundle") for hook in hooks):
            look = f"kubectl logs -n {namespace} deployment/certificates"
            yield Finding(f"{resource.plural} slicekeeper trusts no CA", look)
    for guard in _GUARD_NAMES:
        if _get(client, _GUARDS, guard) is None:
            yield Finding(f"guard {guard} is missing: editors can change what pods are charged for", _INSTALL)


def _unmetered(client: KubeClient, settings: Settings) -> Iterator[Object]:
    """Yield running pods that ask for GPUs past us: made before the installation, or while the webhook was off."""
    book, resources = read_book(settings.policy), settings.resources
    for pod in client.list(PODS)[0]:
        metadata = pod["metadata"]
        managed = (metadata.get("labels") or {}).get(names.MANAGED_LABEL) == names.MANAGED_VALUE
        ended = (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")
        policy = book.of(metadata["namespace"])
        asked = (resources.core, resources.memory, *(() if policy.nvidia_gpu == "ignored" else (resources.device,)))
        if not managed and not ended and policy.mode != "off" and asks_for(pod, asked):
            yield pod


def _findings(pods: Iterable[Object], settings: Settings) -> Iterator[Finding]:
    for pod in pods:
        reason = _not_adoptable(pod, settings.resources)
        anew = "create it anew, so that it is admitted"
        yield Finding(
            f"pod {_name(pod)} uses GPUs unmetered{f', and cannot be charged: {reason}' if reason else ''}",
            anew if reason else f"slicekeeper check --adopt charges it from now on; or {anew}",
        )


def _not_adoptable(pod: Object, resources: Resources) -> str:
    """Return why what the pod owes cannot be told or kept, empty where it can."""
    if pod["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    try:
        parse_pod(pod, resources)
    except RequestRefused as error:
        return str(error)
    return ""


def _adopt(client: KubeClient, settings: Settings) -> Iterator[Finding]:
    """Put the marks of an admitted pod on old ones, so that the timekeeper's watch sees them; yield what is left.

    The guards leave that to whom RBAC lets override them: administrators.
    """
    now = format_instant(clock.from_settings(settings.clock).now_ms())
    for pod in _unmetered(client, settings):
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
            yield Finding(f"pod {_name(pod)} changed meanwhile and was not adopted", "slicekeeper check --adopt")
        else:
            click.echo(f"pod {_name(pod)} is charged from now on", err=True)


def _left_behind(client: KubeClient, resources: Resources) -> list[_Left]:
    """Return what only our own parts would remove, in a cluster that no longer has them."""
    pods, _ = client.list(PODS, label_selector=f"{names.MANAGED_LABEL}={names.MANAGED_VALUE}")
    found = []
    for pod in pods:
        metadata = pod["metadata"]
        if names.FINALIZER in (metadata.get("finalizers") or []):
            path = f"/metadata/finalizers/{metadata['finalizers'].index(names.FINALIZER)}"
            patch = [{"op": "test", "path": path, "value": names.FINALIZER}, {"op": "remove", "path": path}]
            found.append(_Left(f"pod {_name(pod)} keeps our finalizer", client, PODS, pod, patch))
    gone = {resources.core: None, resources.memory: None}
    for node in client.list(NODES)[0]:
        if names.NODE_GPUS in (node["metadata"].get("annotations") or {}):
            merge = {
                "metadata": {"annotations": {names.NODE_GPUS: None}},
                "status": {"capacity": gone, "allocatable": gone},
            }
            found.append(_Left(f"node {node['metadata']['name']} shows GPUs", client, NODES, node, merge))
    return found


@dataclass(frozen=True)
class _Left:
    """Something left behind, and the patch that takes it away."""

    what: str
    client: KubeClient
    resource: Resource
    obj: Object
    patch: Any

    def strip(self) -> None:
        """Take it away."""
        metadata = self.obj["metadata"]
        kind = JSON_PATCH if isinstance(self.patch, list) else MERGE_PATCH
        part = "status" if self.resource == NODES else ""
        with contextlib.suppress(NotFound):  # somebody else was faster
            self.client.patch(
                self.resource, metadata["name"], self.patch, metadata.get("namespace", ""),
                content_type=kind, subresource=part,
            )  # fmt: skip


def _get(client: KubeClient, resource: Resource, name: str, namespace: str = "") -> Object | None:
    try:
        return client.get(resource, name, namespace)
    except NotFound:
        return None


def _name(pod: Object) -> str:
    return f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
