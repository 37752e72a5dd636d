# SPDX-License-Identifier: Apache-2.0
"""Commands that namespaces, teams and organisations share: all but creating one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import click
from msgspec.structs import replace

from slicekeeper.cli.connection import timekeeper
from slicekeeper.cli.dates import HELP, instant_of
from slicekeeper.cli.main import Context
from slicekeeper.cli.namespaces import namespace_argument
from slicekeeper.cli.options import amount_argument, booking_options, change_options
from slicekeeper.cli.output import (
    LISTS,
    Column,
    gathered,
    instant_columns,
    output_option,
    rows_of,
    show,
    show_list,
    show_one,
    table,
)
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Budget, Grant, Parent, Statement

B = TypeVar("B", Budget, Parent)
F = TypeVar("F", bound=Callable[..., object])
_Columns = Sequence[Column[B]]
_Argument = Callable[[Callable[..., None]], Callable[..., None]]

_GRANTS: list[Column[Grant]] = [
    Column("ID", lambda g: g.id),
    Column("AMOUNT", lambda g: format_duration(g.amount_ms)),
    *instant_columns("FROM", lambda g: g.valid_from),
    *instant_columns("UNTIL", lambda g: g.valid_to),
    *instant_columns("WITHDRAWN", lambda g: g.withdrawn_at),
    Column("BY", lambda g: g.actor, wide=True),
    Column("REASON", lambda g: g.reason),
]


def add_commands(group: click.Group, kind: type[B], columns: _Columns[B]) -> None:
    """Add the commands to a group: `kind` is the kind of budgets that it shows, `columns` how."""
    name_argument = click.argument("name", metavar="NAMESPACE" if kind is Budget else "NAME")
    if kind is Budget:
        optional_with_uid, with_uid = _and_uid(namespace_argument), _and_uid(name_argument)
    else:  # A team's or an organisation's name is never reused, and no kubeconfig has a default for it.
        optional_with_uid = with_uid = name_argument
    _add_reading(group, kind, columns, optional_with_uid)
    _add_changing(group, kind, columns, name_argument)
    _add_grants(group, kind, columns, name_argument, with_uid, optional_with_uid)
    _add_movements(group, kind, columns, name_argument, with_uid)


def uid_option(command: F) -> F:
    """Add the option that distinguishes namespaces that had the same name, one after the other."""
    text = "UID of the namespace, if the name was used before; `list -o wide` shows it. Default: the existing one."
    return click.option("--uid", default="", help=text)(command)


def _and_uid(name_argument: _Argument) -> _Argument:
    return lambda command: name_argument(uid_option(command))


def _add_reading(group: click.Group, kind: type[B], columns: _Columns[B], name_argument: _Argument) -> None:
    @group.command("list")
    @output_option(*LISTS)
    @click.pass_obj
    def list_all(context: Context, output: str) -> None:
        """List all of them."""
        show_list(gathered(timekeeper(context).budgets(kind), "budgets"), output, columns, _name_of)

    if kind is Parent:  # of namespaces, `records` has one that takes several

        @group.command("get")
        @name_argument
        @output_option(*LISTS)
        @click.pass_obj
        def get(context: Context, name: str, output: str) -> None:
            """Show one of them."""
            show_budget(timekeeper(context).budget(kind, name), output, columns)

    @group.command("statement")
    @name_argument
    @click.option("--from", "start", default="", help=f"Where it begins. Default: the current period. {HELP}")
    @click.option("--to", "end", default="", help="Where it ends; as --from.")
    @output_option("table", "wide", "json", "yaml", "csv")
    @click.pass_obj
    def statement(context: Context, name: str, start: str, end: str, output: str, uid: str = "") -> None:
        """Show the bookings of its budget, and the charge of each pod or of each budget below it."""
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


def _add_changing(group: click.Group, kind: type[B], columns: _Columns[B], name_argument: _Argument) -> None:
    @group.command("move")
    @name_argument
    @click.argument("parent", required=False)
    @change_options("moved on the command line")
    @click.pass_obj
    def move(context: Context, name: str, parent: str | None, reason: str, output: str) -> None:
        """Move it below the team or organisation PARENT; without PARENT, below none."""
        changed = timekeeper(context).put_under(kind, name, parent, reason)
        show_budget(changed, output, columns)

    @group.command("status")
    @name_argument
    @click.argument("status", type=click.Choice(["active", "suspended", "closed"]))
    @change_options("changed on the command line")
    @click.pass_obj
    def status(context: Context, name: str, status: str, reason: str, output: str) -> None:
        """Suspend its budget, resume it, or close it permanently."""
        changed = timekeeper(context).set_status(kind, name, status, reason)
        show_budget(changed, output, columns)


def _add_grants(
    group: click.Group,
    kind: type[B],
    columns: _Columns[B],
    name_argument: _Argument,
    with_uid: _Argument,
    optional_with_uid: _Argument,
) -> None:
    @group.command("grants")
    @optional_with_uid
    @output_option(*LISTS)
    @click.pass_obj
    def grants(context: Context, name: str, output: str, uid: str = "") -> None:
        """List its grants, newest first."""
        found = list(timekeeper(context).grants(kind, name, uid))
        show_list(found, output, _GRANTS, lambda g: str(g.id))

    @group.command("grant")
    @name_argument
    @amount_argument
    @click.option("--from", "start", default=None, help=f"When it begins. Default: now. {HELP}")
    @click.option("--until", default=None, help="When the rest expires; format as for --from.")
    @booking_options("granted on the command line")
    @click.pass_obj
    def grant(
        context: Context,
        name: str,
        amount: int,
        start: str | None,
        until: str | None,
        reason: str,
        key: str,
        output: str,
    ) -> None:
        """Grant AMOUNT (for example 2h) in addition to the budget; a team's grant is for all budgets below it."""
        client = timekeeper(context)
        zone = zone_of(client, kind, name)
        edges = {key: instant_of(at, zone) if at else None for key, at in (("validFrom", start), ("validTo", until))}
        body = {"amountMs": amount, "reason": reason, **edges}
        changed = client.move_time(kind, name, "grants", body, key)
        show_budget(changed, output, columns)

    @group.command("withdraw")
    @with_uid
    @click.argument("key", metavar="ID", type=int)
    @change_options("withdrawn on the command line")
    @click.pass_obj
    def withdraw(context: Context, name: str, key: int, reason: str, output: str, uid: str = "") -> None:
        """Withdraw the grant ID, which has not begun; see `grants`."""
        gone = timekeeper(context).withdraw(kind, name, key, reason, uid)
        show_one(gone, output, _GRANTS, lambda g: str(g.id))


