# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper check`: what an installation lacks, what uses GPUs unmetered, and finalizers that no one will remove.

Writes nothing unless an option asks for it: `--adopt` has older pods charged from now on, `--break-glass` releases
pods that a broken timekeeper holds, `--repair` removes what an uninstalled Slicekeeper left behind.
"""

from __future__ import annotations

import functools
import shutil
import sys
import textwrap
from collections.abc import Iterator
from typing import Final

import click
import msgspec

from slicekeeper import clock, names
from slicekeeper.cli import break_glass_release
from slicekeeper.cli.check import (
    clocks,
    gpu_nodes,
    installed,
    leftovers,
    other_plugins,
    reachability,
    readiness,
    remedies,
    rights,
    unmetered_pods,
    webhooks_and_guards,
)
from slicekeeper.cli.check.remedies import Finding
from slicekeeper.cli.connection import cluster, cluster_options
from slicekeeper.cli.main import EXIT_FAILED, Context
from slicekeeper.cli.output import output_option, show
from slicekeeper.config.settings import Settings
from slicekeeper.errors import NotFound, SettingsError
from slicekeeper.kube import break_glass_record, node_lease
from slicekeeper.kube.client import (
    CONFIG_MAPS,
    DAEMON_SETS,
    DEPLOYMENTS,
    LEASES,
    NODES,
    PRIORITY_CLASSES,
    KubeClient,
    Object,
    Resource,
)
from slicekeeper.untyped_json import as_map

_STORAGE_CLASSES: Final = Resource("/apis/storage.k8s.io/v1", "storageclasses", namespaced=False)
_DEFAULT_CLASS: Final = "storageclass.kubernetes.io/is-default-class"
_ON_NODES: Final = ("nodeagent", "arbiter")
_PARTS: Final = ("certificates", "timekeeper", "timekeeper-forwarder", "webhook", "scheduler")
_BY_COMPONENTS: Final = ("objects", "sharepods")
"""Deployments that not every installation has."""
_IN_LOCAL: Final = "nothing is unmetered; this is local mode, where nothing is installed that could be missing"
_OURS: Final = "app.kubernetes.io/part-of=slicekeeper"


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
    """Name what is missing, and what uses GPUs unmetered.

    Exit code 1: something was found. Uses the same cluster as kubectl, unless the settings name an API server.
    """
    if repair + adopt + open_glass > 1:
        raise click.UsageError("--repair, --adopt and --break-glass are for different troubles: give one of them")
    settings = context.loaded.settings
    client = cluster(context)
    if client.server_version() == names.LOCAL_VERSION:
        if repair or open_glass:
            raise SettingsError("--repair and --break-glass are for installations, and this is local mode")
        _show([*(unmetered_pods.adopt if adopt else unmetered_pods.unmetered)(client, settings)], output, "", _IN_LOCAL)
        return
    # In any namespace: an installation in another one still needs what is removed below.
    homes = _homes(client)
    left = [] if homes else leftovers.left_behind(client, settings)
    if adopt and not homes:
        raise SettingsError("--adopt: no timekeeper is installed that would charge the pods and release them")
    workloads = _workloads(client, namespace)
    own, differing = installed.settings_of(client, namespace, workloads, settings, context.loaded.origin)
    policy = msgspec.structs.replace(settings.policy, exempt_namespaces=own.policy.exempt_namespaces)
    settings = msgspec.structs.replace(settings, resources=own.resources, policy=policy)
    findings: list[Finding]
    if open_glass:
        now = clock.from_settings(settings.clock).now_ms()
        findings = [*break_glass_release.release_held(client, namespace, now)]
    elif repair:
        findings = _repaired(client, settings, left, homes)
    elif adopt:
        findings = [*unmetered_pods.adopt(client, settings)]
    else:
        findings = differing
        findings += _missing(client, own, namespace, homes, workloads)
        findings += unmetered_pods.unmetered(client, settings)
        findings += _uncharged(client, namespace)
        findings += [thing.finding for thing in left]
    upgrade = remedies.upgrade_of(workloads.values(), namespace)
    _show(findings, output, upgrade, "nothing is left" if repair else "nothing is missing, nothing is unmetered")


def _show(findings: list[Finding], output: str, upgrade: str, nothing: str) -> None:
    """Print the findings, or `nothing` if there are none, and exit with the code for them."""
    rows = [(problem, remedies.text_of(remedy, upgrade)) for problem, remedy in findings]
    show(
        [{"problem": problem, "remedy": remedy} for problem, remedy in rows],
        output,
        lambda: _listing(rows) if rows else nothing,
    )
    if findings:
        sys.exit(EXIT_FAILED)


def _listing(rows: list[tuple[str, str]]) -> str:
    """Return problems with their remedies as paragraphs, none wider than the terminal."""
    width = shutil.get_terminal_size().columns
    wrapped = functools.partial(textwrap.fill, width=width, break_long_words=False, break_on_hyphens=False)
    return "\n".join(
        wrapped(text, initial_indent=first, subsequent_indent="    ")
        for problem, remedy in rows
        for first, text in (("- ", problem), ("    remedy: ", remedy))
    )


def _repaired(
    client: KubeClient, settings: Settings, left: list[leftovers.LeftBehind], homes: list[str]
) -> list[Finding]:
    """Remove what an uninstallation has left; return what could not be removed, and what is still unmetered."""
    failed = [thing for thing in left if not thing.strip()]
    removed = len(left) - len(failed)
    click.echo(f"{removed} thing{'' if removed == 1 else 's'} removed", err=True)
    findings: list[Finding] = [thing.finding for thing in failed]
    if homes:
        return [*findings, *unmetered_pods.unmetered(client, settings)]
    return [*findings, *leftovers.stranded(client, settings)]


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
        yield (
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
        yield f"namespace {namespace} has no timekeeper", f"slicekeeper check -n {homes[0]}, which has one"
        return
    there = any(workloads.values())
    nodes, _ = client.list(NODES)
    yield from _cluster(client, settings, namespace, nodes, workloads, installed=there)
    if not there:
        yield (
            f"nothing is installed in namespace {namespace}",
            f"helm install slicekeeper manifests/chart -n {namespace} --create-namespace "
            "--set images.registry=REGISTRY; docs/install.md",
        )
        return
    shards = [f"scheduler-{shard}" for shard in settings.scheduler.shards]
    workloads = workloads | {f"deployment {part}": client.find(DEPLOYMENTS, part, namespace) for part in shards}
    operators = {f"deployment {part}": client.find(DEPLOYMENTS, part, namespace) for part in _BY_COMPONENTS}
    for name, found in (*workloads.items(), *(one for one in operators.items() if one[1])):
        yield from readiness.not_ready(client, name, found, namespace)
    yield from _priority_classes(client, settings)
    yield from webhooks_and_guards.missing(client, namespace)
    webhooks, guards = webhooks_and_guards.present(client)
    running = {name: workload for name, workload in workloads.items() if workload is not None}
    yield from installed.differences(client, namespace, settings, running, webhooks, guards)
    policy = installed.mounted(client, namespace, running.values(), "slicekeeper-policy", "policy.yaml")
    accepted = installed.mounted(client, namespace, running.values(), "slicekeeper-accepted-policy", "policy.yaml")
    yield from installed.policy_errors(policy or "", settings, has_earlier=accepted is not None)
    yield from rights.lacking(client, namespace, settings, policy or "")
    # One that is not ready is reported already.
    servers = (workloads[f"deployment {part}"] for part in ("webhook", "timekeeper"))
    if all(as_map(as_map(found).get("status")).get("readyReplicas") for found in servers):
        yield from reachability.unreached(client, namespace, settings.resources)
    yield from other_plugins.overlaps(nodes, settings.resources)


def _priority_classes(client: KubeClient, settings: Settings) -> Iterator[Finding]:
    """Yield the PriorityClasses that are missing or differ."""
    for known in (settings.classes.in_budget, settings.classes.over_budget):
        made = client.find(PRIORITY_CLASSES, known.name)
        if made is None:
            yield f"PriorityClass {known.name} is missing", remedies.APPLY
        else:
            yield from installed.class_differences(made, known)


def _cluster(
    client: KubeClient,
    settings: Settings,
    namespace: str,
    nodes: list[Object],
    workloads: dict[str, Object | None],
    *,
    installed: bool,
) -> Iterator[Finding]:
    """Yield what is missing in the cluster itself, before or after the installation."""
    server = client.server_version()
    if (gpu_nodes.version(server) or gpu_nodes.OLDEST_KUBERNETES) < gpu_nodes.OLDEST_KUBERNETES:
        yield f"the API server is {server}: it must be v1.30 or newer", "upgrade the cluster first"
    agents = gpu_nodes.runtime_class_of(workloads["daemonset nodeagent"])
    yield from gpu_nodes.wanting(nodes, settings.node_agent.cdi_dir, namespace, agents)
    yield from clocks.wrong(client.list(LEASES, namespace=node_lease.NAMESPACE)[0])
    if not installed:
        classes, _ = client.list(_STORAGE_CLASSES)
        if not any(as_map(one["metadata"].get("annotations")).get(_DEFAULT_CLASS) == "true" for one in classes):
            yield (
                "no StorageClass is the default: the timekeeper's volume needs one",
                f"kubectl annotate storageclass NAME {_DEFAULT_CLASS}=true; or use PostgreSQL: docs/install.md",
            )
