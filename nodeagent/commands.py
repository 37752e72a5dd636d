# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper nodeagent run`, and `agent` and `arbiter`, which keep the two programs of a node running."""

from __future__ import annotations

import os
import socket
import tempfile
from pathlib import Path

import click
import msgspec

from nodeagent.agent_keeper import keep_agent
from nodeagent.arbiter_keeper import ArbiterKeeper
from nodeagent.fake_driver import FakeDevices, install
from nodeagent.host_cdi import Devices, HostCdi, own_files
from nodeagent.nvml_gpus import NvmlGpus
from nodeagent.plain_driver import PlainDriver, links, load
from slicekeeper import threads
from slicekeeper.cli.main import Context
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Settings

_FAKE = click.option(
    "--fake-gpus",
    default="",
    metavar="N[:MODEL[:SLICES]]",
    help="Simulate GPUs: use the fake driver instead of NVIDIA's.",
)
_NODE = click.option("--node-name", default="", help="Name of its Node. Default: the setting, or else the host's name.")


@click.group()
def nodeagent() -> None:
    """Run the agent of a GPU node."""


@nodeagent.command()
@_FAKE
@_NODE
@click.pass_obj
def run(context: Context, fake_gpus: str, node_name: str) -> None:
    """Publish this node's GPUs and provide seats, until SIGTERM.

    Every GPU container gets a seat.
    """
    from nodeagent.agent import Agent  # noqa: PLC0415 - most of what is imported; the arbiter's keeper needs none of it

    settings, world, root = _begin(context, fake_gpus, node_name)
    mine = settings.node_agent
    cdi = HostCdi([Path(folder) for folder in mine.host_cdi_dirs], (own_files(settings.resources.seat),))
    devices: Devices = PlainDriver(root, cdi) if root else cdi
    if world is not None:
        devices = FakeDevices(Path(mine.programs_dir), Path(mine.state_dir) / "lib", world)
    gpus = NvmlGpus(Path(mine.run_dir) / "withdrawn", devices, lambda: load(root) if root else None)
    Agent(settings, Clock(), gpus).run(threads.stop_on_signals())


@nodeagent.command()
@_FAKE
@_NODE
@click.pass_context
def agent(ctx: click.Context, fake_gpus: str, node_name: str) -> None:
    """Keep this node's agent running, as `run` does it, until SIGTERM."""
    import nodeagent.agent  # noqa: F401, PLC0415 - once for all agents

    ctx.obj.begin()
    keep_agent()
    ctx.invoke(run, fake_gpus=fake_gpus, node_name=node_name)


@nodeagent.command()
@_FAKE
@_NODE
@click.pass_obj
def arbiter(context: Context, fake_gpus: str, node_name: str) -> None:
    """Keep this node's arbiter running, until SIGTERM.

    It needs the node's own process IDs.
    """
    settings, world, root = _begin(context, fake_gpus, node_name)
    mine = settings.node_agent
    options = ["--rule", mine.rule, *(["--fake"] if world else [])]

    def environ() -> dict[str, str]:
        found = links(root, Path(tempfile.gettempdir()) / "driver") if root else ""
        return {**os.environ, "LD_LIBRARY_PATH": str(found)} if found else {**os.environ}

    ArbiterKeeper(Path(mine.programs_dir) / "arbiter", Path(mine.run_dir), options, environ).run(
        threads.stop_on_signals()
    )


def _begin(context: Context, fake_gpus: str, node_name: str) -> tuple[Settings, Path | None, Path | None]:
    """Return the settings with the command line's options, and where the GPUs' driver is.

    That is the fake driver's file if it replaces NVIDIA's, or else the path of the node's file system, if the driver's
    files may be taken from there.
    """
    settings = context.begin()
    mine = settings.node_agent
    node, fake = node_name or mine.node_name or socket.gethostname(), fake_gpus or mine.fake_gpus
    world = install(fake, node, Path(mine.programs_dir), Path(mine.run_dir)) if fake else None
    root = Path(mine.driver_root) if mine.driver_root and not fake else None
    mine = msgspec.structs.replace(mine, node_name=node, fake_gpus=fake)
    return msgspec.structs.replace(settings, node_agent=mine), world, root if root and root.is_dir() else None
