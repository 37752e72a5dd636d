# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper budget`: read and change namespaces' budgets through the timekeeper."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from slicekeeper.cli.budget_and_parent import add_commands
from slicekeeper.cli.budget_files import changes
from slicekeeper.cli.budget_options import (
    GpuTime,
    book,
    change_options,
    figure_columns,
    rule_of,
    rule_options,
    show_budget,
    uid_option,
    zone_of,
)
from slicekeeper.cli.budget_reports import add_records
from slicekeeper.cli.connection import timekeeper
from slicekeeper.cli.date_options import instant_of
from slicekeeper.cli.file_option import files_option
from slicekeeper.cli.main import Context
from slicekeeper.cli.namespaces import METAVAR, BudgetGroup, namespace_argument
from slicekeeper.cli.output import LISTS, Column, gathered, instant_columns, output_option, show_list
from slicekeeper.cli.told_errors import in_words
from slicekeeper.errors import ServiceError
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.wire.timekeeper import Budget, IntervalCorrection

_COLUMNS: list[Column[Budget]] = [
    Column("NAMESPACE", lambda b: f"{b.namespace} (gone)" if b.gone else b.namespace),
    *figure_columns(Budget),
    Column("UNDER", lambda b: b.parent or "-", wide=True),
    Column("BOUND-BY", lambda b: b.bound_by or "-", wide=True),
    Column("GONE", lambda b: f"--uid {b.uid}" if b.gone else "-", wide=True),
]


@click.group(cls=BudgetGroup)
def budget() -> None:
    """Show and change budgets."""


@budget.command("set")
@click.argument("namespace", metavar=METAVAR, required=False)
@click.argument("amount", type=GpuTime(), required=False)
@files_option(
    "--file",
    help="Budgets in the format of `get -o yaml`, or a folder of such files; unchanged budgets are left alone.",
)
@rule_options
@change_options("set on the command line")
def set_budget(
    context: Context,
    /,
    namespace: str | None,
    amount: int | None,
    files: tuple[Path, ...],
    reason: str,
    key: str,
    output: str,
    **rule: Any,
) -> None:
    """Set the budget of NAMESPACE to AMOUNT (for example 20h).

    That is per period. -f sets several budgets from files. Options that are omitted keep their values, and what the
    current period has used still counts.
    """
    client = timekeeper(context)
    if files:
        if namespace or amount is not None or any(rule.values()):
            raise click.UsageError("-f files name the namespaces and their budgets: leave out the other arguments")
        changed = changes(client, files)
        if not changed and output in ("table", "wide"):
            click.echo("nothing to change: the budgets are as the files say")
            return
        each = (_changed(client, name, rule, reason, key) for name, rule in changed)
        show_list(gathered(each, "budgets set"), output, _COLUMNS, lambda b: b.namespace)
        return
    if not namespace:
        raise click.UsageError("give a NAMESPACE, or files with -f")
    show_budget(client.change_budget(Budget, namespace, rule_of(amount, **rule), reason, key), output, _COLUMNS)


def _changed(client: TimekeeperClient, namespace: str, rule: dict[str, object], reason: str, key: str) -> Budget:
    """Change one of several budgets; an error names its namespace."""
    try:
        return client.change_budget(Budget, namespace, rule, reason, key)
    except ServiceError as error:
        text = f"namespace {namespace}: {in_words(str(error), {}, {})}"
        raise type(error)(text, error.status, error.reason) from error


@budget.command("unset")
@click.argument("namespace", metavar="NAMESPACE")
@change_options("unset on the command line")
def unset(context: Context, namespace: str, reason: str, key: str, output: str) -> None:
    """Reset the budget of NAMESPACE to the policy's.

    What the current period has used still counts.
    """
    show_budget(timekeeper(context).unset_budget(namespace, reason, key), output, _COLUMNS)


@budget.command("correct")
@click.argument("namespace", metavar="NAMESPACE")
@click.argument("pod_uid")
@click.option("--start", default=None, help="When the pod really began to hold its GPUs (RFC 3339).")
@click.option("--end", default=None, help="When it really ended (RFC 3339); not for a running pod.")
@uid_option
@change_options("corrected on the command line")
def correct(
    context: Context, namespace: str, pod_uid: str, start: str | None, end: str | None, uid: str, **booking: str
) -> None:
    """Correct when a pod held its GPUs, and so its charge.

    The charge of the pod POD_UID is reversed, and booked again for the corrected interval.
    """
    zone = zone_of(timekeeper(context), Budget, namespace, uid)
    edges = {name: instant_of(at, zone) if at else None for name, at in (("start", start), ("end", end))}
    book(context, Budget, namespace, "intervals", {"podUid": pod_uid, **edges}, _COLUMNS, uid=uid, **booking)


@budget.command("corrections")
@namespace_argument
@uid_option
@output_option(*LISTS)
def corrections(context: Context, name: str, uid: str, output: str) -> None:
    """List the corrected intervals of pods, newest first."""
    found = list(timekeeper(context).corrections(name, uid))
    columns: list[Column[IntervalCorrection]] = [
        Column("ID", lambda c: c.id),
        Column("POD-UID", lambda c: c.pod_uid),
        *instant_columns("START", lambda c: c.start),
        *instant_columns("END", lambda c: c.end),
        Column("START-BEFORE", lambda c: c.start_before, wide=True),
        Column("END-BEFORE", lambda c: c.end_before or "-", wide=True),
        Column("BY", lambda c: c.actor, wide=True),
        Column("REASON", lambda c: c.reason),
    ]
    show_list(found, output, columns, lambda c: str(c.id))


add_commands(budget, Budget, _COLUMNS)
add_records(budget, _COLUMNS)
