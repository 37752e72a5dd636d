# SPDX-License-Identifier: Apache-2.0
"""Output formats: a table as wide as the terminal for people, `-o json`, `yaml`, `csv` and `name` for programs.

A table rounds amounts and omits columns; `-o wide` has all, and amounts to the millisecond. What is printed may come
from other tenants, so no control character reaches the terminal, and none begins a line.
"""

from __future__ import annotations

import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, islice
from textwrap import indent, wrap
from typing import Any, Final, Generic, TypeVar

import click
import msgspec
import yaml

from slicekeeper.cli.plain_text import plain
from slicekeeper.units import MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND, parse_instant

T = TypeVar("T")
_AT_ONCE = 1000
_SHOWN_EACH: Final = 100
_WIDTH: Final = 80
"""Width of a table that is not printed on a terminal, unless $COLUMNS is set."""

_LAST: Final = 24
"""The last column is not made narrower than this, as long as names can be shortened."""

_NAME: Final = 12
"""Names in the other columns are not made shorter than this."""

_DIGITS: Final = 8
"""Digits of a UUID that are shown at least, as in events."""

_UUID: Final = re.compile(r"\b((?:GPU|MIG)-)([0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12})\b")
_OBEYED: Final = re.compile(r"[\x7f-\x9f\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufeff]")
_FORMULA: Final = tuple("=+-@\t\r＝＋－＠")
LISTS: Final = ("table", "wide", "json", "yaml", "csv", "name")
"""Formats for rows."""

_COLOURS: Final = {
    "ok": "green",
    "warning": "yellow",
    "overdraft": "yellow",
    "exhausted": "red",
    "suspended": "magenta",
    "closed": "magenta",
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
        click.echo(_json(data))
    elif output == "yaml":
        click.echo(yaml.safe_dump(msgspec.to_builtins(data), sort_keys=False), nl=False)
    else:
        click.echo(table())


def _json(data: object) -> str:
    """Return anything that msgspec encodes as JSON, in which characters that a terminal obeys are escaped."""
    text = msgspec.json.format(msgspec.json.encode(data), indent=2).decode()
    return _OBEYED.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def show_list(items: Sequence[T], output: str, columns: Sequence[Column[T]], name: Callable[[T], str]) -> None:
    """Print rows in the requested format; `name` returns what `-o name` prints for one."""
    if output == "name":
        click.echo("".join(f"{plain(name(item))}\n" for item in items), nl=False)
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
    if not items:
        return "nothing found"
    shown = [one for one in columns if not (one.narrow if output == "wide" else one.wide)]
    head, rows = [one.head for one in shown], [[one.cell(item) for one in shown] for item in items]
    return table(head, rows) if output == "wide" else narrow_table(head, rows)


def narrow_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return a table that fits the terminal, with the UUIDs of GPUs shortened to what distinguishes them in it."""
    short = _shortener([str(cell) for row in rows for cell in row])
    width = shutil.get_terminal_size((_WIDTH, 0)).columns
    return table(head, [[short(str(cell)) for cell in row] for row in rows], width)


def _shortener(texts: Iterable[str]) -> Callable[[str], str]:
    """Return a function that shortens the UUIDs of GPUs and MIG slices: all begin, or all end, differently."""
    known = {found[2] for text in texts for found in _UUID.finditer(text)}
    sizes = range(_DIGITS, 37)
    start = next(size for size in sizes if len({one[:size] for one in known}) == len(known))
    end = next(size for size in sizes if len({one[-size:] for one in known}) == len(known))
    if start <= end:
        return lambda text: _UUID.sub(lambda found: found[1] + found[2][:start].rstrip("-"), text)
    return lambda text: _UUID.sub(lambda found: f"{found[1]}…{found[2][-end:]}", text)


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
    """Return a cell of a CSV file; structured values become JSON.

    A text that a spreadsheet would take for a formula begins with an apostrophe; numbers stay numbers.
    """
    if isinstance(value, dict | list | bool):
        return json.dumps(value)
    if isinstance(value, str):
        return f"'{plain(value)}" if value.startswith(_FORMULA) else plain(value)
    return value


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
            click.echo((",\n" if number else "\n") + indent(_json(item), "  "), nl=False)
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

    With a `width` the last column is wrapped to it; if that alone does not suffice, the middle of long names is left
    out. States have colours on a terminal, unless $NO_COLOR is set.
    """
    lines = [[plain(str(cell)) for cell in row] for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    if width:
        lines, widths = _fitted(lines, widths, width)
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


def _fitted(lines: Sequence[Sequence[str]], natural: Sequence[int], width: int) -> tuple[list[list[str]], list[int]]:
    """Return lines and the widths of their columns such that the whole is not wider than `width`, if possible."""
    *widths, last = natural
    room = width - 2 * len(widths)
    while widths and sum(widths) + min(last, _LAST) > room and max(widths) > _NAME:
        widths[widths.index(max(widths))] -= 1
    last = min(last, max(room - sum(widths), len(lines[0][-1]), 1))
    fitted: list[list[str]] = []
    for *cells, end in lines:
        first, *more = wrap(end, last, break_on_hyphens=False) or [""]
        fitted.append([*map(_without_middle, cells, widths), first])
        fitted += [[*[""] * len(cells), rest] for rest in more]
    return fitted, [*widths, last]


def _without_middle(text: str, width: int) -> str:
    """Return a name in at most `width` characters; how it begins and how it ends says which one it is."""
    if len(text) <= width:
        return text
    end = (width - 1) // 2
    return f"{text[: width - 1 - end]}…{text[len(text) - end :]}"
