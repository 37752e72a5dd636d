# SPDX-License-Identifier: Apache-2.0
"""Read namespaces' budgets in the timekeeper: one or all, live, by use, booking by booking; and rates."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from typing import Any

import click

from slicekeeper.cli.budget_options import change_options, reason_option, show_budget, uid_option, zone_of
from slicekeeper.cli.connection import timekeeper
from slicekeeper.cli.date_options import HELP, instant_of
from slicekeeper.cli.main import Context
from slicekeeper.cli.namespaces import METAVAR, SEVERAL, current, known_namespaces, namespace_argument
from slicekeeper.cli.output import (
    LISTS,
    Column,
    gathered,
    instant_columns,
    output_option,
    rounded,
    rows_of,
    show_list,
    show_one,
)
from slicekeeper.cli.record_words import detail_in_words, names_of, subject_in_words
from slicekeeper.errors import NotFound
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Budget

_Columns = Sequence[Column[Budget]]
_Record = dict[str, Any]


def add_records(group: click.Group, columns: _Columns) -> None:
    """Add the commands to the group of namespaces' budgets, which are shown in `columns`."""
    _add_get(group, columns)
    _add_live(group, columns)
    _add_explain(group)
    _add_periods(group)
    _add_lists(group)
    _add_rates(group)


def _add_get(group: click.Group, columns: _Columns) -> None:
    @group.command("get")
    @click.argument("names", metavar=SEVERAL, nargs=-1, shell_complete=known_namespaces)
    @click.option("-A", "--all-namespaces", "every", is_flag=True, help="All namespaces that have budgets.")
    @uid_option
    @output_option(*LISTS)
    def get(context: Context, names: tuple[str, ...], every: bool, uid: str, output: str) -> None:
        """Show the budgets of one or several namespaces.

        By default, of the namespace of the kubeconfig's context.
        """
        client = timekeeper(context)
        if every:
            show_list(gathered(client.budgets(Budget), "budgets"), output, columns, _name)
            return
        found = [client.budget(Budget, name, uid) for name in names or (current(context),)]
        if len(found) == 1:
            show_budget(found[0], output, columns)
        else:
            show_list(found, output, columns, _name)


def _name(budget: Budget) -> str:
    return budget.namespace


def _add_live(group: click.Group, columns: _Columns) -> None:
    @group.command("top")
    @click.option("--most", type=click.IntRange(min=1), default=20, show_default=True, help="How many namespaces.")
    @output_option(*LISTS)
    def top(context: Context, most: int, output: str) -> None:
        """Show the namespaces that have used most GPU time.

        Counted is their current period, in budget and over it.
        """
        used = sorted(timekeeper(context).budgets(Budget), key=lambda b: b.used_ms + b.over_budget_ms, reverse=True)
        narrow: list[Column[Budget]] = [
            *columns[:2],
            Column("USED", lambda b: rounded(b.used_ms)),
            Column("OVER-BUDGET", lambda b: rounded(b.over_budget_ms)),
            Column("OF-ALL", lambda b: f"{100 * (b.used_ms + b.over_budget_ms) / whole:.1f}%"),
            Column("LEFT", lambda b: rounded(b.balance_ms)),
        ]
        whole = sum(b.used_ms + b.over_budget_ms for b in used) or 1
        show_list(used[:most], output, narrow, _name)

    @group.command("watch")
    @namespace_argument
    @click.option(
        "--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds between looks."
    )
    @uid_option
    @click.pass_obj
    def watch(context: Context, name: str, interval: float, uid: str) -> None:
        """Show a budget, and again whenever it changes."""
        client, last, before = timekeeper(context), "", None
        with suppress(KeyboardInterrupt):
            while True:
                found = client.budget(Budget, name, uid)
                lines = rows_of([found], "table", columns).splitlines()
                if before is None or found.state != before.state:
                    click.echo(lines[0])
                if lines[1] != last:
                    click.echo(lines[1])
                last, before = lines[1], found
                time.sleep(interval)


