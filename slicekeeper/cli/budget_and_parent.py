# SPDX-License-Identifier: Apache-2.0
"""Commands that namespaces, teams and organisations share: reading and changing their budgets, but not creating one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import click

from slicekeeper.cli.budget_options import change_options, name_of, show_budget, uid_option
from slicekeeper.cli.connection import timekeeper
from slicekeeper.cli.grants_and_transfers import add_grants, add_movements
from slicekeeper.cli.main import Context
from slicekeeper.cli.namespaces import namespace_argument
from slicekeeper.cli.output import LISTS, Column, gathered, output_option, show_list
from slicekeeper.cli.statement import add_statement
from slicekeeper.wire.timekeeper import Budget, Parent

B = TypeVar("B", Budget, Parent)
_Columns = Sequence[Column[B]]
_Argument = Callable[[Callable[..., None]], Callable[..., None]]


def add_commands(group: click.Group, kind: type[B], columns: _Columns[B]) -> None:
    """Add the commands to a group: `kind` is the kind of budgets that it shows, `columns` how."""
    name_argument = click.argument("name", metavar="NAMESPACE" if kind is Budget else "NAME")
    if kind is Budget:
        optional_with_uid, with_uid = _and_uid(namespace_argument), _and_uid(name_argument)
    else:  # A team's or an organisation's name is never reused, and no kubeconfig has a default for it.
        optional_with_uid = with_uid = name_argument
    _add_reading(group, kind, columns, optional_with_uid)
    _add_changing(group, kind, columns, name_argument)
    add_statement(group, kind, optional_with_uid)
    add_grants(group, kind, columns, name_argument, with_uid, optional_with_uid)
    add_movements(group, kind, columns, name_argument, with_uid)


def _and_uid(name_argument: _Argument) -> _Argument:
    return lambda command: name_argument(uid_option(command))


def _add_reading(group: click.Group, kind: type[B], columns: _Columns[B], name_argument: _Argument) -> None:
    @group.command("list")
    @output_option(*LISTS)
    def list_all(context: Context, output: str) -> None:
        """List all of them."""
        show_list(gathered(timekeeper(context).budgets(kind), "budgets"), output, columns, name_of)

    if kind is Parent:  # of namespaces, `budget_reports` has one that takes several

        @group.command("get")
        @name_argument
        @output_option(*LISTS)
        def get(context: Context, name: str, output: str) -> None:
            """Show one of them."""
            show_budget(timekeeper(context).budget(kind, name), output, columns)


def _add_changing(group: click.Group, kind: type[B], columns: _Columns[B], name_argument: _Argument) -> None:
    @group.command("move")
    @name_argument
    @click.argument("parent", required=False)
    @change_options("moved on the command line")
    def move(context: Context, name: str, parent: str | None, reason: str, output: str) -> None:
        """Move it below the team or organisation PARENT; without PARENT, below none."""
        changed = timekeeper(context).put_under(kind, name, parent, reason)
        show_budget(changed, output, columns)

    @group.command("status")
    @name_argument
    @click.argument("status", type=click.Choice(["active", "suspended", "closed"]))
    @change_options("changed on the command line")
    def status(context: Context, name: str, status: str, reason: str, output: str) -> None:
        """Suspend its budget, resume it, or close it permanently."""
        changed = timekeeper(context).set_status(kind, name, status, reason)
        show_budget(changed, output, columns)
