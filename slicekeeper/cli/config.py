# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper config`: the settings in force, and the reference of all settings."""

from __future__ import annotations

import click

from slicekeeper.cli.main import Context
from slicekeeper.cli.output import output_option, show, table
from slicekeeper.config.load import keys
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Section, Settings


@click.group()
def config() -> None:
    """Show settings."""


@config.command("show")
@output_option()
def show_config(context: Context, output: str) -> None:
    """Print the settings in force and the source of each."""
    loaded = context.loaded
    rows = [
        {
            "key": key.dotted,
            "value": key.of(loaded.settings),
            "from": loaded.origin.get(key.dotted, "default"),
            "variable": key.variable,
        }
        for key in keys()
    ]
    show(
        rows, output, lambda: table(("KEY", "VALUE", "FROM"), [(r["key"], _text(r["value"]), r["from"]) for r in rows])
    )


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ",".join(map(str, value)) or '""'
    return str(value) if value != "" else '""'


@config.command("reference")
def reference() -> None:
    """Print a reference of settings and policy file, in Markdown."""
    click.echo(_markdown("Settings", Settings(), variables=True))
    click.echo()
    click.echo(_markdown("Policy of a namespace", NamespacePolicy(), variables=False))


def _markdown(title: str, section: Section, *, variables: bool) -> str:
    head = ["key", "variable", "type", "default", "meaning"]
    rows = [
        [f"`{k.dotted}`", f"`{k.variable}`", f"`{k.kind}`".replace("|", "\\|"), f"`{_text(k.default)}`", k.text]
        for k in keys(section)
    ]
    if not variables:
        head, rows = head[:1] + head[2:], [row[:1] + row[2:] for row in rows]
    lines = [f"## {title}", "", f"| {' | '.join(head)} |", f"|{' --- |' * len(head)}"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])