def _add_movements(
    group: click.Group, kind: type[B], columns: _Columns[B], name_argument: _Argument, with_uid: _Argument
) -> None:
    @group.command("adjust")
    @with_uid
    @amount_argument
    @click.option("--take", is_flag=True, help="Deduct AMOUNT instead of adding it; at most what is left.")
    @booking_options("adjusted on the command line")
    @click.pass_obj
    def adjust(
        context: Context, name: str, amount: int, take: bool, reason: str, key: str, output: str, uid: str = ""
    ) -> None:
        """Adjust its GPU time by AMOUNT (for example 2h)."""
        body = {"amountMs": -amount if take else amount, "reason": reason}
        changed = timekeeper(context).move_time(kind, name, "adjustments", body, key, uid)
        show_budget(changed, output, columns)

    @group.command("transfer")
    @name_argument
    @amount_argument
    @click.argument("to")
    @click.option("--to-kind", type=click.Choice(["namespace", "parent"]), help="Kind of TO. Default: the same kind.")
    @click.option("--until", default=None, help=f"When the rest expires there. {HELP}")
    @booking_options("transferred on the command line")
    @click.pass_obj
    def transfer(
        context: Context,
        name: str,
        amount: int,
        to: str,
        to_kind: str | None,
        until: str | None,
        reason: str,
        key: str,
        output: str,
    ) -> None:
        """Move AMOUNT (for example 2h) from its budget to the budget of TO."""
        client = timekeeper(context)
        valid_to = instant_of(until, zone_of(client, kind, name)) if until else None
        body = {"to": to, "toKind": to_kind, "amountMs": amount, "reason": reason, "validTo": valid_to}
        changed = client.move_time(kind, name, "transfers", body, key)
        show_budget(changed, output, columns)


def show_budget(found: B, output: str, columns: _Columns[B]) -> None:
    """Print one budget."""
    show_one(found, output, columns, _name_of)


def _name_of(budget: Budget | Parent) -> str:
    return budget.namespace if isinstance(budget, Budget) else budget.name


def zone_of(client: TimekeeperClient, kind: type[B], name: str, uid: str = "") -> Callable[[], str]:
    """Return a function that requests a budget's time zone: only plain dates need it."""
    return lambda: client.budget(kind, name, uid).time_zone


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
    sums = [
        edge("opening", found.start, found.opening_ms),
        *totals,
        edge("closing", found.end, found.closing_ms),
    ]
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
