# SPDX-License-Identifier: Apache-2.0
"""Slices on a GPU, from inside containers: caps as asked, and a budget that runs out is felt by the slice alone."""

from __future__ import annotations

from typing import Any

from cluster.harness.gpu_work import said, seat_of, worker
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import wait_for
from cluster.harness.site import Site, gpu_container, pod

from slicekeeper import inventory, names
from slicekeeper.wire.timekeeper import Budget

GIB = 1 << 30


def _one_gpu(site: Site) -> dict[str, str]:
    [node] = site.kubectl.list("nodes")
    return {names.GPU_UUID: inventory.of_node(node)[0].uuid}


def _policy(site: Site, namespace: str, name: str) -> tuple[Any, ...]:
    seat = seat_of(site, namespace, name)
    return () if seat is None else tuple(seat[key] for key in ("core", "limit", "memory_limit", "class", "processes"))


def test_a_budget_that_runs_out_makes_running_slices_background_and_a_grant_brings_them_back(site: Site) -> None:
    poor, rich = site.namespace("poor"), site.namespace()
    here = _one_gpu(site)
    training = worker(50, 16, batch=15, kernel="spin_1ms", host=0.005)
    site.kubectl.create(pod("train", training, annotations=here), namespace=rich)
    greedy = worker(40, 32, batch=20, kernel="spin_1ms", host=0)
    site.kubectl.create(pod("greedy", greedy, annotations={**here, names.CORE_LIMIT: "90"}), namespace=poor)
    for namespace, name, expected in (
        (rich, "train", (50, 100, 4 * GIB, "in-budget", 1)),
        (poor, "greedy", (40, 90, 8 * GIB, "in-budget", 1)),
    ):
        site.wait_phase(namespace, name, "Running")
        wait_for("its seat", lambda n=namespace, m=name, e=expected: _policy(site, n, m) == e, seconds=30)
        [memory] = said(site, namespace, name, "memory")
        assert memory == [str(expected[2]), "2", "0"], "its slice, and not one byte more"
    began = site.pod(poor, "greedy")["status"]["containerStatuses"]

    wait_for("a background slice", lambda: _policy(site, poor, "greedy")[3:] == ("background", 1), seconds=60)
    assert _policy(site, rich, "train") == (50, 100, 4 * GIB, "in-budget", 1)
    with site.timekeeper() as client:
        client.grant(Budget, poor, 3_600_000, "the suite says so", "grant-1")
    wait_for("its class", lambda: _policy(site, poor, "greedy")[3:] == ("in-budget", 1), seconds=60)
    assert site.pod(poor, "greedy")["status"]["containerStatuses"] == began, "nothing was restarted"
    before = len(said(site, poor, "greedy", "steps"))
    wait_for("steps", lambda: len(said(site, poor, "greedy", "steps")) > before)


def test_arbiter_and_agent_are_replaced_under_running_slices(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("train", worker(30, 16, batch=5, kernel="spin_1ms", host=0.005)), namespace=team)
    site.wait_phase(team, "train", "Running")
    wait_for("its process", lambda: _policy(site, team, "train")[-1:] == (1,), seconds=30)
    held = _policy(site, team, "train")
    for part in ("arbiter", "nodeagent"):
        site.rollout(f"daemonset/{part}")
        wait_for(f"its seat after the {part}'s", lambda: _policy(site, team, "train") == held, seconds=30)
    site.kubectl(
        "delete", "pod", "-n", NAMESPACE, "-l", "app.kubernetes.io/name=arbiter", "--grace-period=0", "--force"
    )
    site.kubectl("rollout", "status", "daemonset/arbiter", "-n", NAMESPACE, "--timeout=120s", timeout=130)
    wait_for("its seat after all", lambda: _policy(site, team, "train") == held, seconds=30)
    before = len(said(site, team, "train", "steps"))
    wait_for("steps", lambda: len(said(site, team, "train", "steps")) > before)
    assert site.pod(team, "train")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_images_without_a_loader_start_unharmed_and_a_whole_gpu_has_no_limiter(site: Site) -> None:
    team = site.namespace()
    show = "cat /etc/ld.so.preload; ls /run/slicekeeper"
    static = gpu_container(script=show, core=30, blocks=4)
    static["securityContext"] = {"readOnlyRootFilesystem": True}
    site.kubectl.create(
        pod("part", static), pod("whole", gpu_container(script=show, core=100, blocks=None)), namespace=team
    )
    site.wait_phase(team, "part", "Succeeded")
    seen = site.kubectl("logs", "part", "-c", "train", "-n", team).split()
    assert seen == [names.LIBRARY_PATH, "seat.json", "seat.sock"]
    site.wait_phase(team, "whole", "Succeeded")
    assert "seat.sock" not in site.kubectl("logs", "whole", "-c", "train", "-n", team)
