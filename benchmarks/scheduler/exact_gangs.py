# SPDX-License-Identifier: Apache-2.0
"""How many gangs find their places that fill all free GPUs to the last percent, and how long the search takes.

    .venv/bin/python benchmarks/scheduler/exact_gangs.py [--gangs 100] [--seed 1]

What is free of each GPU is cut into random shares, so that a place for each is known to exist. Whether they are placed
one after the other, or only by the joint search, is shown beside.
"""

from __future__ import annotations

import argparse
import random
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from run import GPU_MIB, percentile

from scheduler.gang_places import Trial, places_for
from scheduler.placement.learner import Learner
from scheduler.scheduler_state import SchedulerState
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Settings
from slicekeeper.gpu import inventory

SIZES = (10, 15, 20, 25, 30, 35, 40, 45, 50, 60)
TAKEN = (0, 0, 20, 30, 50)
"""What others may hold of a GPU, in percent."""
CASES = (
    (1, 3, (1,)),
    (2, 3, (1,)),
    (4, 3, (1,)),
    (4, 8, (1,)),
    (2, 3, (1, 1, 2, 3)),
    (4, 3, (1, 1, 2, 3)),
    (4, 8, (1, 1, 2, 3)),
)
"""GPUs of a node, nodes, and how many containers a pod may have."""


def cut(rng: random.Random, total: int) -> list[int]:
    """Cut a part of a GPU into shares."""
    shares = []
    while total:
        shares.append(min(total, rng.choice(SIZES)))
        total -= shares[-1]
    return shares


def pod(name: str, shares: Sequence[int], size: int, gpu: str = "") -> dict[str, Any]:
    """Return a pod with a container for each share: of the gang, or on a GPU already."""
    containers = [
        {
            "name": f"c{n}",
            "resources": {"limits": {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": "1"}},
        }
        for n, core in enumerate(shares)
    ]
    annotations = {names.gpu_annotation("c0"): gpu} if gpu else {names.GANG: "g", names.GANG_SIZE: str(size)}
    return {
        "metadata": {
            "name": name,
            "namespace": "bench",
            "uid": name,
            "labels": {names.MANAGED_LABEL: "true"},
            "annotations": annotations,
        },
        "spec": {"containers": containers, **({"nodeName": gpu.rpartition("-")[0]} if gpu else {})},
        "status": {"phase": "Running" if gpu else "Pending"},
    }


def cluster(rng: random.Random, gpus: int, nodes: int, containers: Sequence[int]) -> SchedulerState:
    """Return a state with one gang that fits exactly."""
    state = SchedulerState(Settings().resources, Learner("best-fit"), Clock(), hold_seconds=30, lost_seconds=60)
    asked: list[list[int]] = []
    for n in range(nodes):
        listed = [inventory.Gpu(f"n{n}-{g}", "A100", GPU_MIB) for g in range(gpus)]
        state.intake.set_node(
            {"metadata": {"name": f"n{n}", "annotations": {names.NODE_GPUS: inventory.encode(listed)}}}
        )
        loose: list[int] = []
        for g in range(gpus):
            taken = rng.choice(TAKEN)
            if taken:
                state.intake.set_pod(pod(f"old-{n}-{g}", [taken], 0, f"n{n}-{g}"))
            loose += cut(rng, 100 - taken)
        rng.shuffle(loose)
        while loose:
            count = rng.choice(containers)
            asked.append(loose[:count])
            del loose[:count]
    for number, shares in enumerate(asked):
        state.intake.set_pod(pod(f"p{number}", shares, len(asked)))
    return state


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--gangs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    joint, searched = Trial.place_jointly, [0]

    def counted(*arguments: Any) -> Any:
        searched[0] += 1
        return joint(*arguments)

    Trial.place_jointly = counted  # type: ignore[method-assign]
    print("| GPUs | containers of a pod | pods | one after the other | all | ms p50 | ms p99 | longest |")
    print("| --- | --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for gpus, nodes, containers in CASES:
        rng, took, pods, placed = random.Random(options.seed), [], 0, 0
        searched[0] = 0
        for _ in range(options.gangs):
            state = cluster(rng, gpus, nodes, containers)
            members = state.gang_members("bench/g")
            assert members is not None
            begin = time.process_time()
            found = places_for(partial(state.trial, {one.uid for one in members.waiting}), members, {}, state.policy)[1]
            took.append((time.process_time() - begin) * 1000)
            pods += members.needed
            placed += len(found) == members.needed
        print(
            f"| {gpus * nodes} on {nodes} nodes | {'1' if len(containers) == 1 else f'1–{max(containers)}'} "
            f"| {pods / options.gangs:.0f} | {options.gangs - searched[0]} | {placed} of {options.gangs} "
            f"| {percentile(took, 0.5):.1f} | {percentile(took, 0.99):.1f} | {max(took):.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
