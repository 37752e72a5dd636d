# SPDX-License-Identifier: Apache-2.0
"""How a command reaches the cluster and its timekeeper: as kubectl would, unless the settings name a server."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, Final

import click
import msgspec

from slicekeeper.cli import local_home
from slicekeeper.cli.main import Context
from slicekeeper.cli.told_errors import in_words, options_of
from slicekeeper.errors import ServiceError, SettingsError, SlicekeeperError
from slicekeeper.kube import kubeconfig
from slicekeeper.kube.client import KubeClient, connect
from slicekeeper.net.json_client import JsonClient
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.wire.timekeeper import Budget

_MISSING: Final = re.compile(r"(?:the cluster has no namespace|namespace(?= \S+ is not found)) ([a-z0-9-]+).*")


def cluster_options(command: Any) -> Any:
    """Give a command --kubeconfig and --context, whose values are stored in its `Context`.

    What the cluster or the timekeeper refuses is told in the user's words.
    """
    if isinstance(command, click.Command):
        command.callback = _telling(command.callback)
    else:
        command = _telling(command)
    for name, text in (
        ("context", "Context of the kubeconfig. Default: its current one."),
        ("kubeconfig", "Kubeconfig file. Default: kubernetes.server of the settings, $KUBECONFIG, ~/.kube/config."),
    ):
        command = click.option(f"--{name}", expose_value=False, callback=_keep, help=text)(command)
    return command


def _telling(function: Any) -> Any:
    """Have the function of a command raise the errors of servers in the words of the command line."""

    @wraps(function)
    def told(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except ServiceError as error:
            ctx = click.get_current_context()
            options = {} if ctx.params.get("files") else options_of(ctx.command)  # files have fields
            text = in_words(str(error), options, ctx.params)
            if error.reason == "namespace-unknown" and (found := _MISSING.search(text)):
                text = f"{text[: found.start()]}namespace {found[1]} is not found{_similar(ctx, found[1])}"
            raise type(error)(text, error.status, error.reason) from error
        except SettingsError as error:  # a value that cannot be sent
            raise SettingsError(in_words(str(error), {}, {})) from error

    return told


def _similar(ctx: click.Context, name: str) -> str:
    """Return a question that names the namespaces with a similar name; empty if there are none."""
    near: list[str] = []
    context = ctx.find_object(Context)
    if context is not None:
        with suppress(SlicekeeperError):  # a user who may read one budget may not be allowed to list all
            near = difflib.get_close_matches(name, {one.namespace for one in timekeeper(context).budgets(Budget)})
    return f"; did you mean {' or '.join(near)}?" if near else ""


@contextmanager
def negative_amounts_named(command: click.Command, args: Sequence[str]) -> Iterator[None]:
    """Say that an amount is negative: it looks like an option."""
    try:
        yield
    except click.NoSuchOption as error:
        negative = next((arg for arg in args if arg.startswith(error.option_name) and arg[1:2].isdigit()), "")
        if not negative:
            raise
        names = {param.name for param in command.params}
        if "take" in names:
            remedy = f"an amount is never negative: --take deducts {negative[1:]}"
        elif "amount" in names:
            remedy = "an amount is never negative; `adjust --take` deducts GPU time"
        else:
            remedy = "it is negative; give a positive number"
        raise click.UsageError(f"{negative!r}: {remedy}", error.ctx) from error


class AmountCommand(click.Command):
    """A command that says what is wrong with a negative amount."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the command line."""
        with negative_amounts_named(self, list(args)):
            return super().parse_args(ctx, args)


class ClusterGroup(click.Group):
    """A group each of whose commands has --kubeconfig and --context."""

    command_class = AmountCommand

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