def _add_explain(group: click.Group) -> None:
    @group.command("explain")
    @namespace_argument
    @uid_option
    @output_option(*LISTS)
    def explain(context: Context, name: str, uid: str, output: str) -> None:
        """Explain a budget: each booking, and the balance after it."""
        client = timekeeper(context)
        budget = client.budget(Budget, name, uid)
        entries: list[_Record] = []
        with suppress(NotFound):  # nothing is booked yet in a namespace that is there
            entries = gathered(client.records("budgets", name, "entries", query=_which(uid)), "bookings")
        balances: dict[str, int] = {}
        for entry in entries:
            balances[entry["account"]] = balances.get(entry["account"], 0) + entry["amountMs"]
            entry["balanceMs"] = balances[entry["account"]]
        pods: dict[str, str] = {}
        if output in ("table", "wide"):
            click.echo(_why(client, budget))
            pods = _pods(client, name, uid, (e["subject"] for e in entries if ":" not in e["subject"]))
        columns: list[Column[_Record]] = [
            *_at("effectiveAt", "AT"),
            Column("TRANSACTION", lambda e: e["transaction"], wide=True),
            Column("KIND", lambda e: e["kind"]),
            Column("ACCOUNT", lambda e: e["account"]),
            *_amount("amountMs", "GPU-TIME"),
            *_amount("balanceMs", "BALANCE"),
            Column("OF", lambda e: subject_in_words(e["subject"], pods), narrow=True),
            Column("OF", lambda e: pods.get(e["subject"]) or e["subject"], wide=True),
            Column("SUBJECT", lambda e: e["subject"], wide=True),
        ]
        show_list(entries, output, columns, lambda e: str(e["id"]))


def _pods(client: TimekeeperClient, namespace: str, uid: str, uids: Iterable[str]) -> dict[str, str]:
    """Return the names of pods by UID, as far as the ledger has them."""
    return names_of(uids, ((one.pod_uid, one.pod_name) for one in client.workloads(namespace, uid)))


def _why(client: TimekeeperClient, budget: Budget) -> str:
    rest = "nothing" if budget.state == "exhausted" else format_duration(budget.balance_ms)
    left = f"{budget.namespace}: {budget.state}, {rest} left"
    parts = [f"{left} of {format_duration(budget.to_spend_ms)} to spend in this period"]
    if budget.to_spend_ms != budget.amount_ms:
        moved = [("amount", budget.amount_ms), ("granted", budget.granted_ms), ("withdrawn", budget.withdrawn_ms)]
        parts.append(", ".join(f"{what} {format_duration(ms)}" for what, ms in moved if ms))
    parts += [f"runs out at {budget.run_out_at} at the current rate"] if budget.run_out_at else []
    if budget.bound_by:
        parts.append(f"limited by the budget of {budget.bound_by}, above it")
    if not budget.gone:
        with suppress(NotFound):  # a namespace that has no account yet has no decision
            parts += [reason] if (reason := client.decision(budget.namespace).reason) else []
    return "\n".join([*parts, ""])


def _add_periods(group: click.Group) -> None:
    @group.command("periods")
    @namespace_argument
    @uid_option
    @output_option(*LISTS)
    def periods(context: Context, name: str, uid: str, output: str) -> None:
        """List a budget's periods, newest first.

        STATE says whether they are sealed.
        """
        _show_periods(timekeeper(context), name, uid, output)

    @group.command("seal")
    @click.argument("name", metavar="NAMESPACE")
    @click.argument("until")
    @reason_option("sealed on the command line")
    @uid_option
    @output_option(*LISTS)
    def seal(context: Context, name: str, until: str, reason: str, uid: str, output: str) -> None:
        """Seal the periods of NAMESPACE that have ended by UNTIL.

        UNTIL is the end of a period. What is sealed stays so.
        """
        client = timekeeper(context)
        client.seal(name, instant_of(until, zone_of(client, Budget, name, uid)), reason, uid)
        _show_periods(client, name, uid, output)


def _which(uid: str) -> dict[str, str]:
    return {"uid": uid} if uid else {}


def _show_periods(client: TimekeeperClient, name: str, uid: str, output: str) -> None:
    client.budget(Budget, name, uid)
    found: list[_Record] = []
    with suppress(NotFound):  # it is there, but has no periods yet
        found = gathered(client.records("budgets", name, "periods", query=_which(uid)), "periods")
    columns: list[Column[_Record]] = [
        *_at("start", "START"),
        *_at("end", "END"),
        Column("STATE", lambda p: p["state"]),
        *_amount("grantedMs", "GRANTED"),
        *_amount("chargedMs", "CHARGED"),
        *_amount("overBudgetMs", "OVER-BUDGET"),
        Column("EXPIRED", lambda p: format_duration(p["expiredMs"]), wide=True),
        Column("CORRECTIONS", lambda p: p["corrections"], wide=True),
    ]
    show_list(found, output, columns, lambda p: str(p["start"]))


