# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper sidecar`: the container that the webhook puts first into every GPU pod."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from pathlib import Path
from typing import Final

import click

from sidecar.epoch import EpochCounter
from sidecar.reporter import Reporter
from sidecar.spool import Spool
from sidecar.usage_file import FileUsage
from slicekeeper import clock
from slicekeeper.cli.main import Context
from slicekeeper.config.settings import Settings
from slicekeeper.errors import SettingsError
from slicekeeper.net.timekeeper_client import TimekeeperClient

log = logging.getLogger(__name__)

LAST_SECONDS: Final = 0.6
"""How long a last report may take after SIGTERM: the pod holds its GPUs until the sidecar has ended."""


@click.group()
def sidecar() -> None:
    """Run the reporting sidecar."""


@sidecar.command()
@click.pass_obj
def run(context: Context) -> None:
    """Report a pod's GPU time until SIGTERM.

    Its settings come from the environment that the webhook sets.
    """
    stop = end_on_signals()
    settings = context.begin()
    reporter = build(settings)
    log.info("reporting for %s/%s", settings.sidecar.namespace, settings.sidecar.pod_name)
    reporter.run(stop)
    os._exit(0)  # what Python does at its own end costs as much CPU time as several reports


def end_on_signals() -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets; soon after it the process ends, whatever it is doing.

    A thread waits for the signals, because a handler would wait for the main thread, which may be waiting for a name
    server or a disk.
    """
    stop, numbers = threading.Event(), (signal.SIGTERM, signal.SIGINT)
    signal.pthread_sigmask(signal.SIG_BLOCK, numbers)

    def end() -> None:
        signal.sigwait(numbers)
        stop.set()
        time.sleep(LAST_SECONDS)
        os._exit(0)

    threading.Thread(target=end, name="signals", daemon=True).start()
    return stop


def build(settings: Settings) -> Reporter:
    """Return the reporter that the settings describe.

    Raises SettingsError that names the setting that is missing.
    """
    own = settings.sidecar
    for key in ("namespace", "pod_name", "pod_uid", "containers"):
        if not getattr(own, key):
            raise SettingsError(f"sidecar.{key} is empty: the webhook sets it; see docs/sidecar.md")
    folder = Path(own.spool_dir)
    return Reporter(
        settings=own,
        clock=clock.from_settings(settings.clock),
        timekeeper=TimekeeperClient(settings.timekeeper_client),
        usage=FileUsage(Path(own.usage_file)),
        spool=Spool(folder, own.spool_bytes),
        counters={container: EpochCounter(folder, container) for container in own.containers},
    )
