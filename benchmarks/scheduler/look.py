# SPDX-License-Identifier: Apache-2.0
"""What CPU time the reclaimer's look takes on full nodes, in milliseconds.

    .venv/bin/python benchmarks/scheduler/look.py [--nodes 5000] [--waiting 16]

All GPUs are held: of each node one by a pod over budget. The waiting pods ask for a whole node, so that no one's
leaving would help and every node has to be looked at. Measured: the first look, and those after changes.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import Any

import orjson
from run import GPUS, node, pod

from scheduler.placement.best_fit import BestFit
from scheduler.placement.learner import Learner
from scheduler.reclaim.eviction import Evictor
from scheduler.reclaim.reclaimer import Reclaimer
from scheduler.reclaim.retry_trigger import RetryTrigger
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import KubernetesSettings, Settings
from slicekeeper.kube.client import KubeClient
from slicekeeper.kube.leader import LeaderElection

NOWHERE = "http://127.0.0.1:9"


def tenant(n: int, column: int, state: str) -> dict[str, Any]:
    """Return the pod that holds a GPU of node `n`."""
    made = pod(f"held-{n}-{column}", 100, f"node-{n:05}", f"GPU-{n:05}-{column}")
    made["metadata"]["annotations"][names.BUDGET_STATE] = state
    return made


def fill(state: SchedulerState, nodes: int, waiting: int) -> None:
    """Give the state full nodes, and pods that wait."""
    pods: list[dict[str, Any]] = []
    for n in range(nodes):
        state.intake.set_node(node(n))
        pods += [tenant(n, column, names.IN_BUDGET if column else names.OVER_BUDGET) for column in range(GPUS)]
    state.intake.set_pods([*pods, *(pod(f"waits-{n}", 100 * GPUS) for n in range(waiting))])


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--waiting", type=int, default=16)
    options = parser.parse_args()
    clock, settings = Clock(), Settings(kubernetes=KubernetesSettings(server=NOWHERE))
    state = SchedulerState(settings.resources, Learner("best-fit"), clock, hold_seconds=30, lost_seconds=60)
    fill(state, options.nodes, options.waiting)
    client = KubeClient(settings.kubernetes)
    leader = LeaderElection(client, clock, namespace="x", name="x", identity="x", duration_seconds=15, renew_seconds=2)
    evictor = Evictor(client, clock, settings.resources, reporter="x", hold_seconds=30, count=print)
    retry_trigger = RetryTrigger(client, clock, pause_seconds=1)
    reclaimer = Reclaimer(settings, clock, state, BestFit(), leader, evictor, retry_trigger, hold_seconds=30)

    def look() -> float:
        begin = time.thread_time()
        reclaimer.look()
        return (time.thread_time() - begin) * 1000

    print(f"first {look():.1f}")
    for changed in (1, 100):
        taken: list[float] = []
        for turn in range(10):
            for n in range(changed):
                made = tenant(n, 1, names.IN_BUDGET if turn % 2 else names.OVER_BUDGET)
                state.intake.set_pod(orjson.loads(orjson.dumps(made)))
            taken.append(look())
        print(f"{changed} nodes changed: {statistics.median(taken):.1f}, at most {max(taken):.1f}")
    print(f"nothing changed {look():.1f}")


if __name__ == "__main__":
    main()
