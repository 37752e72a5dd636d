# SPDX-License-Identifier: Apache-2.0
"""How a command reaches the cluster and its timekeeper: as kubectl would, unless the settings name a server."""

from __future__ import annotations

import os
from typing import Any

import click
import msgspec

from slicekeeper.cli import local_home
from slicekeeper.cli.main import Context
from slicekeeper.errors import SettingsError
from slicekeeper.kube import kubeconfig
from slicekeeper.kube.client import KubeClient, connect
from slicekeeper.net.json_client import JsonClient
from slicekeeper.net.timekeeper_client import TimekeeperClient


def cluster_options(command: Any) -> Any:
    """Give a command --kubeconfig and --context; their values are stored in its `Context`."""
    for name, text in (
        ("context", "Context of the kubeconfig. Default: its current one."),
        ("kubeconfig", "Kubeconfig file. Default: kubernetes.server of the settings, $KUBECONFIG, ~/.kube/config."),
    ):
        command = click.option(f"--{name}", expose_value=False, callback=_keep, help=text)(command)
    return command


class ClusterGroup(click.Group):
    """A group each of whose commands has --kubeconfig and --context."""

    def add_command(self, cmd: click.Command, name: str | None = None) -> None:
        """Register a command under this group."""
        super().add_command(cluster_options(cmd), name)


def _keep(ctx: click.Context, option: click.Parameter, value: str | None) -> None:
    if value:
        setattr(ctx.find_object(Context), f"kube_{option.name}", value)


def cluster(context: Context, timeout_seconds: float = 0) -> KubeClient:
    """Return a client for the selected cluster. `timeout_seconds` overrides the settings."""
    return KubeClient(_connection(context, timeout_seconds))


def timekeeper(context: Context) -> TimekeeperClient:
    """Return a client of the timekeeper.

    It is the timekeeper of the cluster that the command line names, or the one with the URL in the settings, or that of
    the cluster that kubectl would use. A cluster's timekeeper is reached through its API server, as the kubeconfig's
    user.
    """
    settings = context.loaded.settings.timekeeper_client
    if settings.url and not _is_named(context):
        return TimekeeperClient(settings)
    try:
        connection = _connection(context, settings.timeout_seconds)
    except SettingsError as error:
        if kubeconfig_of(context):
            raise
        raise SettingsError(
            f"neither a timekeeper nor a cluster is configured: set timekeeperClient.url, for example "
            f"http://127.0.0.1:8444; or: {error}"
        ) from error
    return TimekeeperClient(settings, connection)


def kubeconfig_of(context: Context) -> str:
    """Return the kubeconfig by which a command reaches its cluster; empty if it does not use one."""
    named = context.kube_kubeconfig or kubeconfig.named(os.environ)
    if _is_named(context):
        return named or kubeconfig.USUAL
    return "" if context.loaded.settings.kubernetes.server else named


def _is_named(context: Context) -> bool:
    return bool(context.kube_kubeconfig or context.kube_context)


def _connection(context: Context, timeout_seconds: float) -> JsonClient:
    """Connect to the API server.

    The command line takes precedence, then the server of the settings, then kubectl's own file, and last, in a pod, its
    service account.
    """
    settings = context.loaded.settings.kubernetes
    timeout = timeout_seconds or settings.timeout_seconds
    if files := kubeconfig_of(context):
        return kubeconfig.connect(files, context.kube_context, timeout=timeout)
    if not settings.server and not os.environ.get("KUBERNETES_SERVICE_HOST"):
        ended = local_home.home() / local_home.SETTINGS
        raise SettingsError(
            f"no cluster is configured: there is no {kubeconfig.USUAL}; name one by --kubeconfig or $KUBECONFIG, or "
            "the API server's URL by kubernetes.server"
            + (f"; the local mode in {ended.parent} has ended" if os.access(ended, os.F_OK) else "")
        )
    return connect(msgspec.structs.replace(settings, timeout_seconds=timeout))
