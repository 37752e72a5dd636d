# SPDX-License-Identifier: Apache-2.0
"""Whether the extender's memory grows with the number of pods that have come and gone, in MB of the process.

    .venv/bin/python benchmarks/scheduler/churn.py [--pods 1000000] [--alive 400]

Pods are seen, placed, bound, seen bound, and deleted when `--alive` newer ones are there, on 100 nodes of 8 GPUs.
"""

from __future__ import annotations

import argparse
from collections import deque
from pathlib import Path
from typing import Any

import orjson
from run import node, pod

from scheduler.extender import filter_nodes, gpu_pod
from scheduler.placement.learner import Learner
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Settings
from slicekeeper.untyped_json import as_map

NODES = 100
FIRST = 10_000
SIZES = (20, 50, 30, 70, 100)


class Churn:
    """The extender's state, without a server, and its gangs, of which none is asked for."""

    def __init__(self) -> None:
        self.state = SchedulerState(
            Settings().resources, Learner("expected-fill"), Clock(), hold_seconds=30, lost_seconds=60
        )
        for n in range(NODES):
            self.state.intake.set_node(node(n))
        self._names = orjson.dumps([f"node-{n:05}" for n in range(NODES)])
        self.left_out = 0

    def come(self, number: int) -> dict[str, Any] | None:
        """Have a pod placed and bound as kube-scheduler and the watch do; return it, None if it fits nowhere."""
        made = pod(f"pod-{number}", SIZES[number % len(SIZES)])
        self.state.intake.set_pod(made)
        read = gpu_pod(self.state, made)
        assert read is not None
        gangs: Any = None
        answer = orjson.loads(filter_nodes(self.state, gangs, read, self._names, best_alone=True))
        if not answer["NodeNames"]:
            self.left_out += 1
            self.state.intake.drop_pod(read.uid)
            return None
        [chosen] = answer["NodeNames"]
        place = self.state.bindings.choose(read, chosen)
        self.state.bindings.bound(read.uid, chosen)
        made["spec"]["nodeName"] = chosen
        given = {names.gpu_annotation(container): ",".join(gpus) for container, gpus in place.gpus.items()}
        made["metadata"]["annotations"] = {**as_map(made["metadata"].get("annotations")), **given}
        self.state.intake.set_pod(made)
        return made


def memory_mb() -> float:
    """Return what the process has in memory now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pods", type=int, default=1_000_000)
    parser.add_argument("--alive", type=int, default=400)
    options = parser.parse_args()
    churn, alive = Churn(), deque[dict[str, Any]]()
    for number in range(1, options.pods + 1):
        made = churn.come(number)
        if made is not None:
            alive.append(made)
        if len(alive) > options.alive:
            churn.state.intake.drop_pod(alive.popleft()["metadata"]["uid"])
        if number == 2_000:
            churn.state.learn()
        if number == FIRST or number % (10 * FIRST) == 0:
            print(f"{number} pods: {memory_mb():.1f} MB, {churn.left_out} fitted nowhere", flush=True)


if __name__ == "__main__":
    main()
