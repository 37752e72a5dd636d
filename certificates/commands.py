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
from certificates.namespace_bundles import BundlePublisher
from certificates.tls_secrets import CertificateKeeper
from slicekeeper import clock, threads
from slicekeeper.cli.main import Context
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import KubeClient
from slicekeeper.kube.leader import LeaderElection
from slicekeeper.net import probes

logger = logging.getLogger(__name__)

LEASE: Final = "slicekeeper-certificates"


@click.group()
def certificates() -> None:
    """Keep the servers' certificates and their CA."""


@certificates.command()
@click.pass_obj
def run(context: Context) -> None:
    """Issue, distribute and rotate certificates until SIGTERM.

    Only one of several replicas is active.
    """
    settings = context.begin()
    wake = threading.Event()
    stop = threads.stop_on_signals(wake)
    client, ours = KubeClient(settings.kubernetes), clock.from_settings(settings.clock)
    mine = settings.certificates
    leader = LeaderElection(client, ours, namespace=mine.namespace, name=LEASE, identity=socket.gethostname())
    publisher = BundlePublisher(client, mine.namespace, wake)
    kind = Follower if mine.ca_files else CertificateKeeper
    keep = kind(client, ours, mine, publisher).keep
    health = probes.LoopHealth()
    due = 0.0
    with health.served(mine.probes_bind, settings.serving):
        leader.start()
        publisher.start()
        while not stop.is_set():
            health.go_round()
            if not leader.is_leader:
                health.wrong = ""
            elif time.monotonic() >= due:
                due = time.monotonic() + mine.look_seconds
                health.wrong = _attempt(keep)
                if health.wrong:  # new namespaces still get what was published last
                    _attempt(publisher.repeat)
            else:
                _attempt(publisher.repeat)
            wake.wait(mine.look_seconds)
            wake.clear()
        publisher.stop()
        leader.stop()


def _attempt(work: Callable[[], object]) -> str:
    """Run a step that the next pass repeats if it fails now; return why it failed."""
    try:
        work()
    except ServiceError as error:
        logger.warning("certificates not kept: %s", error)
        return str(error)
    return ""
