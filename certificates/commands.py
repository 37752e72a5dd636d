# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper certificates run`."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import click

from certificates.external_issuer import Follower
from certificates.keeper import CertificateKeeper
from certificates.namespace_bundles import BundlePublisher
from slicekeeper import clock, log, threads
from slicekeeper.cli.main import Context
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import KubeClient
from slicekeeper.kube.leader import LeaderElection
from slicekeeper.net import probes

logger = logging.getLogger(__name__)

LEASE: Final = "slicekeeper-certificates"
STUCK_SECONDS: Final = 600.0
"""Longer than a pass over thousands of namespaces. A pass that gets no answer ends by itself."""


@click.group()
def certificates() -> None:
    """Keep the servers' certificates and their CA."""


@certificates.command()
@click.pass_obj
def run(context: Context) -> None:
    """Issue, distribute and rotate certificates until SIGTERM; only one of several replicas is active."""
    settings = context.loaded.settings
    log.configure(settings.log.level, settings.log.style)
    wake = threading.Event()
    stop = threads.stop_on_signals(wake)
    client, now = KubeClient(settings.kubernetes), clock.from_settings(settings.clock)
    mine = settings.certificates
    leader = LeaderElection(client, now, namespace=mine.namespace, name=LEASE, identity=socket.gethostname())
    publisher = BundlePublisher(client, mine.namespace, wake)
    kind = Follower if mine.ca_files else CertificateKeeper
    keep = kind(client, now, mine, publisher).keep
    health = _Health()
    server = None
    if mine.probes_bind:
        server = probes.serve(mine.probes_bind, settings.serving, ready=health.ready, alive=health.alive)
    leader.start()
    publisher.start()
    due = 0.0
    while not stop.is_set():
        health.went_round()
        if not leader.is_leader:
            health.wrong = ""
        elif time.monotonic() >= due:
            due = time.monotonic() + mine.look_seconds
            health.wrong = _attempt(keep)
            if health.wrong:  # what was published last goes to new namespaces all the same
                _attempt(publisher.repeat)
        else:
            _attempt(publisher.repeat)
        wake.wait(mine.look_seconds)
        wake.clear()
    publisher.stop()
    leader.stop()
    if server is not None:
        server.close()


class _Health:
    """The state of the loop for the probes."""

    def __init__(self) -> None:
        self.wrong = "not looked yet"
        """Why the last pass failed; empty if it did not, or if another replica is active."""
        self._went_round = time.monotonic()

    def went_round(self) -> None:
        self._went_round = time.monotonic()

    def ready(self) -> str:
        return self.wrong

    def alive(self) -> str:
        silent = time.monotonic() - self._went_round
        return f"no look for {silent:.0f} s" if silent > STUCK_SECONDS else ""


def _attempt(work: Callable[[], object]) -> str:
    """Run a step that the next pass repeats if it fails now; return why it failed."""
    try:
        work()
    except ServiceError as error:
        logger.warning("certificates not kept: %s", error)
        return str(error)
    return ""
