# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper budget`: read and change namespaces' budgets through the timekeeper."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import click

from slicekeeper.cli.accounts import add_commands, uid_option
from slicekeeper.cli.main import Context
from slicekeeper.cli.options import (
    FIGURES,
    GpuTime,
    booking_options,
    client_of,
    figures_of,
    rule_of,
    rule_options,
)
from slicekeeper.cli.output import output_option, show, table
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Budget


@click.group()
def budget() -> None:
    """Show and change budgets."""


def _table(budgets: Sequence[Budget]) -> str:
    return table(
        ("NAMESPACE", *FIGURES, "OVER-BUDGET", "RUNS-OUT", "GONE"),
        [
            (
                b.namespace,
                *figures_of(b),
                format_duration(b.over_budget_ms),
                b.run_out_at or "-",
                f"--uid {b.uid}" if b.gone else "-",
            )
            for b in budgets
        ],
    )


@budget.command("set")
@click.argument("namespace")
@click.argument("amount", type=GpuTime(), required=False)
@rule_options
@output_option()
@click.pass_obj
def set_budget(context: Context, /, namespace: str, amount: int | None, output: str, **rule: Any) -> None:
    """Give NAMESPACE a budget of AMOUNT (for example 20h) per period.

    What is not named stays as it is, and what the running period has used counts on.
    """
    changed = client_of(context).change_budget(Budget, namespace, rule_of(amount, **rule))
    show(changed, output, lambda: _table([changed]))


@budget.command("refund")
@click.argument("namespace")
@click.argument("amount", type=GpuTime())
@click.argument("pod_uid")
@uid_option
@booking_options("refunded on the command line")
@click.pass_obj
def refund(
    context: Context, namespace: str, amount: int, pod_uid: str, uid: str, reason: str, key: str, output: str
) -> None:
    """Give AMOUNT back of what the ended pod POD_UID was charged; never more than that in all."""
    body = {"podUid": pod_uid, "amountMs": amount, "reason": reason}
    changed = client_of(context).move_time(Budget, namespace, "refunds", body, key, uid)
    show(changed, output, lambda: _table([changed]))


@budget.command("correct")
@click.argument("namespace")
@click.argument("pod_uid")
@click.option("--start", default=None, help="When the pod really began to hold its GPUs (RFC 3339).")
@click.option("--end", default=None, help="When it really ended (RFC 3339); not of a pod that runs.")
@uid_option
@booking_options("corrected on the command line")
@click.pass_obj
def correct(
    context: Context, namespace: str, pod_uid: str, start: str | None, end: str | None, uid: str, reason: str,
    key: str, output: str,
) -> None:  # fmt: skip
    """Put the interval of the pod POD_UID right: what it was charged, and owes, is reversed and booked anew."""
    body = {"podUid": pod_uid, "start": start, "end": end, "reason": reason}
    changed = client_of(context).move_time(Budget, namespace, "intervals", body, key, uid)
    show(changed, output, lambda: _table([changed]))


@budget.command("corrections")
@click.argument("namespace")
@uid_option
@output_option()
@click.pass_obj
def corrections(context: Context, namespace: str, uid: str, output: str) -> None:
    """List the intervals of NAMESPACE's pods that were put right, newest first."""
    found = list(client_of(context).corrections(namespace, uid))
    head = ("ID", "POD-UID", "START", "END", "START-BEFORE", "END-BEFORE", "BY", "REASON")
    rows = [
        (c.id, c.pod_uid, c.start, c.end or "-", c.start_before, c.end_before or "-", c.actor, c.reason) for c in found
    ]
    show(found, output, lambda: table(head, rows))


add_commands(budget, Budget, _table)
