# SPDX-License-Identifier: Apache-2.0
"""Options and columns that the commands for the budgets of namespaces, teams and organisations share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

import click

from slicekeeper.cli.connection import timekeeper
from slicekeeper.cli.main import Context
from slicekeeper.cli.namespaces import namespace_argument
from slicekeeper.cli.output import LISTS, Column, brief, output_option, rounded, show_one
from slicekeeper.config.policy import MAX_AMOUNT_MS
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.units import MS_PER_HOUR, format_duration, parse_duration
from slicekeeper.wire.timekeeper import Budget, Parent

F = TypeVar("F", bound=Callable[..., Any])
B = TypeVar("B", Budget, Parent)
PERIODS: Final = ("none", "hour", "day", "week", "month", "year")


class GpuTime(click.ParamType[int]):
    """An amount of GPU time on the command line."""

    name = "gpu-time"

    def __init__(self, *, least: int = 0) -> None:
        self._least = least

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Return milliseconds."""
        if str(value).startswith("-"):
            self.fail(f"{value!r} is negative; for example 20h, 90m or 1h30m", param, ctx)
        try:
            amount = parse_duration(str(value))
        except ValueError:
            self.fail(f"{value!r} is not an amount of GPU time; for example 20h, 90m or 1h30m", param, ctx)
        if not self._least <= amount <= MAX_AMOUNT_MS:
            most = format_duration(MAX_AMOUNT_MS // MS_PER_HOUR * MS_PER_HOUR)
            self.fail(f"{value!r} is out of range; use {format_duration(self._least)} to {most}", param, ctx)
        return amount


amount_argument = click.argument("amount", type=GpuTime(least=1))


def reason_option(default: str) -> Callable[[F], F]:
    """Return the option that says why something is done."""
    return click.option("--reason", default=default, show_default=True, help="Why; kept in the ledger.")


def change_options(reason: str) -> Callable[[F], F]:
    """Return the options of every command that changes the ledger: why, the key by which it can be repeated, `-o`."""
    key = click.option(
        "--key",
        default=lambda: uuid.uuid4().hex,
        help="Idempotency key: repeating the command with the same key changes nothing more.",
    )
    return lambda command: reason_option(reason)(key(output_option(*LISTS)(command)))


def rule_options(command: F) -> F:
    """Add the options of a budget's rule, as `rule_of` takes them."""
    for option in (
        click.option(
            "--new-period", is_flag=True, help="Begin a new period now: what the current one has used does not count."
        ),
        click.option("--anchor", help="An instant (RFC 3339) at which a period begins; `none`: as in the calendar."),
        click.option(
            "--rollover", type=GpuTime(), help="How much unused time at most carries over to the next period."
        ),
        click.option("--credit", type=GpuTime(), help="How far the balance may go below zero."),
        click.option("--time-zone", help="IANA name of the zone."),
        click.option("--period", type=click.Choice(PERIODS), help="How long a period is."),
    ):
        command = option(command)
    return command


def rule_of(
    amount: int | None,
    *,
    period: str | None,
    time_zone: str | None,
    credit: int | None,
    rollover: int | None,
    anchor: str | None,
    new_period: bool,
) -> dict[str, object]:
    """Return the given fields of a budget's rule, in the form of the wire.

    Raises UsageError if nothing was.
    """
    named = {
        "amountMs": amount,
        "period": period,
        "timeZone": time_zone,
        "creditMs": credit,
        "rolloverMs": rollover,
        "anchor": anchor,
    }
    found: dict[str, object] = {name: value for name, value in named.items() if value is not None}
    if anchor is not None and anchor.lower() == "none":
        found["anchor"] = None
    if new_period:
        found["newPeriod"] = True
    if not found:
        raise click.UsageError("say what to change: AMOUNT, for example 25h, or one of the options")
    return found


def figure_columns(kind: type[B]) -> list[Column[B]]:
    """Return the columns that every budget has."""
    exact = format_duration
    return [
        Column("STATE", lambda b: b.state),
        Column("AMOUNT", lambda b: f"{rounded(b.amount_ms)}/{b.period}".removesuffix("/none"), narrow=True),
        Column("AMOUNT", lambda b: exact(b.amount_ms), wide=True),
        Column("PERIOD", lambda b: b.period, wide=True),
        Column("GRANTED", lambda b: exact(b.granted_ms), wide=True),
        Column("WITHDRAWN", lambda b: exact(b.withdrawn_ms), wide=True),
        Column("TO-SPEND", lambda b: rounded(b.to_spend_ms), narrow=True),
        Column("TO-SPEND", lambda b: exact(b.to_spend_ms), wide=True),
        Column("USED", lambda b: rounded(b.used_ms), narrow=True),
        Column("USED", lambda b: exact(b.used_ms), wide=True),
        Column("LEFT", lambda b: rounded(b.balance_ms), narrow=True),
        Column("LEFT", lambda b: exact(b.balance_ms), wide=True),
        Column("RESERVED", lambda b: exact(b.reserved_ms), wide=True),
        Column("OVER-BUDGET", lambda b: exact(b.over_budget_ms), wide=True),
        Column("RUN-OUT", lambda b: brief(b.run_out_at), narrow=kind is Budget, wide=kind is not Budget),
        Column("RUN-OUT-AT", lambda b: b.run_out_at or "-", wide=True),
    ]


def book(
    context: Context,
    kind: type[B],
    name: str,
    movement: str,
    body: Mapping[str, object],
    columns: Sequence[Column[B]],
    *,
    reason: str,
    key: str,
    output: str,
    uid: str = "",
) -> None:
    """Move GPU time as the `change_options` of a command say, and print the budget."""
    changed = timekeeper(context).move_time(kind, name, movement, {**body, "reason": reason}, key, uid)
    show_budget(changed, output, columns)


def uid_option(command: F) -> F:
    """Add the option that distinguishes namespaces that had the same name, one after the other."""
    text = "UID of the namespace, if the name was used before; `list -o wide` shows it. Default: the existing one."
    return click.option("--uid", default="", help=text)(command)


def owner_argument(kind: type[B], *, optional: bool = False, uid: bool = False) -> Callable[[F], F]:
    """Return the argument `name`, of the namespace, team or organisation that a command is about.

    `optional` and `uid` have an effect on namespaces alone: no kubeconfig has a default for the others, and their names
    are never used again.
    """
    if kind is not Budget:
        return click.argument("name", metavar="NAME")
    argument: Callable[[F], F] = namespace_argument if optional else click.argument("name", metavar="NAMESPACE")
    return (lambda command: argument(uid_option(command))) if uid else argument


def show_budget(found: B, output: str, columns: Sequence[Column[B]]) -> None:
    """Print one budget."""
    show_one(found, output, columns, name_of)


def name_of(budget: Budget | Parent) -> str:
    """Return the name of a budget's owner."""
    return budget.namespace if isinstance(budget, Budget) else budget.name


def zone_of(client: TimekeeperClient, kind: type[B], name: str, uid: str = "") -> Callable[[], str]:
    """Return a function that requests a budget's time zone: only plain dates need it."""
    return lambda: client.budget(kind, name, uid).time_zone
