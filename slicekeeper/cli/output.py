# SPDX-License-Identifier: Apache-2.0
"""Output formats: a table of 80 columns for people, `-o json`, `yaml`, `csv` and `name` for programs.

A table rounds amounts and omits columns; `-o wide` has all, and amounts to the millisecond.
"""

from __future__ import annotations

import csv
import io
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from textwrap import indent
from typing import Any, Final, Generic, TypeVar

import click
import msgspec
import yaml

from slicekeeper.units import MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND, parse_instant

T = TypeVar("T")
_AT_ONCE = 1000
_SHOWN_EACH: Final = 100
WIDTH: Final = 80
LISTS: Final = ("table", "wide", "json", "yaml", "csv", "name")
"""Formats for rows."""

_COLOURS: Final = {
    "ok": "green",
    "warning": "yellow",
    "overdraft": "yellow",
    "exhausted": "red",
    "suspended": "magenta",
}


@dataclass(frozen=True)
class Column(Generic[T]):
    """A column of a table; `wide` ones are shown by `-o wide` alone, `narrow` ones by anything else."""

    head: str
    cell: Callable[[T], object]
    wide: bool = False
    narrow: bool = False


def key_column(head: str, key: str, *, wide: bool = False) -> Column[dict[str, Any]]:
    """Return the column that shows one value of each row."""
    return Column(head, lambda row: row[key] or "-", wide=wide)


def output_option(*formats: str) -> Callable[[Callable[..., Any]], Any]:
    """Return the `-o` option, whose first format is the default; a command that prints also gets the `Context`."""
    choices = formats or ("table", "json", "yaml")
    option = click.option(
        "-o", "--output", type=click.Choice(choices), default=choices[0], show_default=True, help="Output format."
    )
    return lambda command: option(click.pass_obj(command))


def show(data: Any, output: str, table: Callable[[], str]) -> None:
    """Print `data` (anything that msgspec encodes) in the requested format."""
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2).decode())
    elif output == "yaml":
        click.echo(yaml.safe_dump(msgspec.to_builtins(data), sort_keys=False), nl=False)
    else:
        click.echo(table())


def show_list(items: Sequence[T], output: str, columns: Sequence[Column[T]], name: Callable[[T], str]) -> None:
    """Print rows in the requested format; `name` returns what `-o name` prints for one."""
    if output == "name":
        click.echo("".join(f"{name(item)}\n" for item in items), nl=False)
    elif output == "csv":
        click.echo(_csv([msgspec.to_builtins(item) for item in items]), nl=False)
    else:
        show(list(items), output, lambda: rows_of(items, output, columns))


def show_one(item: T, output: str, columns: Sequence[Column[T]], name: Callable[[T], str]) -> None:
    """Print one row: in JSON and YAML the row itself, otherwise a list of one."""
    if output in ("json", "yaml"):
        show(item, output, str)
    else:
        show_list([item], output, columns, name)


def rows_of(items: Sequence[T], output: str, columns: Sequence[Column[T]]) -> str:
    """Return the table, wide or not."""
    shown = [one for one in columns if not (one.narrow if output == "wide" else one.wide)]
    if not items:
        return "nothing found"
    rows = [[one.cell(item) for one in shown] for item in items]
    return table([one.head for one in shown], rows, width=0 if output == "wide" else WIDTH)


def _csv(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return ""
    out = io.StringIO()
    heads = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(out, heads, lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({key: _flat(value) for key, value in row.items()})
    return out.getvalue()


def _flat(value: object) -> object:
    """Return a cell of a CSV file; structured values become JSON."""
    return json.dumps(value) if isinstance(value, dict | list | bool) else value


def rounded(ms: int) -> str:
    """Return an amount of GPU time as its two largest units, cut: `41h20m`, `1500h`, `-3m5s`."""
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    hours, rest = divmod(ms, MS_PER_HOUR)
    minutes, rest = divmod(rest, MS_PER_MINUTE)
    seconds = rest // MS_PER_SECOND
    first, second = ((hours, "h"), (minutes, "m")) if hours else ((minutes, "m"), (seconds, "s"))
    small = f"{second[0]}{second[1]}" if second[0] and hours < 100 else ""
    return f"{sign}{first[0]}{first[1]}{small}" if first[0] else f"{sign if seconds else ''}{seconds}s"


def percent(value: float | None) -> str:
    """Return a share in percent; a dash if it is unknown."""
    return "-" if value is None else f"{value:g}%"


def memory(mib: int | None) -> str:
    """Return an amount of memory; a dash if it is unknown."""
    return "-" if mib is None else f"{mib}Mi"


def brief(instant: str | None) -> str:
    """Return an instant in UTC to the minute: `11-23 14:05`; of another year its date: `2027-01-31`."""
    if not instant:
        return "-"
    at = datetime.fromtimestamp(parse_instant(instant) / 1000, UTC)
    return f"{at:%m-%d %H:%M}" if at.year == datetime.now(UTC).year else f"{at:%Y-%m-%d}"


def gathered(found: Iterable[T], what: str) -> list[T]:
    """Return all items, and show on a terminal how many there are so far: reading from the network takes a while."""
    items: list[T] = []
    counted = False
    for item in found:
        items.append(item)
        if len(items) % _SHOWN_EACH == 0 and sys.stderr.isatty():
            click.echo(f"\r{len(items)} {what}…", err=True, nl=False)
            counted = True
    if counted:
        click.echo("\r\033[K", err=True, nl=False)
    return items


def instant_columns(head: str, instant: Callable[[T], str | None]) -> list[Column[T]]:
    """Return the columns of an instant: brief, and exact."""
    return [
        Column(head, lambda item: brief(instant(item)), narrow=True),
        Column(head, lambda item: instant(item) or "-", wide=True),
    ]


def show_each(items: Iterable[T], output: str, head: Sequence[str], row: Callable[[T], Sequence[object]]) -> None:
    """Print items as they arrive: they need not be in memory together. A table repeats its head every thousand rows."""
    each = iter(items)
    chunk = list(islice(each, _AT_ONCE))
    if output == "json":
        click.echo("[", nl=False)
        for number, item in enumerate(chain(chunk, each)):
            text = msgspec.json.format(msgspec.json.encode(item), indent=2).decode()
            click.echo((",\n" if number else "\n") + indent(text, "  "), nl=False)
        click.echo("\n]")
        return
    more = True
    while more:
        if output == "yaml":
            click.echo(yaml.safe_dump(msgspec.to_builtins(chunk), sort_keys=False), nl=False)
        else:
            click.echo(table(head, [row(item) for item in chunk]))
        chunk = list(islice(each, _AT_ONCE))
        more = bool(chunk)


def table(head: Sequence[str], rows: Sequence[Sequence[object]], width: int = 0) -> str:
    """Return rows under their heads, columns two blanks apart, as kubectl prints them.

    With a `width` the last column is cut to it. States have colours on a terminal, unless $NO_COLOR is set.
    """
    lines = [tuple(map(str, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    room = max(width - sum(widths[:-1]) - 2 * (len(widths) - 1), len(head[-1])) if width else widths[-1]
    if room < widths[-1]:
        widths[-1] = room
        lines = [(*line[:-1], line[-1] if len(line[-1]) <= room else f"{line[-1][: room - 1]}…") for line in lines]
    coloured = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
    return "\n".join(
        "  ".join(
            click.style(cell, fg=_COLOURS[cell]) + " " * (width - len(cell))
            if coloured and cell in _COLOURS
            else cell.ljust(width)
            for cell, width in zip(line, widths, strict=True)
        ).rstrip()
        for line in lines
    )
