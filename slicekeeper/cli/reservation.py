# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper reservation`: GPU time that is set aside in a `safe` namespace, for pods and by hand."""

from __future__ import annotations

import click

from slicekeeper.cli.main import Context
from slicekeeper.cli.options import GpuTime, booking_options, client_of
from slicekeeper.cli.output import output_option, show, table
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Reservation


@click.group()
def reservation() -> None:
    """Show, open and cancel reservations of GPU time."""


def _table(reservations: list[Reservation]) -> str:
    return table(
        ("ID", "STATE", "AMOUNT", "HELD", "POD", "OPENED", "EXPIRES", "ENDED", "BY"),
        [
            (
                r.id,
                r.state,
                format_duration(r.amount_ms),
                format_duration(r.held_ms),
                r.pod_name or "-",
                r.opened_at,
                r.expires_at or "-",
                r.ended_at or "-",
                r.actor,
            )
            for r in reservations
        ],
    )


@reservation.command("list")
@click.argument("namespace")
@output_option()
@click.pass_obj
def list_reservations(context: Context, namespace: str, output: str) -> None:
    """List a namespace's reservations, newest first."""
    found = list(client_of(context).reservations(namespace))
    show(found, output, lambda: _table(found))


@reservation.command("show")
@click.argument("namespace")
@click.argument("key", metavar="ID", type=int)
@output_option()
@click.pass_obj
def show_reservation(context: Context, namespace: str, key: int, output: str) -> None:
    """Show one reservation."""
    found = client_of(context).reservation(namespace, key)
    show(found, output, lambda: _table([found]))


@reservation.command("open")
@click.argument("namespace")
@click.argument("amount", type=GpuTime())
@click.option("--until", required=True, help="When it expires, RFC 3339; for example 2026-11-30T12:00:00Z.")
@booking_options("set aside on the command line")
@click.pass_obj
def open_reservation(
    context: Context, namespace: str, amount: int, until: str, reason: str, key: str, output: str
) -> None:
    """Set AMOUNT (for example 2h) of NAMESPACE's GPU time aside. The namespace must be enforced `safe`."""
    made = client_of(context).open_reservation(namespace, amount, until, reason, key)
    show(made, output, lambda: _table([made]))


@reservation.command("cancel")
@click.argument("namespace")
@click.argument("key", metavar="ID", type=int)
@output_option()
@click.pass_obj
def cancel_reservation(context: Context, namespace: str, key: int, output: str) -> None:
    """Give back what was set aside by hand. A pod's reservation ends with the pod."""
    ended = client_of(context).cancel_reservation(namespace, key)
    show(ended, output, lambda: _table([ended]))
