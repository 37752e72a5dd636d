# SPDX-License-Identifier: Apache-2.0
"""What many large gangs that fit nowhere cost the other pods.

    .venv/bin/python benchmarks/scheduler/gangs.py [--nodes 5000] [--gangs 50] [--size 512] [--seconds 60]

All GPUs are held but for a few less than one gang needs. In each round a pod ends and another takes its place, so that
no answer holds for long, and kube-scheduler asks for a pod without a gang and for one of the next gang.
"""

from __future__ import annotations

import argparse
import random
import statistics
import threading
import time
from typing import Any

import orjson
from look import NOWHERE, tenant
from run import GPUS, node, percentile, pod

from scheduler.extender import filter_nodes, gpu_pod
from scheduler.gangs import Gangs
from scheduler.job_progress import JobProgress
from scheduler.placement.learner import Learner
from scheduler.reclaim.retry_trigger import RetryTrigger
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import KubernetesSettings, Settings
from slicekeeper.kube.client import KubeClient

HOLD = 30.0
MISSING = 12
"""GPUs that a gang lacks."""


def member(gang: int, n: int, size: int) -> dict[str, Any]:
    """Return a pod of a gang that wants a whole GPU."""
    made = pod(f"g{gang}-{n}", 100)
    made["metadata"]["annotations"] |= {names.GANG: f"g{gang}", names.GANG_SIZE: str(size)}
    return made


def fill(state: SchedulerState, nodes: int, free: int) -> None:
    """Give the state nodes of which `free` GPUs are idle."""
    pods: list[dict[str, Any]] = []
    for n in range(nodes):
        state.intake.set_node(node(n))
        pods += [tenant(n, column, names.IN_BUDGET) for column in range(1 if n < free else 0, GPUS)]
    state.intake.set_pods(pods)


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--nodes", type=int, default=5000)
    parser.add_argument("--gangs", type=int, default=50)
    parser.add_argument("--size", type=int, default=512)
    parser.add_argument("--seconds", type=float, default=60.0)
    options = parser.parse_args()
    clock, settings = Clock(), Settings(kubernetes=KubernetesSettings(server=NOWHERE))
    state = SchedulerState(settings.resources, Learner("best-fit"), clock, hold_seconds=HOLD, lost_seconds=60)
    fill(state, options.nodes, options.size - MISSING)
    nowhere = KubeClient(settings.kubernetes)
    trigger, jobs = RetryTrigger(nowhere, clock, pause_seconds=1), JobProgress(nowhere, clock)
    gangs = Gangs(state, clock, trigger, jobs, hold_seconds=HOLD)
    every = orjson.dumps([f"node-{n:05}" for n in range(options.nodes)])
    members = [[member(g, n, options.size) for n in range(options.size)] for g in range(options.gangs)]
    for made in (made for gang in members for made in gang):
        state.intake.set_pod(made)
    trial, looks = state.trial, 0

    def timed(asked: dict[str, Any]) -> float:
        begin = time.perf_counter()
        filter_nodes(state, gangs, gpu_pod(state, asked), every)
        return time.perf_counter() - begin

    def counted(without: Any) -> Any:
        nonlocal looks
        looks += 1
        return trial(without)

    state.trial = counted  # type: ignore[method-assign]
    stopped, chance = threading.Event(), random.Random(0)
    thread = threading.Thread(target=gangs.run, args=(stopped,), daemon=True)
    thread.start()
    alone: list[float] = []
    together: list[float] = []
    end, turn = time.monotonic() + options.seconds, 0
    while time.monotonic() < end:
        gone = tenant(turn % options.nodes, GPUS - 1, names.IN_BUDGET)
        state.intake.drop_pod(gone["metadata"]["uid"])
        state.intake.set_pod(gone)
        alone.append(timed(pod(f"single-{turn}", 100)))
        together.append(timed(chance.choice(members[turn % options.gangs])))
        turn += 1
    stopped.set()
    gangs.stop()
    thread.join()
    print(f"{looks} looks in {options.seconds:.0f} s; {turn} rounds")
    for name, taken in (("a pod without a gang", alone), ("a pod of a gang", together)):
        print(
            f"filter of {name}: p50 {statistics.median(taken) * 1000:.1f} ms, "
            f"p99 {percentile(taken, 0.99) * 1000:.1f}, max {max(taken) * 1000:.1f}"
        )


if __name__ == "__main__":
    main()
