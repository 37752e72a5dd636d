# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper nodeagent run`."""

from __future__ import annotations

import signal
import socket
import threading
from pathlib import Path

import click
import msgspec

from nodeagent.agent import Agent
from nodeagent.fake import install
from nodeagent.nvml import NvmlGpus
from slicekeeper import log
from slicekeeper.cli.main import Context
from slicekeeper.clock import SystemClock


@click.group()
def nodeagent() -> None:
    """Run the agent of a GPU node."""


@nodeagent.command()
@click.option("--fake-gpus", default="", metavar="N[:MODEL]", help="Make up GPUs: the fake driver instead of NVIDIA's.")
@click.option("--node-name", default="", help="The Node it speaks for. Default: the setting, else the host's name.")
@click.pass_obj
def run(context: Context, fake_gpus: str, node_name: str) -> None:
    """Publish this node's GPUs and give every GPU container its seat, until SIGTERM."""
    settings = context.loaded.settings
    log.configure(settings.log.level, settings.log.style)
    node = node_name or settings.node_agent.node_name or socket.gethostname()
    mine = msgspec.structs.replace(settings.node_agent, node_name=node)
    settings = msgspec.structs.replace(settings, node_agent=mine)
    run_dir = Path(mine.run_dir)
    if fake := fake_gpus or mine.fake_gpus:
        install(fake, node, Path(mine.programs_dir), run_dir)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    Agent(settings, SystemClock(), NvmlGpus(run_dir / "withdrawn")).run(stop)
