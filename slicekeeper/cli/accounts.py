# SPDX-License-Identifier: Apache-2.0
"""Commands that namespaces, teams and organisations have alike: all but making one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import click
from msgspec.structs import replace

from slicekeeper.cli.main import Context
from slicekeeper.cli.options import GpuTime, booking_options, client_of, reason_option
from slicekeeper.cli.output import output_option, show, table
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Budget, Grant, Parent, Statement

B = TypeVar("B", Budget, Parent)
F = TypeVar("F", bound=Callable[..., object])
_TableOf = Callable[[Sequence[B]], str]
_Argument = Callable[[Callable[..., None]], Callable[..., None]]


def add_commands(group: click.Group, kind: type[B], table_of: _TableOf[B]) -> None:
    """Add the commands to a group: `kind` is whose budgets it shows, `table_of` how."""
    name_argument = click.argument("name", metavar="NAMESPACE" if kind is Budget else "NAME")
    # Names of teams and organisations are never used again.
    account = _and_uid(name_argument) if kind is Budget else name_argument
    _add_reading(group, kind, table_of, account)
    _add_changing(group, kind, table_of, name_argument)
    _add_booking(group, kind, table_of, name_argument, account)


def uid_option(command: F) -> F:
    """Add the option that tells namespaces apart which had one name, one after the other."""
    told = "Which namespace, if the name was used before; `budget list` shows them. Default: the one that is there."
    return click.option("--uid", default="", help=told)(command)


def _and_uid(name_argument: _Argument) -> _Argument:
    return lambda command: name_argument(uid_option(command))


def _add_reading(group: click.Group, kind: type[B], table_of: _TableOf[B], name_argument: _Argument) -> None:
    @group.command("list")
    @output_option()
    @click.pass_obj
    def list_all(context: Context, output: str) -> None:
        """List all of them."""
        budgets = list(client_of(context).budgets(kind))
        show(budgets, output, lambda: table_of(budgets))

    @group.command("get")
    @name_argument
    @output_option()
    @click.pass_obj
    def get(context: Context, name: str, output: str, uid: str = "") -> None:
        """Show one of them."""
        found = client_of(context).budget(kind, name, uid)
        show(found, output, lambda: table_of([found]))

    @group.command("statement")
    @name_argument
    @click.option("--from", "start", default="", help="Where it begins (RFC 3339). Default: the current period.")
    @click.option("--to", "end", default="", help="Where it ends (RFC 3339).")
    @output_option("table", "json", "yaml", "csv")
    @click.pass_obj
    def statement(context: Context, name: str, start: str, end: str, output: str, uid: str = "") -> None:
        """Show what was booked of its budget, and what each pod, or each budget below, was charged."""
        interval = {key: value for key, value in (("from", start), ("to", end), ("uid", uid)) if value}
        client = client_of(context)
        if output == "csv":
            click.echo(client.statement_csv(kind, name, interval), nl=False)
            return
        first, *more = client.statement(kind, name, interval)
        whole = replace(
            first,
            workloads=[row for page in (first, *more) for row in page.workloads],
            children=[row for page in (first, *more) for row in page.children],
            next_cursor=None,
        )
        show(whole, output, lambda: _lines(whole))


def _add_changing(group: click.Group, kind: type[B], table_of: _TableOf[B], name_argument: _Argument) -> None:
    @group.command("move")
    @name_argument
    @click.argument("parent", required=False)
    @reason_option("moved on the command line")
    @output_option()
    @click.pass_obj
    def move(context: Context, name: str, parent: str | None, reason: str, output: str) -> None:
        """Put it under the team or organisation PARENT from now on; without PARENT under none."""
        changed = client_of(context).put_under(kind, name, parent, reason)
        show(changed, output, lambda: table_of([changed]))

    @group.command("status")
    @name_argument
    @click.argument("status", type=click.Choice(["active", "suspended", "closed"]))
    @reason_option("changed on the command line")
    @output_option()
    @click.pass_obj
    def status(context: Context, name: str, status: str, reason: str, output: str) -> None:
        """Suspend its budget, have it go on, or close it for good."""
        changed = client_of(context).set_status(kind, name, status, reason)
        show(changed, output, lambda: table_of([changed]))


def _add_booking(
    group: click.Group, kind: type[B], table_of: _TableOf[B], name_argument: _Argument, account: _Argument
) -> None:
    @group.command("grant")
    @name_argument
    @click.argument("amount", type=GpuTime())
    @click.option("--from", "start", default=None, help="When it begins (RFC 3339). Default: now.")
    @click.option("--until", default=None, help="What is not used by then expires (RFC 3339).")
    @booking_options("granted on the command line")
    @click.pass_obj
    def grant(
        context: Context, name: str, amount: int, start: str | None, until: str | None, reason: str, key: str,
        output: str,
    ) -> None:  # fmt: skip
        """Book a grant of AMOUNT (for example 2h), beside the budget; a team's is for all under it."""
        body = {"amountMs": amount, "reason": reason, "validFrom": start, "validTo": until}
        changed = client_of(context).move_time(kind, name, "grants", body, key)
        show(changed, output, lambda: table_of([changed]))

    @group.command("grants")
    @account
    @output_option()
    @click.pass_obj
    def grants(context: Context, name: str, output: str, uid: str = "") -> None:
        """List its grants, newest first."""
        found = list(client_of(context).grants(kind, name, uid))
        show(found, output, lambda: _grants(found))

    @group.command("withdraw")
    @account
    @click.argument("key", metavar="ID", type=int)
    @reason_option("withdrawn on the command line")
    @output_option()
    @click.pass_obj
    def withdraw(context: Context, name: str, key: int, reason: str, output: str, uid: str = "") -> None:
        """Withdraw the grant ID, which has not begun; see `grants`."""
        gone = client_of(context).withdraw(kind, name, key, reason, uid)
        show(gone, output, lambda: _grants([gone]))

    @group.command("adjust")
    @account
    @click.argument("amount", type=GpuTime())
    @click.option("--take", is_flag=True, help="Take AMOUNT away instead of giving it; at most what is left.")
    @booking_options("adjusted on the command line")
    @click.pass_obj
    def adjust(
        context: Context, name: str, amount: int, take: bool, reason: str, key: str, output: str, uid: str = ""
    ) -> None:
        """Put its GPU time right by AMOUNT (for example 2h)."""
        body = {"amountMs": -amount if take else amount, "reason": reason}
        changed = client_of(context).move_time(kind, name, "adjustments", body, key, uid)
        show(changed, output, lambda: table_of([changed]))

    @group.command("transfer")
    @name_argument
    @click.argument("amount", type=GpuTime())
    @click.argument("to")
    @click.option(
        "--to-kind", type=click.Choice(["namespace", "parent"]), help="Whose name TO is. Default: one of the same."
    )
    @click.option("--until", default=None, help="What is not used there by then expires (RFC 3339).")
    @booking_options("transferred on the command line")
    @click.pass_obj
    def transfer(
        context: Context, name: str, amount: int, to: str, to_kind: str | None, until: str | None, reason: str,
        key: str, output: str,
    ) -> None:  # fmt: skip
        """Move AMOUNT (for example 2h) from its budget into that of TO."""
        body = {"to": to, "toKind": to_kind, "amountMs": amount, "reason": reason, "validTo": until}
        changed = client_of(context).move_time(kind, name, "transfers", body, key)
        show(changed, output, lambda: table_of([changed]))


def _grants(found: Sequence[Grant]) -> str:
    return table(
        ("ID", "AMOUNT", "FROM", "UNTIL", "WITHDRAWN", "BY", "REASON"),
        [
            (
                g.id,
                format_duration(g.amount_ms),
                g.valid_from,
                g.valid_to or "-",
                g.withdrawn_at or "-",
                g.actor,
                g.reason,
            )
            for g in found
        ],
    )


def _lines(found: Statement) -> str:
    def edge(what: str, at: str, balance: int | None) -> tuple[object, ...]:
        return what, at, "", "", format_duration(balance or 0)

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
    told = table(("BOOKED", "AT", "COUNT", "GPU-TIME", "BALANCE"), sums)
    pods = [
        (pod.pod_name, pod.pod_uid, format_duration(pod.charged_ms), format_duration(pod.over_budget_ms))
        for pod in found.workloads
    ]
    below = [
        (one.name, one.kind, format_duration(one.charged_ms), format_duration(one.over_budget_ms))
        for one in found.children
    ]
    if not pods and not below:
        return told
    head = ("NAME", "KIND" if below else "POD-UID", "CHARGED", "OVER-BUDGET")
    return f"{told}\n\n{table(head, below or pods)}"
