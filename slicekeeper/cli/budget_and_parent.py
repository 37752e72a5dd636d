# SPDX-License-Identifier: Apache-2.0
"""Commands that namespaces, teams and organisations share: reading and changing their budgets, but not creating one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeVar

import click

from slicekeeper.cli.budget_options import change_options, name_of, owner_argument, show_budget
from slicekeeper.cli.connection import timekeeper
from slicekeeper.cli.grants_and_transfers import add_grants, add_movements
from slicekeeper.cli.main import Context
from slicekeeper.cli.output import LISTS, Column, gathered, output_option, show_list
from slicekeeper.cli.statement import add_statement
from slicekeeper.wire.timekeeper import Budget, Parent

B = TypeVar("B", Budget, Parent)
_Columns = Sequence[Column[B]]
_WHOSE: Final = {Budget: "budgets of namespaces", Parent: "teams and organisations, and their budgets"}


def add_commands(group: click.Group, kind: type[B], columns: _Columns[B]) -> None:
    """Add the commands to a group: `kind` is the kind of budgets that it shows, `columns` how."""
    _add_reading(group, kind, columns)
    _add_changing(group, kind, columns)
    add_statement(group, kind)
    add_grants(group, kind, columns)
    add_movements(group, kind, columns)


def _add_reading(group: click.Group, kind: type[B], columns: _Columns[B]) -> None:
    @group.command("list", help=f"List all {_WHOSE[kind]}.")
    @output_option(*LISTS)
    def list_all(context: Context, output: str) -> None:
        show_list(gathered(timekeeper(context).budgets(kind), "budgets"), output, columns, name_of)

    if kind is Parent:  # of namespaces, `budget_reports` has one that takes several

        @group.command("get")
        @owner_argument(kind)
        @output_option(*LISTS)
        def get(context: Context, name: str, output: str) -> None:
            """Show the budget of a team or an organisation."""
            show_budget(timekeeper(context).budget(kind, name), output, columns)


def _add_changing(group: click.Group, kind: type[B], columns: _Columns[B]) -> None:
    @group.command("move")
    @owner_argument(kind)
    @click.argument("parent", required=False)
    @change_options("moved on the command line")
    def move(context: Context, name: str, parent: str | None, reason: str, key: str, output: str) -> None:
        """Move a budget below another one, that of PARENT.

        PARENT is a team or an organisation; without it, the budget is below none.
        """
        changed = timekeeper(context).put_under(kind, name, parent, reason, key)
        show_budget(changed, output, columns)

    @group.command("status")
    @owner_argument(kind)
    @click.argument("status", type=click.Choice(["active", "suspended", "closed"]))
    @click.option("--yes", is_flag=True, help="Close it without asking.")
    @change_options("changed on the command line")
    def status(context: Context, name: str, status: str, yes: bool, reason: str, key: str, output: str) -> None:
        """Suspend a budget, resume it, or close it permanently."""
        if status == "closed" and not yes:
            click.confirm(
                f"The budget of {name} cannot be opened again. Close it? (--yes: do not ask)", abort=True, err=True
            )
        changed = timekeeper(context).set_status(kind, name, status, reason, key)
        show_budget(changed, output, columns)
