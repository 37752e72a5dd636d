# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper objects serve`."""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

import click

from objects.keeper import Keeper
from slicekeeper import clock, log, threads
from slicekeeper.cli.main import Context
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import KubeClient
from slicekeeper.kube.leader import LeaderElection
from slicekeeper.net import probes
from slicekeeper.net.timekeeper_client import TimekeeperClient

logger = logging.getLogger(__name__)

LEASE: Final = "slicekeeper-objects"
LOOK_SECONDS: Final = 10.0
"""Between two looks if no object changes: budgets are spent meanwhile."""
PAUSE_SECONDS: Final = 1.0
"""At least, between two looks: many objects are applied at once."""
STUCK_SECONDS: Final = 600.0
"""Longer than a look at thousands of objects takes. One that gets no answer ends by itself."""


@click.group()
def objects() -> None:
    """Keep budgets in step with the cluster's objects."""


@objects.command()
@click.pass_obj
def serve(context: Context) -> None:
    """Watch GpuBudgets and ClusterGpuBudgets until SIGTERM; of several replicas one acts."""
    import kopf  # noqa: PLC0415 - half a second that no other command should take

    from objects.operator import registry_of, settings_of, tame_logs  # noqa: PLC0415 - it imports kopf, too

    settings = context.loaded.settings
    log.configure(settings.log.level, settings.log.style)
    tame_logs()
    client, now = KubeClient(settings.kubernetes), clock.from_settings(settings.clock)
    mine = settings.objects
    leader = LeaderElection(client, now, namespace=mine.namespace, name=LEASE, identity=socket.gethostname())
    keeper = Keeper(client, TimekeeperClient(settings.timekeeper_client), now, lambda: leader.is_leader)
    looks = Looks(keeper, lambda: leader.is_leader)
    server = None
    if mine.probes_bind:
        server = probes.serve(mine.probes_bind, settings.serving, ready=looks.ready, alive=looks.alive)
    registry = registry_of(settings.kubernetes, looks.wake.set)
    leader.start()
    looks.start()
    try:
        kopf.run(registry=registry, settings=settings_of(), standalone=True, clusterwide=True)
    finally:
        looks.stop()
        leader.stop()
        if server is not None:
            server.close()


class Looks:
    """Looks again and again, in a thread, for as long as this process leads."""

    def __init__(self, keeper: Keeper, leads: Callable[[], bool]) -> None:
        self.wake = threading.Event()
        """Set: look now."""
        self._keeper = keeper
        self._leads = leads
        self._stop = threading.Event()
        self._wrong = "not looked yet"
        self._went_round = time.monotonic()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin."""
        self._thread = threads.keep("looks", self._run, self._stop.is_set)

    def stop(self) -> None:
        """End, after the look that is under way."""
        self._stop.set()
        self.wake.set()
        if self._thread is not None:
            self._thread.join(timeout=30)

    def ready(self) -> str:
        """Return why the last look failed, empty if it did not or another replica looks."""
        return self._wrong

    def alive(self) -> str:
        """Return for how long there was no look, empty if it is not too long."""
        silent = time.monotonic() - self._went_round
        return f"no look for {silent:.0f} s" if silent > STUCK_SECONDS else ""

    def _run(self) -> None:
        while not self._stop.is_set():
            self.wake.clear()
            self._went_round = time.monotonic()
            self._wrong = self._look() if self._leads() else ""
            self._stop.wait(PAUSE_SECONDS)
            self.wake.wait(LOOK_SECONDS - PAUSE_SECONDS)

    def _look(self) -> str:
        try:
            self._keeper.keep()
        except ServiceError as error:
            logger.warning("objects not kept: %s", error)
            return str(error)
        return ""
