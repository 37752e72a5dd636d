# SPDX-License-Identifier: Apache-2.0
"""What containers use of their GPUs, as their sidecars report it and as `slicekeeper top` shows it."""

from __future__ import annotations

import json
from typing import Any

from cluster.harness.gpu_work import TRAIN
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import wait_for
from cluster.harness.site import Site, gpu_container, pod


def test_what_a_slice_and_a_whole_gpu_use_is_reported_and_shown(site: Site) -> None:
    team = site.namespace()
    whole = {**TRAIN, "resources": gpu_container(core=100, blocks=None)["resources"]}
    for name, container in (("half", TRAIN), ("whole", whole), ("idle", gpu_container())):
        site.kubectl.create(pod(name, container), namespace=team)
    uids = {name: site.wait_phase(team, name, "Running")["metadata"]["uid"] for name in ("half", "whole", "idle")}

    def used() -> dict[str, int | None]:
        known = site.workloads(team)
        return {name: known[uid].used_ms if uid in known else None for name, uid in uids.items()}

    def all_used() -> bool:
        now = used()
        return now["idle"] == 0 and all((now[name] or 0) > 1000 for name in ("half", "whole"))

    wait_for(all_used, "their reports")

    def shown() -> dict[str, Any] | None:
        code, told = site.slicekeeper("top", "-o", "json")
        assert code == 0, told
        seats = {seat["pod"]: seat for gpu in json.loads(told) for seat in gpu["seats"] if seat["namespace"] == team}
        used = [seats[name]["usedPercent"] for name in uids]  # at first over the time before they ran, too
        return seats if None not in used and min(used[:2]) > 5 else None

    seats = wait_for(shown, "their shares")
    assert (seats["idle"]["usedPercent"], seats["idle"]["memoryUsedMib"]) == (0, 0)
    assert [seats[name]["askedPercent"] for name in uids] == [50, 100, 20]
    keys = ("container", "class", "limitPercent", "memoryMib")
    assert [[seats[name][key] for key in keys] for name in uids] == [
        ["train", "in-budget", 100, 4096],
        ["train", "in-budget", 100, 81_920],
        ["train", "in-budget", 100, 4096],
    ]
    assert seats["half"]["memoryUsedMib"] >= 2048
    assert seats["half"]["givenPercent"] > 5
    agent = site.part("nodeagent")["metadata"]["name"]
    told = site.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/{agent}:8446/proxy/metrics")
    families = {"whole": "DCGM_FI_DEV_GPU_UTIL{", "half": "slicekeeper_gpu_busy_seconds_total{"}
    for name, family in families.items():
        [line] = [x for x in told.splitlines() if x.startswith(family) and team in x and f'pod="{name}"' in x]
        assert float(line.rpartition(" ")[2]) > 0.5
