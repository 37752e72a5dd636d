# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper scheduler`: the extender's server."""

from __future__ import annotations

from typing import Any

import click
from flask import Flask

from scheduler.app import Scheduler, make_app
from slicekeeper import log
from slicekeeper.cli.main import Context
from slicekeeper.clock import from_settings
from slicekeeper.serving import serve as serve_app


@click.group()
def scheduler() -> None:
    """Run the scheduler extender and the reclaimer."""


@scheduler.command()
@click.pass_obj
def serve(context: Context) -> None:
    """Serve kube-scheduler's calls until SIGTERM."""
    settings = context.loaded.settings
    log.configure(settings.log.level, settings.log.style)

    running = Scheduler(settings, from_settings(settings.clock))

    def start() -> Flask:
        running.start()
        return make_app(running)

    def stop(_arbiter: Any, _worker: Any) -> None:
        running.stop()

    serve_app(start, bind=settings.scheduler.bind, threads=settings.scheduler.threads, worker_exit=stop)