def _add_lists(group: click.Group) -> None:
    @group.command("usage")
    @click.argument("name", metavar=METAVAR, required=False, shell_complete=known_namespaces)
    @click.option("--by", type=click.Choice(["workload", "model", "namespace"]), default="workload", show_default=True)
    @click.option("--bucket", type=click.Choice(["hour", "day", "month"]), default="day", show_default=True)
    @click.option("--from", "start", default="", help=f"Where it begins. Default: today. {HELP}")
    @click.option("--to", "end", default="", help="Where it ends; as --from.")
    @output_option(*LISTS)
    def usage(context: Context, name: str | None, by: str, bucket: str, start: str, end: str, output: str) -> None:
        """Show how much GPU time was held, used and not observed.

        Of NAMESPACE, by default that of the kubeconfig's context; with `--by namespace`, of all namespaces.
        """
        client = timekeeper(context)
        name = name or ("" if by == "namespace" else current(context))
        zone = client.budget(Budget, name).time_zone if name else "UTC"
        asked = {"groupBy": by, "bucket": bucket, "timeZone": zone, **({"namespace": name} if name else {})}
        asked |= {key: instant_of(at, lambda: zone) for key, at in (("from", start), ("to", end)) if at}
        found = gathered(client.records("usage", query=asked), "buckets")
        pods = _pods(client, name, "", (u["group"] for u in found)) if by == "workload" else {}
        columns: list[Column[_Record]] = [
            *_at("start", "FROM"),
            Column(
                "POD" if by == "workload" else by.upper(), lambda u: pods.get(u["group"]) or u["group"] or "(unknown)"
            ),
            *([Column[_Record]("POD-UID", lambda u: u["group"], wide=True)] if by == "workload" else []),
            *_amount("allocatedMs", "HELD"),
            *_amount("usedMs", "USED"),
            *_amount("unobservedMs", "UNOBSERVED"),
            Column("PODS", lambda u: u["workloads"], wide=True),
        ]
        show_list(found, output, columns, lambda u: str(u["group"]))

    @group.command("audit")
    @click.argument("name", metavar=METAVAR, required=False, shell_complete=known_namespaces)
    @uid_option
    @output_option(*LISTS)
    def audit(context: Context, name: str | None, uid: str, output: str) -> None:
        """Show who changed which budget and why, oldest first."""
        asked = {key: value for key, value in (("namespace", name), ("uid", uid)) if value}
        columns: list[Column[_Record]] = [
            *_at("at", "AT"),
            Column("WHO", lambda e: e["actor"]),
            Column("ACTION", lambda e: e["action"]),
            Column("NAMESPACE", lambda e: e["namespace"] or "-"),
            Column("DETAIL", lambda e: detail_in_words(e["detail"]), narrow=True),
            Column("DETAIL", lambda e: ", ".join(f"{key}: {value}" for key, value in e["detail"].items()), wide=True),
        ]
        entries = gathered(timekeeper(context).records("audit", query=asked), "entries")
        show_list(entries, output, columns, lambda e: str(e["id"]))


def _add_rates(group: click.Group) -> None:
    @group.command("rates")
    @click.argument("model", required=False)
    @click.argument("rate", required=False)
    @click.option("--from", "start", default="", help="From when on. Default: now. RFC 3339, or a date in UTC.")
    @change_options("set on the command line")
    def rates(
        context: Context, model: str | None, rate: str | None, start: str, reason: str, key: str, output: str
    ) -> None:
        """List the rates of GPU models, or set one.

        RATE is an integer or a ratio such as 3/2.
        """
        client = timekeeper(context)
        columns: list[Column[_Record]] = [
            *_at("effectiveAt", "FROM"),
            Column("MODEL", lambda r: r["model"]),
            Column("RATE", lambda r: r["rate"]),
            Column("BY", lambda r: r["source"]),
        ]
        if model and rate:
            since = instant_of(start, lambda: "UTC") if start else None
            made = client.set_rate(model, rate, reason, since, key)
            show_one(made, output, columns, lambda r: str(r["model"]))
            _warn(made)
            return
        if start:
            raise click.UsageError("--from is for a rate that is set: give a MODEL and a RATE")
        found = gathered(client.records("rates", query={"model": model} if model else {}), "rates")
        show_list(found, output, columns, lambda r: str(r["model"]))
        _warn(*found)


def _warn(*rates: _Record) -> None:
    """Print once each that models of some rates are of no GPU."""
    for warning in dict.fromkeys(rate.get("warning") for rate in rates):
        if warning:
            click.echo(f"warning: {warning}", err=True)


def _at(key: str, head: str) -> list[Column[_Record]]:
    return instant_columns(head, lambda record: record[key])


def _amount(key: str, head: str) -> list[Column[_Record]]:
    def cell(record: _Record, text: Any) -> str:
        return "-" if record[key] is None else str(text(record[key]))

    return [
        Column(head, lambda r: cell(r, rounded), narrow=True),
        Column(head, lambda r: cell(r, format_duration), wide=True),
    ]
