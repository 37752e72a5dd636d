# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper budget`: read and change namespaces' budgets through the timekeeper."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from slicekeeper.cli.main import Context
from slicekeeper.cli.output import output_option, show, table
from slicekeeper.timekeeper_client import TimekeeperClient
from slicekeeper.units import format_duration, parse_duration
from slicekeeper.wire.timekeeper import Budget, Figures

F = TypeVar("F", bound=Callable[..., Any])
PERIODS: Final = ("none", "hour", "day", "week", "month", "year")


class GpuTime(click.ParamType[int]):
    """An amount of GPU time on the command line."""

    name = "gpu-time"

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds."""
        try:
            return parse_duration(str(value))
        except ValueError:
            self.fail(f"{value!r} is no amount of GPU time; for example 20h, 90m or 1h30m", param, ctx)


def client_of(context: Context) -> TimekeeperClient:
    """Return a client of the timekeeper that the settings name."""
    return TimekeeperClient(context.loaded.settings.timekeeper_client)


def reason_option(default: str) -> Callable[[F], F]:
    """Return the option that says why something is done."""
    return click.option("--reason", default=default, show_default=True, help="Why; kept in the ledger.")


def key_option(command: F) -> F:
    """Add the option by which a command can be repeated without harm."""
    return click.option("--key", default="", help="Idempotency key: repeating the command with it books nothing more.")(
        command
    )


def rule_options(command: F) -> F:
    """Add the options of a budget's rule, as `rule_of` takes them."""
    for option in (
        click.option("--anchor", default=None, help="An instant (RFC 3339) at which a period begins."),
        click.option("--rollover", type=GpuTime(), default="0s", help="The most that a period leaves to the next one."),
        click.option("--credit", type=GpuTime(), default="0s", help="How far the balance may go below zero."),
        click.option("--time-zone", default="UTC", show_default=True, help="IANA name of the zone."),
        click.option("--period", type=click.Choice(PERIODS), default="month", show_default=True),
    ):
        command = option(command)
    return command


def rule_of(
    amount: int, *, period: str, time_zone: str, credit: int, rollover: int, anchor: str | None
) -> dict[str, object]:
    """Return a budget's rule as it goes over the wire."""
    return {
        "amountMs": amount, "period": period, "timeZone": time_zone, "creditMs": credit, "rolloverMs": rollover,
        "anchor": anchor,
    }  # fmt: skip


FIGURES: Final = ("STATE", "AMOUNT", "PERIOD", "GRANTED", "USED", "LEFT", "RESERVED")


def figures_of(found: Figures) -> tuple[str, ...]:
    """Return what stands under `FIGURES` in a table."""
    return (
        found.state,
        format_duration(found.amount_ms),
        found.period,
        *map(format_duration, (found.granted_ms, found.used_ms, found.balance_ms, found.reserved_ms)),
    )


@click.group()
def budget() -> None:
    """Show and change budgets."""


def _table(budgets: list[Budget]) -> str:
    return table(
        ("NAMESPACE", *FIGURES, "OVER-BUDGET", "RUNS-OUT"),
        [(b.namespace, *figures_of(b), format_duration(b.over_budget_ms), b.run_out_at or "-") for b in budgets],
    )


@budget.command("list")
@output_option()
@click.pass_obj
def list_budgets(context: Context, output: str) -> None:
    """List all namespaces' budgets."""
    budgets = list(client_of(context).budgets())
    show(budgets, output, lambda: _table(budgets))


@budget.command("get")
@click.argument("namespace")
@output_option()
@click.pass_obj
def get_budget(context: Context, namespace: str, output: str) -> None:
    """Show one namespace's budget."""
    found = client_of(context).budget(namespace)
    show(found, output, lambda: _table([found]))


@budget.command("set")
@click.argument("namespace")
@click.argument("amount", type=GpuTime())
@rule_options
@output_option()
@click.pass_obj
def set_budget(context: Context, /, namespace: str, amount: int, output: str, **rule: Any) -> None:
    """Give NAMESPACE a budget of AMOUNT (for example 20h) per period."""
    changed = client_of(context).set_budget(namespace, rule_of(amount, **rule))
    show(changed, output, lambda: _table([changed]))


@budget.command("move")
@click.argument("namespace")
@click.argument("parent", required=False)
@reason_option("moved on the command line")
@output_option()
@click.pass_obj
def move(context: Context, namespace: str, parent: str | None, reason: str, output: str) -> None:
    """Put NAMESPACE under the team or organisation PARENT from now on; without PARENT under none."""
    changed = client_of(context).put_under(namespace, parent, reason)
    show(changed, output, lambda: _table([changed]))


@budget.command("grant")
@click.argument("namespace")
@click.argument("amount", type=GpuTime())
@reason_option("granted on the command line")
@key_option
@output_option()
@click.pass_obj
def grant(context: Context, namespace: str, amount: int, reason: str, key: str, output: str) -> None:
    """Book a grant of AMOUNT (for example 2h) for NAMESPACE, beside its budget."""
    changed = client_of(context).grant(namespace, amount, reason, key or uuid.uuid4().hex)
    show(changed, output, lambda: _table([changed]))
