# SPDX-License-Identifier: Apache-2.0
"""How results are shown: a table for people, `-o json` and `-o yaml` for programs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import chain, islice
from textwrap import indent
from typing import Any, TypeVar

import click
import msgspec
import yaml

T = TypeVar("T")
_AT_ONCE = 1000


def output_option(*formats: str) -> Callable[[Any], Any]:
    """Return the `-o` option; the first format is the default."""
    choices = formats or ("table", "json", "yaml")
    return click.option(
        "-o",
        "--output",
        type=click.Choice(choices),
        default=choices[0],
        show_default=True,
        help="Output format.",
    )


def show(data: Any, output: str, table: Callable[[], str]) -> None:
    """Print `data` (anything that msgspec encodes) in the format asked for."""
    if output == "json":
        click.echo(msgspec.json.format(msgspec.json.encode(data), indent=2).decode())
    elif output == "yaml":
        click.echo(yaml.safe_dump(msgspec.to_builtins(data), sort_keys=False), nl=False)
    else:
        click.echo(table())


def show_each(items: Iterable[T], output: str, head: Sequence[str], row: Callable[[T], Sequence[object]]) -> None:
    """Print items as they come: they need not be in memory together. A table has its head every thousand rows."""
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


def table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Return rows under their heads, columns two blanks apart, as kubectl prints them."""
    lines = [tuple(map(str, row)) for row in (head, *rows)]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )
