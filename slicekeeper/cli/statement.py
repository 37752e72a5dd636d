# SPDX-License-Identifier: Apache-2.0
"""The command that shows a budget's statement: what is booked in an interval."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Final, TypeVar

import click
from msgspec.structs import replace

from slicekeeper.cli.budget_options import name_of, owner_argument, zone_of
from slicekeeper.cli.connection import timekeeper
from slicekeeper.cli.date_options import HELP, instant_of
from slicekeeper.cli.main import Context
from slicekeeper.cli.output import Column, gathered, output_option, rounded, rows_of, show, table
from slicekeeper.errors import NotFound
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.units import EPOCH, format_duration, format_instant, parse_instant
from slicekeeper.wire.timekeeper import Budget, Parent, Statement, StatementChild, StatementPod

B = TypeVar("B", Budget, Parent)
_Row = StatementPod | StatementChild

_NAME: Final[Column[_Row]] = Column("NAME", lambda row: row.pod_name if isinstance(row, StatementPod) else row.name)
_CHARGED: Final[Sequence[Column[_Row]]] = (
    Column("CHARGED", lambda row: format_duration(row.charged_ms)),
    Column("OVER-BUDGET", lambda row: format_duration(row.over_budget_ms)),
)
_PODS: Final[Sequence[Column[_Row]]] = (
    _NAME,
    Column("POD-UID", lambda row: row.pod_uid if isinstance(row, StatementPod) else "-", wide=True),
    *_CHARGED,
)
_CHILDREN: Final[Sequence[Column[_Row]]] = (
    _NAME,
    Column("KIND", lambda row: "" if isinstance(row, StatementPod) else row.kind),
    *_CHARGED,
)


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
        try:
            if output == "csv":
                click.echo(client.statement_csv(kind, name, interval), nl=False)
                return
            whole = _whole(client, kind, name, interval)
        except NotFound:
            _show_nothing(client.budget(kind, name, uid), output)
            return
        show(whole, output, lambda: "\n\n".join(_parts(whole, output, _running(client, kind, name, uid, whole))))


def _whole(client: TimekeeperClient, kind: type[B], name: str, interval: Mapping[str, str]) -> Statement:
    """Return all pages of a statement as one."""
    first, *more = gathered(client.statement(kind, name, interval), "pages")
    return replace(
        first,
        workloads=[row for page in (first, *more) for row in page.workloads],
        children=[row for page in (first, *more) for row in page.children],
        next_cursor=None,
    )


def _show_nothing(budget: Budget | Parent, output: str) -> None:
    """Show that a namespace that exists has no bookings; a team or an organisation always has an account."""
    if output in ("table", "wide"):
        click.echo(f"nothing is booked in namespace {name_of(budget)} yet")
    elif output != "csv":
        empty = Statement(
            namespace=name_of(budget),
            parent=None,
            start=budget.period_start or format_instant(EPOCH),
            end=budget.period_end or format_instant(EPOCH),
            opening_ms=0,
            closing_ms=0,
            totals=[],
            workloads=[],
            children=[],
        )
        show(empty, output, str)


def _running(client: TimekeeperClient, kind: type[B], name: str, uid: str, found: Statement) -> str:
    """Return what a statement that includes the present does not contain; empty if there is nothing."""
    with suppress(NotFound):  # of a deleted namespace, no pods run
        now = client.decision(name).as_of if kind is Budget else client.children(name).as_of
        if not parse_instant(found.start) <= parse_instant(now) < parse_instant(found.end):
            return ""
        left = client.budget(kind, name, uid).balance_ms
        missing = (found.closing_ms or 0) - left
        pods = len(list(client.workloads(name, uid, "running"))) if kind is Budget else 0
        if pods or missing > 0:
            who = f"{pods} pods still run" if pods > 1 else "1 pod still runs" if pods else "Pods still run"
            whose = "its" if pods == 1 else "their"
            return f"{who}; {rounded(missing)} of {whose} charge is not booked yet. {rounded(left)} is left now."
    return ""


def _parts(found: Statement, output: str, running: str) -> Iterator[str]:
    """Yield a statement's parts: its sums from opening to closing balance, then what each pod or child cost."""
    balance = found.opening_ms or 0
    sums: list[tuple[object, ...]] = [("opening", _at(found.start), "", "", "", format_duration(balance))]
    for total in found.totals:
        balance += total.balance_ms
        kind = f"{total.kind} (correction)" if total.correction else total.kind
        change = format_duration(total.balance_ms)
        sums.append((kind, "", total.count, format_duration(total.amount_ms), change, format_duration(balance)))
    sums.append(("closing", _at(found.end), "", "", "", format_duration(found.closing_ms or 0)))
    yield table(("BOOKED", "AT", "COUNT", "GPU-TIME", "CHANGE", "BALANCE"), sums)
    if running:
        yield running
    rows: list[_Row] = [*found.workloads, *found.children]
    rows.sort(key=lambda row: -row.charged_ms - row.over_budget_ms)
    if rows:
        yield rows_of([*rows, _total(rows)] if len(rows) > 1 else rows, output, _PODS if found.workloads else _CHILDREN)


def _at(instant: str) -> str:
    return instant.replace(".000Z", "Z")


def _total(rows: Sequence[_Row]) -> StatementChild:
    return StatementChild(
        name="TOTAL",
        kind="",
        charged_ms=sum(row.charged_ms for row in rows),
        over_budget_ms=sum(row.over_budget_ms for row in rows),
        corrections_ms=sum(row.corrections_ms for row in rows),
    )
