# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper objects serve` for budgets and policies, `slicekeeper objects sharepods` for SharePods."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import click

from objects.operator_loop import OperatorLoop
from slicekeeper import clock, threads
from slicekeeper.cli.main import Context
from slicekeeper.config.policy import PolicyBook
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import Settings
from slicekeeper.kube.client import KubeClient
from slicekeeper.kube.leader import LeaderElection
from slicekeeper.net.timekeeper_client import TimekeeperClient

LEASE: Final = "slicekeeper-objects"
SHAREPODS_LEASE: Final = "slicekeeper-sharepods"


@click.group()
def objects() -> None:
    """Act on objects of the cluster: budgets, policies, SharePods."""


@objects.command()
@click.pass_obj
def serve(context: Context) -> None:
    """Apply the objects of budgets and policies until SIGTERM.

    These are GpuBudgets, ClusterGpuBudgets and GpuPolicies. Only one of several replicas is active.
    """
    import kopf  # noqa: PLC0415 - half a second that no other command should take

    from objects.budgets.keeper import Keeper  # noqa: PLC0415 - SharePods need nothing of it
    from objects.object_watch import kopf_settings, registry_of, tame_logs  # noqa: PLC0415 - it imports kopf, too
    from objects.policies.keeper import PolicyKeeper  # noqa: PLC0415 - as above

    settings = context.begin()
    tame_logs()
    client, leader = _candidate(settings, LEASE)
    timekeeper = TimekeeperClient(settings.timekeeper_client)
    now = clock.from_settings(settings.clock)
    budgets = Keeper(client, timekeeper, now, lambda: leader.is_leader)
    # A broken file does not keep budgets from following their objects.
    file = PolicyFile(settings.policy, PolicyBook(exempt=settings.policy.exempt_namespaces))
    policies = PolicyKeeper(client, file, now, lambda: leader.is_leader)
    with _running(settings, leader, budgets.keep, policies.keep) as loop:
        registry = registry_of(settings.kubernetes, loop.wake.set)
        kopf.run(registry=registry, settings=kopf_settings(), standalone=True, clusterwide=True)


@objects.command()
@click.pass_obj
def sharepods(context: Context) -> None:
    """Create a pod for each SharePod until SIGTERM.

    Only one of several replicas is active.
    """
    from objects.sharepods.keeper import SharePodKeeper  # noqa: PLC0415 - budgets need nothing of it

    settings = context.begin()
    stopped = threads.stop_on_signals()
    client, leader = _candidate(settings, SHAREPODS_LEASE)
    now = clock.from_settings(settings.clock)
    keeper = SharePodKeeper(client, settings.resources, now, lambda: leader.is_leader)
    with _running(settings, leader, keeper.keep) as loop:
        keeper.start(loop.wake.set)
        stopped.wait()
        keeper.stop()


def _candidate(settings: Settings, lease: str) -> tuple[KubeClient, LeaderElection]:
    client = KubeClient(settings.kubernetes)
    where, who = settings.objects.namespace, socket.gethostname()
    now = clock.from_settings(settings.clock)
    return client, LeaderElection(client, now, namespace=where, name=lease, identity=who)


@contextmanager
def _running(settings: Settings, leader: LeaderElection, *passes: Callable[[], None]) -> Iterator[OperatorLoop]:
    """Run passes as long as this process leads, with probes that report their state."""
    loop = OperatorLoop(lambda: leader.is_leader, *passes)
    with loop.health.served(settings.objects.probes_bind, settings.serving):
        leader.start()
        loop.start()
        try:
            yield loop
        finally:
            loop.stop()
            leader.stop()
