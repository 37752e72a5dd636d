# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper check`: what an installation lacks, what uses GPUs unmetered, and finalizers that no one will remove.

Writes nothing unless an option asks for it: `--adopt` has older pods charged from now on, `--break-glass` releases
pods that a broken timekeeper holds, `--repair` removes what an uninstalled Slicekeeper left behind.
"""

from __future__ import annotations

import itertools
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

import click
import msgspec

from slicekeeper import clock, names
from slicekeeper.cli import break_glass_release
from slicekeeper.cli.check import (
    clocks,
    installed,
    leftovers,
    machines,
    other_plugins,
    reachability,
    readiness,
    remedies,
    rights,
)
from slicekeeper.cli.check.leftovers import name_of
from slicekeeper.cli.connection import cluster, cluster_options
from slicekeeper.cli.main import EXIT_FAILED, Context
from slicekeeper.cli.output import output_option, show, table
from slicekeeper.config.policy_file import read_book
from slicekeeper.config.policy_objects import apply_policies, read
from slicekeeper.config.settings import Resources, Settings
from slicekeeper.errors import Conflict, NotFound, RequestRefused, SettingsError
from slicekeeper.gpu.parse import parse_pod
from slicekeeper.gpu.pod_manifest import asks_for
from slicekeeper.kube import break_glass_record, node_lease
from slicekeeper.kube.client import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    LEASES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    KubeClient,
    Object,
    Resource,
)
from slicekeeper.kube.pod import has_ended
from slicekeeper.kube.policy_watch import GPU_POLICIES
from slicekeeper.units import format_instant
from slicekeeper.untyped import as_map

_ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
_CONFIGURATIONS: Final = tuple(
    Resource(_ADMISSION, plural, namespaced=False)
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
)
_GUARDS: Final = tuple(
    Resource(_ADMISSION, plural, namespaced=False)
    for plural in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
)
_API_SERVICES: Final = Resource("/apis/apiregistration.k8s.io/v1", "apiservices", namespaced=False)
_GUARD_NAMES: Final = (
    "slicekeeper-pod-metadata",
    "slicekeeper-bindings",
    "slicekeeper-timekeeper",
    "slicekeeper-nodes",
    "slicekeeper-scheduler",
    "slicekeeper-other-namespaces",
    "slicekeeper-certificates",
    "slicekeeper-records",
)
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_STORAGE_CLASSES: Final = Resource("/apis/storage.k8s.io/v1", "storageclasses", namespaced=False)
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_FORMER: Final = tuple(
    (Resource(_RBAC, plural, namespaced=False), name)
    for plural, name in (
        ("clusterrolebindings", "slicekeeper-kube-scheduler"),
        ("clusterrolebindings", "slicekeeper-certificate-authority"),
        ("clusterroles", "slicekeeper-certificate-authority"),
    )
)
"""Objects of earlier manifests that `kubectl apply` of the current ones does not remove."""

_ON_NODES: Final = ("nodeagent", "arbiter")
_PARTS: Final = ("certificates", "timekeeper", "webhook", "scheduler")
_BY_COMPONENTS: Final = ("objects", "sharepods")
"""Deployments that not every installation has."""
_OURS: Final = "app.kubernetes.io/part-of=slicekeeper"


@dataclass(frozen=True)
class Finding:
    """One finding."""

    problem: str
    remedy: remedies.Remedy | str


@click.command()
@click.option(
    "-n", "--namespace", default="slicekeeper-system", show_default=True, help="Namespace of the installation."
)
@click.option(
    "--repair", is_flag=True, help="Remove what our parts would otherwise remove: the last step of uninstalling."
)
@click.option("--adopt", is_flag=True, help="Charge pods that use GPUs unmetered from now on.")
@click.option(
    "--break-glass",
    "open_glass",
    is_flag=True,
    help="If the timekeeper is broken: release deleted pods that wait for it, and record them to be charged later.",
)
@cluster_options
@output_option()
def check(context: Context, namespace: str, repair: bool, adopt: bool, open_glass: bool, output: str) -> None:
    """Name what is missing, and what uses GPUs unmetered. Exit code 1: something was found.

    Uses the same cluster as kubectl, unless the settings name an API server.
    """
    settings = context.loaded.settings
    client = cluster(context)
    # In any namespace: an installation in another one still needs what is removed below.
    homes = _homes(client)
    left = [] if homes else leftovers.left_behind(client, settings)
    if adopt and not homes:
        raise SettingsError("--adopt: no timekeeper is installed that would charge the pods and release them")
    workloads = _workloads(client, namespace)
    own, differing = installed.settings_of(client, namespace, workloads, settings, context.loaded.origin)
    policy = msgspec.structs.replace(settings.policy, exempt_namespaces=own.policy.exempt_namespaces)
    settings = msgspec.structs.replace(settings, resources=own.resources, policy=policy)
    if open_glass:
        now = clock.from_settings(settings.clock).now_ms()
        findings = [Finding(*left) for left in break_glass_release.release_held(client, namespace, now)]
    elif repair:
        findings = _repaired(client, settings, left, homes)
    elif adopt:
        findings = list(_adopt(client, settings))
    else:
        findings = [Finding(*difference) for difference in differing]
        findings += _missing(client, own, namespace, homes, workloads)
        findings += _findings(_unmetered(client, settings), settings)
        findings += _uncharged(client, namespace)
        findings += [Finding(*thing.finding) for thing in left]
    upgrade = remedies.upgrade_of(workloads.values(), namespace)
    rows = [(finding.problem, remedies.text_of(finding.remedy, upgrade)) for finding in findings]
    show(
        [{"problem": problem, "remedy": remedy} for problem, remedy in rows],
        output,
        lambda: table(("PROBLEM", "REMEDY"), rows) if rows else "nothing is missing, nothing is unmetered",
    )
    if findings:
        sys.exit(EXIT_FAILED)


def _repaired(
    client: KubeClient, settings: Settings, left: list[leftovers.LeftBehind], homes: list[str]
) -> list[Finding]:
    """Remove what an uninstallation has left; return what could not be removed, and what is still unmetered."""
    failed = [thing for thing in left if not thing.strip()]
    click.echo(f"{len(left) - len(failed)} things removed", err=True)
    findings = [Finding(*thing.finding) for thing in failed]
    if homes:
        return [*findings, *_findings(_unmetered(client, settings), settings)]
    return [*findings, *itertools.starmap(Finding, leftovers.stranded(client, settings))]


def _homes(client: KubeClient) -> list[str]:
    """Return the namespaces that have a timekeeper of ours."""
    found, _ = client.list(DEPLOYMENTS, label_selector=_OURS)
    return [one["metadata"]["namespace"] for one in found if one["metadata"]["name"] == "timekeeper"]


def _uncharged(client: KubeClient, namespace: str) -> Iterator[Finding]:
    """Yield the records of released pods that are not charged yet."""
    try:
        records, _ = client.list(CONFIG_MAPS, namespace=namespace, label_selector=f"{break_glass_record.LABEL}=true")
    except NotFound:
        records = []
    for found in records:
        metadata = found["metadata"]
        pods = (metadata.get("annotations") or {}).get(break_glass_record.LABEL, "some")
        yield Finding(
            f"{pods} pods were released by --break-glass and are not charged yet (configmap {metadata['name']})",
            f"the timekeeper does that when it starts: kubectl logs -n {namespace} deployment/timekeeper",
        )


def _workloads(client: KubeClient, namespace: str) -> dict[str, Object | None]:
    """Return our Deployments and DaemonSets by their names; None for one that is missing."""
    found = {f"deployment {part}": client.find(DEPLOYMENTS, part, namespace) for part in _PARTS}
    return found | {f"daemonset {part}": client.find(DAEMON_SETS, part, namespace) for part in _ON_NODES}


def _missing(
    client: KubeClient, settings: Settings, namespace: str, homes: list[str], workloads: dict[str, Object | None]
) -> Iterator[Finding]:
    """Yield what the installation lacks, or has differently from what the settings say."""
    if homes and namespace not in homes:
        yield Finding(f"namespace {namespace} has no timekeeper", f"slicekeeper check -n {homes[0]}, which has one")
        return
    there = any(workloads.values())
    nodes, _ = client.list(NODES)
    yield from itertools.starmap(Finding, _cluster(client, settings, nodes, workloads, installed=there))
    if not there:
        yield Finding(
            f"nothing is installed in namespace {namespace}",
            f"helm install slicekeeper manifests/chart -n {namespace} --create-namespace "
            "--set images.registry=REGISTRY; docs/install.md",
        )
        return
    shards = [f"scheduler-{shard}" for shard in settings.scheduler.shards]
    workloads = workloads | {f"deployment {part}": client.find(DEPLOYMENTS, part, namespace) for part in shards}
    operators = {f"deployment {part}": client.find(DEPLOYMENTS, part, namespace) for part in _BY_COMPONENTS}
    for name, found in (*workloads.items(), *(one for one in operators.items() if one[1])):
        yield from itertools.starmap(Finding, readiness.not_ready(client, name, found, namespace))
    yield from _priority_classes(client, settings)
    yield from _admission(client, namespace)
    webhooks = {kind.plural: found for kind in _CONFIGURATIONS if (found := client.find(kind, "slicekeeper"))}
    guards = {name: guard for name in _GUARD_NAMES if (guard := client.find(_GUARDS[0], name))}
    running = {name: workload for name, workload in workloads.items() if workload is not None}
    for difference in installed.differences(client, namespace, settings, running, webhooks, guards):
        yield Finding(*difference)
    policy = installed.mounted(client, namespace, running.values(), "slicekeeper-policy", "policy.yaml")
    yield from itertools.starmap(Finding, rights.lacking(client, namespace, settings, policy or ""))
    # One that is not ready is reported already.
    if all(as_map(as_map(found).get("status")).get("readyReplicas") for found in _servers(workloads)):
        yield from itertools.starmap(Finding, reachability.unreached(client, namespace, settings.resources))
    yield from _former_rights(client)
    for overlap in other_plugins.overlaps(nodes, settings.resources):
        yield Finding(*overlap)


def _priority_classes(client: KubeClient, settings: Settings) -> Iterator[Finding]:
    """Yield the PriorityClasses that are missing or differ."""
    for known in (settings.classes.in_budget, settings.classes.over_budget):
        made = client.find(PRIORITY_CLASSES, known.name)
        if made is None:
            yield Finding(f"PriorityClass {known.name} is missing", remedies.APPLY)
        else:
            yield from (Finding(*difference) for difference in installed.class_differences(made, known))


def _former_rights(client: KubeClient) -> Iterator[Finding]:
    """Yield the roles of older releases, which `kubectl apply` does not delete."""
    for resource, name in _FORMER:
        if client.find(resource, name) is not None:
            kind = resource.plural.removesuffix("s")
            yield Finding(
                f"{kind} {name} is left from an older release, and gives more rights than needed",
                f"kubectl delete {kind} {name}",
            )


def _servers(workloads: dict[str, Object | None]) -> Iterator[Object | None]:
    """Return the workloads that the API server calls; None for one that is missing."""
    return (workloads[f"deployment {part}"] for part in ("webhook", "timekeeper"))


def _cluster(
    client: KubeClient, settings: Settings, nodes: list[Object], workloads: dict[str, Object | None], *, installed: bool
) -> Iterator[tuple[str, remedies.Remedy | str]]:
    """Yield what is missing in the cluster itself, before or after the installation."""
    server = client.server_version()
    if (machines.version(server) or machines.OLDEST_KUBERNETES) < machines.OLDEST_KUBERNETES:
        yield f"the API server is {server}: it must be v1.30 or newer", "upgrade the cluster first"
    agents = machines.runtime_class_of(workloads["daemonset nodeagent"])
    yield from machines.wanting(nodes, settings.node_agent.cdi_dir, agents)
    yield from clocks.wrong(client.list(LEASES, namespace=node_lease.NAMESPACE)[0])
    if not installed:
        classes, _ = client.list(_STORAGE_CLASSES)
        if not any(as_map(one["metadata"].get("annotations")).get(_DEFAULT_CLASS) == "true" for one in classes):
            yield (
                "no StorageClass is the default: the timekeeper's volume needs one",
                f"kubectl annotate storageclass NAME {_DEFAULT_CLASS}=true; or use PostgreSQL: docs/install.md",
            )


def _admission(client: KubeClient, namespace: str) -> Iterator[Finding]:
    look = f"kubectl logs -n {namespace} deployment/certificates"
    for resource in _CONFIGURATIONS:
        hooks = (client.find(resource, "slicekeeper") or {}).get("webhooks") or []
        if not hooks:
            yield Finding(f"{resource.plural} slicekeeper is missing", remedies.APPLY)
        elif not all((hook.get("clientConfig") or {}).get("caBundle") for hook in hooks):
            yield Finding(f"{resource.plural} slicekeeper trusts no CA", look)
    if client.find(CONFIG_MAPS, names.CA_CONFIG_MAP, namespace) is None:
        yield Finding(f"configmap {names.CA_CONFIG_MAP} is missing: sidecars cannot start", look)
    yield from _api(client.find(_API_SERVICES, names.API_SERVICE))
    for guard in _GUARD_NAMES:
        policy, binding = (client.find(resource, guard) for resource in _GUARDS)
        denies = "Deny" in ((binding or {}).get("spec") or {}).get("validationActions", [])
        if policy is None or not denies:
            what = "is missing" if policy is None or binding is None else "denies nothing"
            yield Finding(f"guard {guard} {what}: editors can change what pods are charged for", remedies.APPLY)


def _api(service: Object | None) -> Iterator[Finding]:
    what = f"apiservice {names.API_SERVICE}"
    if service is None:
        yield Finding(f"{what} is missing: the API server does not offer the timekeeper's API", remedies.APPLY)
        return
    for condition in (service.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Available" and condition.get("status") != "True":
            why = condition.get("message") or condition.get("reason")
            yield Finding(
                f"{what} is not available, so no namespace in the cluster can be deleted: {why}",
                f"kubectl get apiservice {names.API_SERVICE} -o yaml; docs/troubleshooting.md",
            )


def _unmetered(client: KubeClient, settings: Settings) -> Iterator[Object]:
    """Yield running pods that use GPUs unmetered: created before the installation, or while the webhook was off."""
    try:
        policies, _ = client.list(GPU_POLICIES)
    except NotFound:  # the component `objects` is not installed
        policies = []
    book, resources = apply_policies(read_book(settings.policy), map(read, policies)).book, settings.resources
    for pod in client.list(PODS)[0]:
        metadata = pod["metadata"]
        managed = (metadata.get("labels") or {}).get(names.MANAGED_LABEL) == names.MANAGED_VALUE
        policy = book.of(metadata["namespace"])
        asked = (resources.core, resources.memory, *(() if policy.nvidia_gpu == "ignored" else resources.devices))
        if not managed and not has_ended(pod) and policy.mode != "off" and asks_for(pod, asked):
            yield pod


def _findings(pods: Iterable[Object], settings: Settings) -> Iterator[Finding]:
    for pod in pods:
        reason = _not_adoptable(pod, settings.resources)
        again = "create it again, so that it is admitted"
        yield Finding(
            f"pod {name_of(pod)} uses GPUs unmetered{f', and cannot be charged: {reason}' if reason else ''}",
            again if reason else f"slicekeeper check --adopt charges it from now on; or {again}",
        )


def _not_adoptable(pod: Object, resources: Resources) -> str:
    """Return why the pod cannot be charged; empty if it can."""
    if pod["metadata"].get("deletionTimestamp"):
        return "it is being deleted"
    try:
        parse_pod(pod, resources)
    except RequestRefused as error:
        return str(error)
    return ""


def _adopt(client: KubeClient, settings: Settings) -> Iterator[Finding]:
    """Write the marks of an admitted pod to old ones, so that the timekeeper's watch sees them; yield the rest.

    The guards allow this only to users who may override them by RBAC: administrators.
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
            yield Finding(
                f"pod {name_of(pod)} has changed in the meantime and was not adopted", "slicekeeper check --adopt"
            )
        else:
            click.echo(f"pod {name_of(pod)} is charged from now on", err=True)
