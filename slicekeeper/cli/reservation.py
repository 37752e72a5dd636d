# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper reservation`: GPU time that is reserved in a `safe` namespace, for pods and by hand."""

from __future__ import annotations

from typing import Any

import click

from slicekeeper.cli.budget_options import amount_argument, change_options, zone_of
from slicekeeper.cli.connection import ClusterGroup, timekeeper
from slicekeeper.cli.date_options import HELP, instant_of
from slicekeeper.cli.main import Context
from slicekeeper.cli.output import LISTS, Column, instant_columns, output_option, rounded, show_list, show_one
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Budget, Reservation

_COLUMNS: list[Column[Reservation]] = [
    Column("ID", lambda r: r.id),
    Column("STATE", lambda r: r.state),
    Column("AMOUNT", lambda r: rounded(r.amount_ms), narrow=True),
    Column("AMOUNT", lambda r: format_duration(r.amount_ms), wide=True),
    Column("HELD", lambda r: rounded(r.held_ms), narrow=True),
    Column("HELD", lambda r: format_duration(r.held_ms), wide=True),
    *instant_columns("OPENED", lambda r: r.opened_at),
    *instant_columns("EXPIRES", lambda r: r.expires_at),
    Column("ENDED", lambda r: r.ended_at or "-", wide=True),
    Column("BY", lambda r: r.actor, wide=True),
    Column("POD", lambda r: r.pod_name or "-"),
]


@click.group(cls=ClusterGroup)
def reservation() -> None:
    """Show, open and cancel reservations of GPU time."""


def _one_reservation(command: Any) -> Any:
    return click.argument("namespace")(click.argument("number", metavar="ID", type=int)(command))


def _show(found: Reservation, output: str) -> None:
    show_one(found, output, _COLUMNS, lambda r: str(r.id))


@reservation.command("list")
@click.argument("namespace")
@output_option(*LISTS)
def list_reservations(context: Context, namespace: str, output: str) -> None:
    """List a namespace's reservations, newest first."""
    found = list(timekeeper(context).reservations(namespace))
    show_list(found, output, _COLUMNS, lambda r: str(r.id))


@reservation.command("show")
@_one_reservation
@output_option(*LISTS)
def show_reservation(context: Context, namespace: str, number: int, output: str) -> None:
    """Show one reservation."""
    _show(timekeeper(context).reservation(namespace, number), output)


@reservation.command("open")
@click.argument("namespace")
@amount_argument
@click.option("--until", required=True, help=f"When it expires. {HELP}")
@change_options("set aside on the command line")
def open_reservation(
    context: Context, namespace: str, amount: int, until: str, reason: str, key: str, output: str
) -> None:
    """Reserve AMOUNT (for example 2h) of NAMESPACE's GPU time. The namespace must have `enforcement: safe`."""
    client = timekeeper(context)
    expires_at = instant_of(until, zone_of(client, Budget, namespace))
    _show(client.open_reservation(namespace, amount, expires_at, reason, key), output)


@reservation.command("cancel")
@_one_reservation
@change_options("cancelled on the command line")
def cancel_reservation(context: Context, namespace: str, number: int, reason: str, key: str, output: str) -> None:
    """Release a reservation that was opened by hand. A pod's reservation ends with the pod."""
    _show(timekeeper(context).cancel_reservation(namespace, number, reason, key), output)
