# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper budget`: read and change namespaces' budgets through the timekeeper."""

from __future__ import annotations

import uuid

import click

from slicekeeper.cli.main import Context
from slicekeeper.cli.output import output_option, show, table
from slicekeeper.timekeeper_client import TimekeeperClient
from slicekeeper.units import format_duration, parse_duration
from slicekeeper.wire.timekeeper import Budget


class GpuTime(click.ParamType[int]):
    """An amount of GPU time on the command line."""

    name = "gpu-time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds."""
        try:
            return parse_duration(str(value))
        except ValueError:
            self.fail(f"{value!r} is no amount of GPU time; for example 20h, 90m or 1h30m", param, ctx)


@click.group()
def budget() -> None:
    """Show and change budgets."""


def _client(context: Context) -> TimekeeperClient:
    return TimekeeperClient(context.loaded.settings.timekeeper_client)


def _table(budgets: list[Budget]) -> str:
    return table(
        ("NAMESPACE", "STATE", "AMOUNT", "PERIOD", "GRANTED", "USED", "LEFT", "RESERVED", "OVER-BUDGET", "RUNS-OUT"),
        [
            (
                b.namespace,
                b.state,
                format_duration(b.amount_ms),
                b.period,
                format_duration(b.granted_ms),
                format_duration(b.used_ms),
                format_duration(b.balance_ms),
                format_duration(b.reserved_ms),
                format_duration(b.over_budget_ms),
                b.run_out_at or "-",
            )
            for b in budgets
        ],
    )


@budget.command("list")
@output_option()
@click.pass_obj
def list_budgets(context: Context, output: str) -> None:
    """List all namespaces' budgets."""
    budgets = list(_client(context).budgets())
    show(budgets, output, lambda: _table(budgets))


@budget.command("get")
@click.argument("namespace")
@output_option()
@click.pass_obj
def get_budget(context: Context, namespace: str, output: str) -> None:
    """Show one namespace's budget."""
    found = _client(context).budget(namespace)
    show(found, output, lambda: _table([found]))


@budget.command("set")
@click.argument("namespace")
@click.argument("amount", type=GpuTime())
@click.option(
    "--period",
    type=click.Choice(["none", "hour", "day", "week", "month"]),
    default="month",
    show_default=True,
)
@click.option("--time-zone", default="UTC", show_default=True, help="IANA name of the zone in which periods begin.")
@output_option()
@click.pass_obj
def set_budget(context: Context, namespace: str, amount: int, period: str, time_zone: str, output: str) -> None:
    """Give NAMESPACE a budget of AMOUNT (for example 20h) per period."""
    changed = _client(context).set_budget(namespace, amount, period, time_zone)
    show(changed, output, lambda: _table([changed]))


@budget.command("grant")
@click.argument("namespace")
@click.argument("amount", type=GpuTime())
@click.option("--reason", default="granted on the command line", show_default=True, help="Why; kept in the ledger.")
@click.option("--key", default="", help="Idempotency key: repeating the command with it books nothing more.")
@output_option()
@click.pass_obj
def grant(context: Context, namespace: str, amount: int, reason: str, key: str, output: str) -> None:
    """Book a grant of AMOUNT (for example 2h) for NAMESPACE, beside its budget."""
    changed = _client(context).grant(namespace, amount, reason, key or uuid.uuid4().hex)
    show(changed, output, lambda: _table([changed]))
