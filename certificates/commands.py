# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper certificates run`."""

from __future__ import annotations

import logging
import signal
import socket
import threading

import click

from certificates.keeper import Keeper
from slicekeeper import clock, log
from slicekeeper.cli.main import Context
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import KubeClient
from slicekeeper.kube.leader import LeaderElection

logger = logging.getLogger(__name__)

LEASE = "slicekeeper-certificates"


@click.group()
def certificates() -> None:
    """Keep the webhook's certificate and its CA."""


@certificates.command()
@click.pass_obj
def run(context: Context) -> None:
    """Make, trust and rotate certificates until SIGTERM; of several replicas one acts."""
    settings = context.loaded.settings
    log.configure(settings.log.level, settings.log.style)
    stop = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stop.set())
    client, now = KubeClient(settings.kubernetes), clock.from_settings(settings.clock)
    mine = settings.certificates
    leader = LeaderElection(client, now, namespace=mine.namespace, name=LEASE, identity=socket.gethostname())
    keeper = Keeper(client, now, mine)
    leader.start()
    while not stop.wait(mine.look_seconds):
        if leader.is_leader:
            try:
                keeper.keep()
            except ServiceError as error:
                logger.warning("certificates not kept: %s", error)
    leader.stop()
