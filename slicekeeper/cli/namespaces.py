# SPDX-License-Identifier: Apache-2.0
"""The namespace of a command: its first argument, `-n`, or that of the kubeconfig's context."""

from __future__ import annotations

import contextlib
import io
from typing import Any, Final

import click

from slicekeeper.cli.connection import (
    AmountCommand,
    ClusterGroup,
    kubeconfig_of,
    negative_amounts_named,
    timekeeper,
)
from slicekeeper.cli.main import Context
from slicekeeper.errors import SlicekeeperError
from slicekeeper.kube import kubeconfig
from slicekeeper.wire.timekeeper import Budget

METAVAR: Final = "[NAMESPACE]"
SEVERAL: Final = "[NAMESPACE]..."
_HELP = "The namespace, instead of the argument NAMESPACE."


class NamespaceCommand(AmountCommand):
    """A command whose first argument is a namespace, which `-n` can replace."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        first = next((param for param in self.params if isinstance(param, click.Argument)), None)
        if first is not None and first.metavar in ("NAMESPACE", METAVAR, SEVERAL):
            self.params.append(click.Option(["-n", "--namespace", "named"], expose_value=False, help=_HELP))

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Insert the namespace of `-n` as the first argument."""
        with negative_amounts_named(self, args):
            named = self.make_parser(ctx).parse_args(list(args))[0].get("named")
        return super().parse_args(ctx, [named, *args] if named else args)


class BudgetGroup(ClusterGroup):
    """A group of commands about namespaces' budgets."""

    command_class = NamespaceCommand


def namespace_argument(command: Any) -> Any:
    """Give a command the argument `name`: a namespace, by default that of the kubeconfig's context."""
    return click.argument(
        "name", metavar=METAVAR, required=False, callback=_of_context, shell_complete=known_namespaces
    )(command)


def _of_context(ctx: click.Context, _param: click.Parameter, value: str | None) -> str:
    if value or ctx.resilient_parsing:
        return value or ""
    return current(ctx.find_object(Context))


def current(context: Context | None) -> str:
    """Return the namespace of the kubeconfig's context.

    Raises UsageError if the command does not use a kubeconfig.
    """
    asked = context or Context(None)
    files = kubeconfig_of(asked)
    if not files:
        raise click.UsageError("give a NAMESPACE, as an argument or with -n: no kubeconfig names one")
    return kubeconfig.namespace(files, asked.kube_context)


def current_if_any(context: Context) -> str:
    """Return what `current` does; `default` if the command does not use a kubeconfig, as in local mode."""
    return current(context) if kubeconfig_of(context) else "default"


def known_namespaces(ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[str]:
    """Return namespaces that have budgets, for a shell to complete."""
    context = ctx.find_object(Context) or Context(None)  # while a shell completes, no command has made one
    try:
        with contextlib.redirect_stderr(io.StringIO()):  # the shell would show it in the middle of what is typed
            names = [one.namespace for one in timekeeper(context).budgets(Budget)]
    except SlicekeeperError:
        return []
    return sorted({name for name in names if name.startswith(incomplete)})
