# SPDX-License-Identifier: Apache-2.0
"""Two namespaces on one GPU, and one runs out: when its slice is background, and what each gets before and after.

Run it as `PYTHONPATH=tests KUBECONFIG=… python -m cluster.harness.headline`, with the KUBECONFIG that
`python -m cluster.harness up` printed. Prints Markdown tables. `train` steps as training does, 15 kernels of 1 ms and
5 ms of host work; `greedy` launches kernels of 1 ms without an end. Each is first run alone.
"""

from __future__ import annotations

import json
import time
from datetime import datetime
from statistics import fmean
from typing import Final

from cluster.harness.gpu_work import said, worker
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import wait_for
from cluster.harness.site import Site, playground, pod

from slicekeeper import inventory, names
from slicekeeper.wire.timekeeper import Budget

SECONDS: Final = 10.0
"""How long each stage is looked at."""
SETTLE_SECONDS: Final = 1.0

TRAIN: Final = worker(50, 16, batch=15, kernel="spin_1ms", host=0.005)
GREEDY: Final = worker(40, 32, batch=20, kernel="spin_1ms", host=0)


def speed(site: Site, namespace: str, name: str, begin: float, end: float) -> float:
    """Return a worker's mean steps a second between two instants."""
    return fmean(float(rate) for at, rate in said(site, namespace, name, "steps") if begin <= float(at) <= end)


def stage(site: Site, *workers: tuple[str, str]) -> list[float]:
    """Return the speeds of some workers over the next seconds."""
    time.sleep(SETTLE_SECONDS)
    begin = time.time()
    time.sleep(SECONDS)
    end = time.time()
    return [speed(site, namespace, name, begin, end) for namespace, name in workers]


def told(site: Site, what: str, after: float) -> float:
    """Return when the node's agent brought a change to the arbiter."""

    def look() -> float | None:
        lines = site.kubectl("logs", "daemonset/nodeagent", "-n", NAMESPACE, "--since=60s").splitlines()
        for entry in map(json.loads, (line for line in lines if line.startswith("{"))):
            at = datetime.strptime(f"{entry['time']}+0000", "%Y-%m-%d %H:%M:%S,%f%z").timestamp()
            if at >= after and entry["message"].startswith("seat ") and what in entry["message"]:
                return at
        return None

    return float(wait_for(what, look, seconds=60))


def main() -> None:
    """Measure, and print what came out."""
    with playground() as (site, _), site.timekeeper() as client:
        [node] = site.kubectl.list("nodes")
        here = {names.GPU_UUID: inventory.of_node(node)[0].uuid}
        poor, rich = site.namespace("poor"), site.namespace()
        site.kubectl.create(pod("alone", GREEDY, annotations=here), namespace=rich)
        site.wait_phase(rich, "alone", "Running")
        wait_for("steps", lambda: said(site, rich, "alone", "steps"))
        [greedy_alone] = stage(site, (rich, "alone"))
        site.kubectl("delete", "pod", "alone", "-n", rich)

        site.kubectl.create(pod("train", TRAIN, annotations=here), namespace=rich)
        site.wait_phase(rich, "train", "Running")
        wait_for("steps", lambda: said(site, rich, "train", "steps"))
        train, greedy = (rich, "train"), (poor, "greedy")
        [train_alone] = stage(site, train)

        # 40 percent of a GPU for half a minute.
        client.set_budget(Budget, poor, {"amountMs": 12_000, "period": "none", "timeZone": "UTC"})
        site.kubectl.create(pod("greedy", GREEDY, annotations=here), namespace=poor)
        site.wait_phase(poor, "greedy", "Running")
        wait_for("steps", lambda: said(site, poor, "greedy", "steps"))
        began = time.time()
        rows = [("both in budget", stage(site, train, greedy))]
        ran_out = wait_for("its end", lambda: _over(client.budget(Budget, poor)), seconds=90)
        background = told(site, "background", began)
        rows.append(("`greedy` over budget", stage(site, train, greedy)))
        granted = time.time()
        client.grant(Budget, poor, 3_600_000, "the measurement says so", "grant-1")
        back = told(site, "in-budget", granted)
        rows.append(("after a grant", stage(site, train, greedy)))
        site.clear()

    print("| | `train`, of its speed alone | `greedy`, of its speed alone |\n|---|---:|---:|")
    for name, (one, other) in rows:
        print(f"| {name} | {one / train_alone:.1%} | {other / greedy_alone:.1%} |")
    print(f"\nBackground {background - ran_out:.2f} s after the computed end of the budget,", end=" ")
    print(f"back {back - granted:.2f} s after the grant.")


def _over(budget: Budget) -> float | None:
    if budget.state != names.OVER_BUDGET or budget.run_out_at is None:
        return None
    return datetime.fromisoformat(budget.run_out_at).timestamp()


if __name__ == "__main__":
    main()
