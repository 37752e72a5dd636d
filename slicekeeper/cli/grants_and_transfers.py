# SPDX-License-Identifier: Apache-2.0
"""Commands that move GPU time by hand: grants, refunds, adjustments and transfers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import click
import msgspec

from slicekeeper.cli.budget_options import (
    amount_argument,
    book,
    change_options,
    owner_argument,
    show_budget,
    uid_option,
    zone_of,
)
from slicekeeper.cli.connection import timekeeper
from slicekeeper.cli.date_options import HELP, instant_of
from slicekeeper.cli.main import Context
from slicekeeper.cli.output import LISTS, Column, instant_columns, output_option, show, show_list, show_one
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Budget, Grant, Parent

B = TypeVar("B", Budget, Parent)
_Columns = Sequence[Column[B]]

_GRANTS: list[Column[Grant]] = [
    Column("ID", lambda g: g.id),
    Column("AMOUNT", lambda g: format_duration(g.amount_ms)),
    *instant_columns("FROM", lambda g: g.valid_from),
    *instant_columns("UNTIL", lambda g: g.valid_to),
    *instant_columns("WITHDRAWN", lambda g: g.withdrawn_at),
    Column("BY", lambda g: g.actor, wide=True),
    Column("REASON", lambda g: g.reason),
]


def add_grants(group: click.Group, kind: type[B], columns: _Columns[B]) -> None:
    """Add the commands that make, list and withdraw grants."""

    @group.command("grants")
    @owner_argument(kind, optional=True, uid=True)
    @output_option(*LISTS)
    def grants(context: Context, name: str, output: str, uid: str = "") -> None:
        """List the grants of a budget, newest first."""
        found = list(timekeeper(context).grants(kind, name, uid))
        show_list(found, output, _GRANTS, lambda g: str(g.id))

    @group.command("grant")
    @owner_argument(kind)
    @amount_argument
    @click.option("--from", "start", default=None, help=f"When it begins. Default: now. {HELP}")
    @click.option("--until", default=None, help="When the rest expires; format as for --from.")
    @change_options("granted on the command line")
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
        """Grant AMOUNT (for example 2h) in addition to a budget.

        A team's grant is for all budgets below it.
        """
        client = timekeeper(context)
        zone = zone_of(client, kind, name)
        edges = {edge: instant_of(at, zone) if at else None for edge, at in (("validFrom", start), ("validTo", until))}
        changed, made = client.book_grant(kind, name, {"amountMs": amount, **edges, "reason": reason}, key)
        if output in ("json", "yaml"):
            show({**msgspec.to_builtins(changed), "grantId": made}, output, str)
            return
        show_budget(changed, output, columns)
        if output in ("table", "wide") and made:
            click.echo(f"{format_duration(amount)} granted to {name}: grant {made}")

    @group.command("withdraw")
    @owner_argument(kind, uid=True)
    @click.argument("number", metavar="ID", type=int)
    @change_options("withdrawn on the command line")
    def withdraw(context: Context, name: str, number: int, reason: str, key: str, output: str, uid: str = "") -> None:
        """Withdraw a grant that has not begun.

        ID is what `grant` and `grants` print.
        """
        gone = timekeeper(context).withdraw(kind, name, number, reason, uid, key=key)
        show_one(gone, output, _GRANTS, lambda g: str(g.id))


def add_movements(group: click.Group, kind: type[B], columns: _Columns[B]) -> None:
    """Add the commands that adjust, transfer and refund GPU time."""

    @group.command("adjust")
    @owner_argument(kind, uid=True)
    @amount_argument
    @click.option("--take", is_flag=True, help="Deduct AMOUNT instead of adding it; at most what is left.")
    @change_options("adjusted on the command line")
    def adjust(context: Context, name: str, amount: int, take: bool, **booking: str) -> None:
        """Add AMOUNT (for example 2h) to a budget, or take it away."""
        book(context, kind, name, "adjustments", {"amountMs": -amount if take else amount}, columns, **booking)

    @group.command("transfer")
    @owner_argument(kind)
    @amount_argument
    @click.argument("to")
    @click.option("--to-kind", type=click.Choice(["namespace", "parent"]), help="Kind of TO. Default: the same kind.")
    @click.option("--until", default=None, help=f"When the rest expires there. {HELP}")
    @change_options("transferred on the command line")
    def transfer(
        context: Context, name: str, amount: int, to: str, to_kind: str | None, until: str | None, **booking: str
    ) -> None:
        """Move AMOUNT (for example 2h) to the budget of TO."""
        valid_to = instant_of(until, zone_of(timekeeper(context), kind, name)) if until else None
        body = {"to": to, "toKind": to_kind, "amountMs": amount, "validTo": valid_to}
        book(context, kind, name, "transfers", body, columns, **booking)

    if kind is Budget:  # pods are charged to namespaces

        @group.command("refund")
        @click.argument("namespace", metavar="NAMESPACE")
        @amount_argument
        @click.argument("pod_uid")
        @uid_option
        @change_options("refunded on the command line")
        def refund(context: Context, namespace: str, amount: int, pod_uid: str, **booking: str) -> None:
            """Refund the charge of an ended pod, or a part of it.

            AMOUNT, for example 2h, goes back to the budget that the pod POD_UID was charged to; in total never more
            than its charge.
            """
            book(context, kind, namespace, "refunds", {"podUid": pod_uid, "amountMs": amount}, columns, **booking)
