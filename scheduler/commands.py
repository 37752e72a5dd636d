# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper scheduler`: the extender's server."""

from __future__ import annotations

from typing import Any

import click

from scheduler.app import MAX_BODY, Scheduler, make_app
from slicekeeper import log, probes
from slicekeeper.cli.main import Context
from slicekeeper.clock import from_settings
from slicekeeper.serving.process import serve as serve_app
from slicekeeper.serving.wsgi import WsgiBridge


@click.group()
def scheduler() -> None:
    """Run the scheduler extender and the reclaimer."""


@scheduler.command()
@click.pass_obj
def serve(context: Context) -> None:
    """Serve kube-scheduler's calls until SIGTERM."""
    settings = context.loaded.settings
    log.configure(settings.log.level, settings.log.style)

    mine = settings.scheduler
    made: list[Scheduler] = []

    def start() -> WsgiBridge:
        running = Scheduler(settings, from_settings(settings.clock))
        made.append(running)
        running.start()
        if mine.metrics_bind:
            probes.serve_metrics(mine.metrics_bind, settings.serving, running.metrics.registry)
        return WsgiBridge(make_app(running), threads=mine.threads, max_body_bytes=MAX_BODY)

    def stop(_arbiter: Any, _worker: Any) -> None:
        for running in made:
            running.stop()

    serve_app(start, bind=mine.bind, limits=settings.serving, worker_exit=stop)
