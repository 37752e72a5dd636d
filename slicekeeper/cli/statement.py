# SPDX-License-Identifier: Apache-2.0
"""The command that shows a budget's statement: what is booked in an interval."""

from __future__ import annotations

from typing import Any, TypeVar

import click
from msgspec.structs import replace

from slicekeeper.cli.budget_options import owner_argument, zone_of
from slicekeeper.cli.connection import timekeeper
from slicekeeper.cli.date_options import HELP, instant_of
from slicekeeper.cli.main import Context
from slicekeeper.cli.output import Column, gathered, output_option, rows_of, show, table
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Budget, Parent, Statement

B = TypeVar("B", Budget, Parent)


def add_statement(group: click.Group, kind: type[B]) -> None:
    """Add the command to a group."""

    @group.command("statement")
    @owner_argument(kind, optional=True, uid=True)
    @click.option("--from", "start", default="", help=f"Where it begins. Default: the current period. {HELP}")
    @click.option("--to", "end", default="", help="Where it ends; as --from.")
    @output_option("table", "wide", "json", "yaml", "csv")
    def statement(context: Context, name: str, start: str, end: str, output: str, uid: str = "") -> None:
        """Show what is booked in a budget, and for which pods.

        For a team or an organisation: for which budgets below it.
        """
        client = timekeeper(context)
        zone = zone_of(client, kind, name, uid)
        interval = {key: instant_of(value, zone) for key, value in (("from", start), ("to", end)) if value}
        interval |= {"uid": uid} if uid else {}
        if output == "csv":
            click.echo(client.statement_csv(kind, name, interval), nl=False)
            return
        first, *more = gathered(client.statement(kind, name, interval), "pages")
        whole = replace(
            first,
            workloads=[row for page in (first, *more) for row in page.workloads],
            children=[row for page in (first, *more) for row in page.children],
            next_cursor=None,
        )
        show(whole, output, lambda: _lines(whole, output))


def _lines(found: Statement, output: str) -> str:
    """Return a statement as two tables: its sums from opening to closing balance, then what each pod or child cost."""

    def edge(what: str, at: str, balance: int | None) -> tuple[object, ...]:
        return what, at.replace(".000Z", "Z"), "", "", format_duration(balance or 0)

    totals = [
        (
            f"{total.kind} (correction)" if total.correction else total.kind,
            "",
            total.count,
            format_duration(total.amount_ms),
            format_duration(total.balance_ms),
        )
        for total in found.totals
    ]
    sums = [edge("opening", found.start, found.opening_ms), *totals, edge("closing", found.end, found.closing_ms)]
    sums_shown = table(("BOOKED", "AT", "COUNT", "GPU-TIME", "BALANCE"), sums)
    charged = [
        Column[Any]("CHARGED", lambda one: format_duration(one.charged_ms)),
        Column[Any]("OVER-BUDGET", lambda one: format_duration(one.over_budget_ms)),
    ]
    if found.workloads:
        pods = [
            Column[Any]("NAME", lambda pod: pod.pod_name),
            Column[Any]("POD-UID", lambda pod: pod.pod_uid, wide=True),
        ]
        return f"{sums_shown}\n\n{rows_of(found.workloads, output, [*pods, *charged])}"
    if found.children:
        below = [Column[Any]("NAME", lambda one: one.name), Column[Any]("KIND", lambda one: one.kind)]
        return f"{sums_shown}\n\n{rows_of(found.children, output, [*below, *charged])}"
    return sums_shown
