# SPDX-License-Identifier: Apache-2.0
"""Options and columns that the commands of budgets share, whoever has the budget."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, Final, TypeVar

import click

from slicekeeper.cli.main import Context
from slicekeeper.cli.output import output_option
from slicekeeper.timekeeper_client import TimekeeperClient
from slicekeeper.units import format_duration, parse_duration
from slicekeeper.wire.timekeeper import Figures

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


def booking_options(reason: str) -> Callable[[F], F]:
    """Return the options of every command that books GPU time: why, by which key it can be repeated, `-o`."""
    key = click.option(
        "--key",
        default=lambda: uuid.uuid4().hex,
        help="Idempotency key: repeating the command with it books nothing more.",
    )

    def add(command: F) -> F:
        whole: F = reason_option(reason)(key(output_option()(command)))
        return whole

    return add


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
