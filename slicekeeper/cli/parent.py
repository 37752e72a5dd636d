# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper parent`: read and change the budgets of teams and organisations through the timekeeper."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import click

from slicekeeper.cli.accounts import add_commands
from slicekeeper.cli.main import Context
from slicekeeper.cli.options import (
    FIGURES,
    GpuTime,
    client_of,
    figures_of,
    key_option,
    reason_option,
    rule_of,
    rule_options,
)
from slicekeeper.cli.output import output_option, show, table
from slicekeeper.units import format_duration
from slicekeeper.wire.timekeeper import Parent


@click.group()
def parent() -> None:
    """Show and change teams and organisations."""


def _table(parents: Sequence[Parent]) -> str:
    return table(
        ("NAME", "KIND", "UNDER", *FIGURES, "RUNS-OUT"),
        [(p.name, p.kind, p.parent or "-", *figures_of(p), p.run_out_at or "-") for p in parents],
    )


@parent.command("list")
@output_option()
@click.pass_obj
def list_parents(context: Context, output: str) -> None:
    """List all teams and organisations."""
    parents = list(client_of(context).parents())
    show(parents, output, lambda: _table(parents))


@parent.command("get")
@click.argument("name")
@output_option()
@click.pass_obj
def get_parent(context: Context, name: str, output: str) -> None:
    """Show one team or organisation."""
    found = client_of(context).parent(name)
    show(found, output, lambda: _table([found]))


@parent.command("children")
@click.argument("name")
@output_option()
@click.pass_obj
def children(context: Context, name: str, output: str) -> None:
    """Show what stands directly under a team or an organisation, and who consumed how much of its budget."""
    found = client_of(context).children(name).items
    rows = [(c.name, c.kind, c.state, format_duration(c.consumed_ms), format_duration(c.balance_ms)) for c in found]
    show(found, output, lambda: table(("NAME", "KIND", "STATE", "CONSUMED", "LEFT"), rows))


@parent.command("set")
@click.argument("name")
@click.argument("amount", type=GpuTime())
@click.option("--kind", type=click.Choice(["team", "organisation"]), default="team", show_default=True)
@rule_options
@output_option()
@click.pass_obj
def set_parent(context: Context, /, name: str, amount: int, kind: str, output: str, **rule: Any) -> None:
    """Make the team NAME with a budget of AMOUNT (for example 200h) per period, or give it another one."""
    changed = client_of(context).set_parent(name, {"kind": kind, **rule_of(amount, **rule)})
    show(changed, output, lambda: _table([changed]))


@parent.command("grant")
@click.argument("name")
@click.argument("amount", type=GpuTime())
@reason_option("granted on the command line")
@key_option
@output_option()
@click.pass_obj
def grant(context: Context, name: str, amount: int, reason: str, key: str, output: str) -> None:
    """Book a grant of AMOUNT (for example 2h) for all under NAME, beside its budget."""
    changed = client_of(context).grant_parent(name, amount, reason, key or uuid.uuid4().hex)
    show(changed, output, lambda: _table([changed]))


@parent.command("move")
@click.argument("name")
@click.argument("above", required=False)
@reason_option("moved on the command line")
@output_option()
@click.pass_obj
def move(context: Context, name: str, above: str | None, reason: str, output: str) -> None:
    """Put the team NAME under the team or organisation ABOVE from now on; without ABOVE under none."""
    changed = client_of(context).put_parent_under(name, above, reason)
    show(changed, output, lambda: _table([changed]))


add_commands(parent, Parent, _table)
