# SPDX-License-Identifier: Apache-2.0
"""Two namespaces on one GPU, and one runs out: when its slice is background, and what each gets before and after.

Run it as `PYTHONPATH=tests KUBECONFIG=… python -m cluster.harness.budget_runs_out [FILE.svg]`, with the KUBECONFIG that
`python -m cluster.harness up` printed. Prints a Markdown table, and draws both shares over time. `train` steps as
training does, 15 kernels of 1 ms and 5 ms of host work; `greedy` launches kernels of 1 ms without an end. Each is first
run alone. Takes two minutes.
"""

from __future__ import annotations

import json
import sys
import time
from datetime import datetime
from pathlib import Path
from statistics import fmean, median
from typing import Final

from cluster.harness import svg_chart
from cluster.harness.gpu_work import BATCH, GREEDY, TRAIN, kill_arbiter, one_gpu, said
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, wait_for
from cluster.harness.site import Site, playground, pod

from slicekeeper import names
from slicekeeper.kube.client import PODS
from slicekeeper.wire.timekeeper import Budget

SECONDS: Final = 10.0
"""How long each stage is looked at."""
SETTLE_SECONDS: Final = 1.0
CHANGES: Final = 10
KILLS: Final = 3


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
        lines = site.kubectl("logs", "daemonset/nodeagent", "-n", NAMESPACE, "--since=120s").splitlines()
        for entry in map(json.loads, (line for line in lines if line.startswith("{"))):
            at = datetime.strptime(f"{entry['time']}+0000", "%Y-%m-%d %H:%M:%S,%f%z").timestamp()
            if at >= after and entry["message"].startswith("seat ") and what in entry["message"]:
                return at
        return None

    return float(wait_for(look, what, seconds=60))


def changes(site: Site, namespace: str, name: str) -> list[float]:
    """Return how long a change of a pod's ceiling takes to the arbiter, the API server's write included.

    A change of the budget's state takes the same way, but the timekeeper puts back what is not its own: within
    milliseconds, and the agent brings the arbiter the last state, not each one.
    """
    site.kubectl(
        "create", "rolebinding", "owner", "--clusterrole=edit", f"--serviceaccount={namespace}:default", "-n", namespace
    )
    client = site.client(site.kubectl("create", "token", "default", "-n", namespace).strip())
    took = []
    for limit in range(99, 99 - CHANGES, -1):
        began = time.time()
        client.patch(PODS, name, {"metadata": {"annotations": {names.CORE_LIMIT: str(limit)}}}, namespace)
        took.append(told(site, f"to {limit}%", began) - began)
    return took


def draw(site: Site, workers: dict[str, tuple[str, str]], marks: dict[str, float]) -> str:
    """Return a chart of what each had of the GPU, from a while before the first mark to a while after the last."""
    start, end = min(marks.values()), max(marks.values())

    def shares(namespace: str, name: str) -> svg_chart.Points:
        steps = ((float(at), float(rate)) for at, rate in said(site, namespace, name, "steps"))
        near = ((at, rate) for at, rate in steps if start - SECONDS <= at <= end + SECONDS)
        return [(at - start, rate * BATCH[name] / 10) for at, rate in near]

    return svg_chart.lines(
        {label: shares(*worker) for label, worker in workers.items()},
        {name: at - start for name, at in marks.items()},
        x="seconds since the budget's end",
        y="share of the GPU, %",
        most=100,
    )


def main() -> None:
    """Measure, and print what came out."""
    with playground() as (site, found):
        here = one_gpu(site)
        poor, rich = site.namespace("poor"), site.namespace()
        train, greedy = (rich, "train"), (poor, "greedy")

        def begin(worker: tuple[str, str], made: Object) -> None:
            site.kubectl.create(pod(worker[1], made, annotations=here), namespace=worker[0])
            site.wait_phase(*worker, "Running")
            wait_for(lambda: said(site, *worker, "steps"), "steps")

        begin((rich, "alone"), GREEDY)
        [greedy_alone] = stage(site, (rich, "alone"))
        site.kubectl("delete", "pod", "alone", "-n", rich)
        begin(train, TRAIN)
        [train_alone] = stage(site, train)

        # 40 percent of a GPU for half a minute.
        with site.timekeeper() as client:
            client.set_budget(Budget, poor, {"amountMs": 12_000, "period": "none", "timeZone": "UTC"})
        began = time.time()
        begin(greedy, GREEDY)
        rows = [("both in budget", stage(site, train, greedy))]
        with site.timekeeper() as client:
            computed = client.budget(Budget, poor).run_out_at
        assert computed is not None
        ran_out = datetime.fromisoformat(computed).timestamp()
        background = told(site, "background", began)
        rows.append(("`greedy` over budget", stage(site, train, greedy)))
        with site.timekeeper() as client:
            granted = time.time()
            client.grant(Budget, poor, 3_600_000, "the measurement says so", "grant-1")
        back = told(site, "in-budget", granted)
        rows.append(("after a grant", stage(site, train, greedy)))
        if sys.argv[1:]:
            workers = {"train, in budget": train, "greedy, out of budget for a while": greedy}
            Path(sys.argv[1]).write_text(draw(site, workers, {"budget spent": ran_out, "grant": granted}))
        took = changes(site, *greedy)
        killed = [kill_arbiter(found) for _ in range(KILLS)]
        site.clear()

    print("| | `train`, of its speed alone | `greedy`, of its speed alone |\n|---|---:|---:|")
    for name, (one, other) in rows:
        print(f"| {name} | {one / train_alone:.1%} | {other / greedy_alone:.1%} |")
    print(f"\nBackground {background - ran_out:.2f} s after the computed end of the budget,", end=" ")
    print(f"back {back - granted:.2f} s after the grant.", end=" ")
    print("From a write of the ceiling's annotation to the arbiter:", end=" ")
    print(f"median {median(took) * 1000:.0f} ms, most {max(took) * 1000:.0f} ms of {len(took)}.")
    print(f"The arbiter killed: all seats and processes back after {', '.join(f'{s:.2f}' for s in killed)} s.")


if __name__ == "__main__":
    main()
