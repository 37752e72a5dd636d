# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper scheduler`: the extender's server."""

from __future__ import annotations

import sys
from typing import Any, Final

import click
from starlette.types import ASGIApp

from scheduler.app import make_app
from scheduler.scheduler_process import Scheduler
from slicekeeper.cli.main import Context
from slicekeeper.clock import from_settings
from slicekeeper.net import probes
from slicekeeper.net.serving.process import serve as serve_app

SWITCH_SECONDS: Final = 0.0005
"""How long a working thread makes others wait. With Python's default of 5 ms, a call would wait for a watch or the
reclaimer for longer than it takes itself."""


@click.group()
def scheduler() -> None:
    """Run the scheduler extender and the reclaimer."""


@scheduler.command()
@click.pass_obj
def serve(context: Context) -> None:
    """Serve kube-scheduler's calls until SIGTERM."""
    settings = context.begin()

    mine = settings.scheduler
    made: list[Scheduler] = []

    def start() -> ASGIApp:
        sys.setswitchinterval(SWITCH_SECONDS)
        running = Scheduler(settings, from_settings(settings.clock))
        made.append(running)
        running.start()
        if mine.metrics_bind:
            probes.serve_metrics(mine.metrics_bind, settings.serving, running.metrics.registry)
        return make_app(running)

    def stop(_arbiter: Any, _worker: Any) -> None:
        for running in made:
            running.stop()

    serve_app(start, bind=mine.bind, limits=settings.serving, worker_exit=stop)
