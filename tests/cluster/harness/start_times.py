# SPDX-License-Identifier: Apache-2.0
"""What a seat, and a whole GPU pod, cost at start-up, beside the same pod without.

Run it as `PYTHONPATH=tests KUBECONFIG=… python -m cluster.harness.start_times`, with the KUBECONFIG that
`python -m cluster.harness up` printed. Prints a Markdown table. Every container says the machine's uptime (10 ms
steps) as its first act. kubelet starts a pod's containers one after the other, so between the first's word and the
second's lies what the second one cost: its seat, if it has one.
"""

from __future__ import annotations

import statistics
from pathlib import Path

from cluster.harness.kubectl import Object
from cluster.harness.site import Site, gpu_container, plain_container, playground, pod

PODS = 12
SAY = "cat /proc/uptime; sleep 2"


def main() -> None:
    """Start pods of both kinds by turns, and print the table."""
    with playground() as (site, _):
        team = site.namespace("start")
        kinds = {"plain": plain_container("train", SAY), "seat": gpu_container("train", SAY, core=5)}
        taken: dict[str, list[tuple[float, float]]] = {kind: [] for kind in kinds}
        for number in range(PODS + 1):
            for kind, second in kinds.items():
                taken[kind].append(_start(site, team, pod(f"{kind}-{number}", plain_container("first", SAY), second)))
        site.clear()
    print(f"| {PODS} pods each, by turns | without, median (p90) | with, median (p90) | ratio |\n|---|---:|---:|---:|")
    for column, name in enumerate(("one container: its seat", "from creation to the last container's first act")):
        rows = {kind: [times[column] for times in taken[kind][1:]] for kind in kinds}  # the first warms caches
        told = " | ".join(
            f"{statistics.median(rows[kind]) * 1000:.0f} ({statistics.quantiles(rows[kind], n=10)[-1] * 1000:.0f}) ms"
            for kind in kinds
        )
        print(f"| {name} | {told} | {statistics.median(rows['seat']) / statistics.median(rows['plain']):.2f} |")


def _start(site: Site, team: str, made: Object) -> tuple[float, float]:
    """Return the seconds that the second container took, and those from the pod's creation to its first act."""
    name = made["metadata"]["name"]
    began = _uptime(Path("/proc/uptime").read_text())
    site.kubectl.create(made, namespace=team)
    site.wait_phase(team, name, "Succeeded", seconds=120)
    first, second = (_uptime(site.kubectl("logs", name, "-c", c, "-n", team)) for c in ("first", "train"))
    return second - first, second - began


def _uptime(text: str) -> float:
    return float(text.split()[0])


if __name__ == "__main__":
    main()
