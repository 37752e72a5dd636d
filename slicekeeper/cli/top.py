# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper top`: every GPU and the pods that share it, live."""

from __future__ import annotations

import shutil
import sys
import time
from contextlib import suppress
from typing import Any

import click

from slicekeeper.cli.connection import cluster, cluster_options
from slicekeeper.cli.main import Context
from slicekeeper.cli.output import memory, narrow_table, output_option, percent, show, table
from slicekeeper.cli.plain_text import plain
from slicekeeper.cli.pods import own_pods_instead
from slicekeeper.cli.seat_usage import FIGURES, Agents, cells, figures, node_cell, parts
from slicekeeper.gpu.inventory import Part
from slicekeeper.kube.client import NODES, KubeClient
from slicekeeper.wire.live_seats import SeatUse

_HOME_AND_CLEAR = "\033[H\033[2J"

_HEAD = ("NODE", "GPU", "POD", "CONTAINER", "CLASS", "ASKED", "LIMIT", *FIGURES, "OF")
_NARROW = ("NODE", "GPU", "CLASS", "ASKED", "GIVEN", "USED", "MEMORY-USED", "POD")
_WIDE = 132
"""Width of a terminal for which everything is shown."""


@click.command()
@click.option("--node", default="", help="Only this node.")
@click.option(
    "--interval", type=click.FloatRange(min=0.5), default=2.0, show_default=True, help="Seconds between two updates."
)
@click.option("--once", is_flag=True, help="Show it once; also if the output is not a terminal, and with -o.")
@cluster_options
@output_option("table", "wide", "json", "yaml")
def top(context: Context, node: str, interval: float, once: bool, output: str) -> None:
    """Show GPUs and their seats live: shares, memory, class.

    Shares are requested (ASKED), given and used.
    """
    client, agents = cluster(context), Agents(context)
    if once or output not in ("table", "wide") or not sys.stdout.isatty():
        with own_pods_instead(context, output):
            gpus = _gpus(client, agents, node)
        show(gpus, output, lambda: _table(gpus, wide=output == "wide"))
    else:
        with suppress(KeyboardInterrupt), own_pods_instead(context, output):
            while True:
                room = shutil.get_terminal_size()
                lines = _table(_gpus(client, agents, node), wide=room.columns >= _WIDE).splitlines()
                click.echo(_HOME_AND_CLEAR + "\n".join(lines[: room.lines - 1]))
                time.sleep(interval)
    for name, why in agents.silent.items():
        click.echo(f"node {name}: its agent does not answer: {plain(why)}", err=True)


def _gpus(client: KubeClient, agents: Agents, only: str) -> list[dict[str, Any]]:
    nodes, _ = client.list(NODES, field_selector=f"metadata.name={only}" if only else "")
    if only and not nodes:
        raise click.ClickException(f"there is no node {only}")
    return [{**described, **_used(part, seats)} for described, part, seats in parts(nodes, agents.ask(nodes))]


def _used(part: Part, seats: list[SeatUse] | None) -> dict[str, Any]:
    return {
        "askedPercent": None if seats is None else sum(seat.asked_percent for seat in seats),
        **figures(seats),
        "seats": [_seat(seat, part) for seat in seats or []],
    }


def _seat(seat: SeatUse, part: Part) -> dict[str, Any]:
    return {
        "namespace": seat.namespace,
        "pod": seat.pod,
        "container": seat.container,
        "class": seat.vclass,
        "askedPercent": seat.asked_percent,
        "limitPercent": seat.limit_percent,
        **figures([seat]),
        "memoryMib": seat.memory_limit_mib or part.memory_mib,
    }


def _table(gpus: list[dict[str, Any]], *, wide: bool) -> str:
    rows = _rows(gpus)
    if wide:
        return table(_HEAD, rows)
    shown = [_HEAD.index(head) for head in _NARROW]
    return narrow_table(_NARROW, [[row[at] for at in shown] for row in rows])


def _rows(gpus: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for gpu in gpus:
        state = gpu["model"] if gpu["healthy"] else f"{gpu['model']}, not healthy"
        asked, size = percent(gpu["askedPercent"]), memory(gpu["memoryMib"])
        rows.append((node_cell(gpu), gpu["gpu"], state, "", "", asked, "", *cells(gpu), size))
        for seat in gpu["seats"]:
            pod = f"{seat['namespace']}/{seat['pod']}"
            asked, limit = percent(seat["askedPercent"]), percent(seat["limitPercent"])
            size = memory(seat["memoryMib"])
            rows.append(("", "", pod, seat["container"], seat["class"], asked, limit, *cells(seat), size))
    return rows
