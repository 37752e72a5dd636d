# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper parent`: read and change the budgets of teams and organisations through the timekeeper."""

from __future__ import annotations

from typing import Any

import click

from slicekeeper.cli.budget_and_parent import add_commands
from slicekeeper.cli.budget_options import GpuTime, change_options, figure_columns, rule_of, rule_options, show_budget
from slicekeeper.cli.connection import ClusterGroup, timekeeper
from slicekeeper.cli.main import Context
from slicekeeper.cli.output import LISTS, Column, output_option, rounded, show_list
from slicekeeper.errors import NotFound, ServiceError
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Child, Parent

_COLUMNS: list[Column[Parent]] = [
    Column("NAME", lambda p: p.name),
    Column("KIND", lambda p: p.kind, wide=True),
    Column("UNDER", lambda p: p.parent or "-"),
    *figure_columns(Parent),
]


@click.group(cls=ClusterGroup)
def parent() -> None:
    """Show and change teams and organisations."""


@parent.command("children")
@click.argument("name")
@output_option(*LISTS)
def children(context: Context, name: str, output: str) -> None:
    """Show the budgets directly below a team or an organisation.

    CONSUMED is what each has consumed of the budget of NAME, in its period.
    """
    columns: list[Column[Child]] = [
        Column("NAME", lambda c: c.name),
        Column("KIND", lambda c: c.kind),
        Column("STATE", lambda c: c.state),
        Column("CONSUMED", lambda c: rounded(c.consumed_ms), narrow=True),
        Column("CONSUMED", lambda c: format_duration(c.consumed_ms), wide=True),
        Column("LEFT", lambda c: rounded(c.balance_ms), narrow=True),
        Column("LEFT", lambda c: format_duration(c.balance_ms), wide=True),
    ]
    show_list(timekeeper(context).children(name).items, output, columns, lambda c: c.name)


@parent.command("set")
@click.argument("name")
@click.argument("amount", type=GpuTime(), required=False)
@click.option("--kind", type=click.Choice(["team", "organisation"]), help="Kind of a new one. Default: team.")
@rule_options
@change_options("set on the command line")
def set_parent(
    context: Context,
    /,
    name: str,
    amount: int | None,
    kind: str | None,
    reason: str,
    key: str,
    output: str,
    **rule: Any,
) -> None:
    """Create a team or an organisation, or change its budget.

    NAME gets a budget of AMOUNT (for example 200h) per period. A new one has monthly periods in UTC by default. For an
    existing one, options that are omitted keep their values, and what the current period has used still counts.
    """
    client, named = timekeeper(context), rule_of(amount, **rule)
    try:
        changed = client.change_budget(Parent, name, {**named, **({"kind": kind} if kind else {})}, reason, key)
    except ServiceError as error:
        # A repetition of the command that created it: its key is that of the other request.
        if not isinstance(error, NotFound) and error.reason != "idempotency-key-reused":
            raise
        if amount is None and isinstance(error, NotFound):
            raise click.UsageError(f"there is no team or organisation {name} yet: name its AMOUNT") from error
        new = {"kind": kind or "team", "period": "month", **named}
        changed = client.set_budget(Parent, name, new, reason, key)
    show_budget(changed, output, _COLUMNS)


add_commands(parent, Parent, _COLUMNS)
