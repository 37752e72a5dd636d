# SPDX-License-Identifier: Apache-2.0
"""Slices on a GPU, from inside containers: caps as asked, and a budget that runs out is felt by the slice alone."""

from __future__ import annotations

from datetime import UTC, datetime

from cluster.harness.binaries import say
from cluster.harness.budget_runs_out import speed
from cluster.harness.charges import charge_of
from cluster.harness.cluster import Cluster
from cluster.harness.gpu_work import (
    BATCH,
    GREEDY,
    TRAIN,
    attacker,
    kill_arbiter,
    one_gpu,
    policy,
    said,
    seat_of,
    worker,
)
from cluster.harness.hostile_container import FORKS
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, wait_for
from cluster.harness.lost_pods import kill_agent, restart_kubelet
from cluster.harness.site import Site, deployment, gpu_container, pod

from slicekeeper import names
from slicekeeper.wire.timekeeper import Budget

GIB = 1 << 30


def _wait_for(site: Site, namespace: str, name: str, *held: object) -> None:
    wait_for(lambda: policy(site, namespace, name)[-len(held) :] == held, f"{held} of {name}")


def _goes_on(site: Site, namespace: str, name: str) -> None:
    before = len(said(site, namespace, name, "steps"))
    wait_for(lambda: len(said(site, namespace, name, "steps")) > before, "steps")


def _restarts_of_agent(site: Site) -> int:
    count: int = site.part("nodeagent")["status"]["containerStatuses"][0]["restartCount"]
    return count


def test_a_budget_that_runs_out_makes_running_slices_background_and_a_grant_brings_them_back(site: Site) -> None:
    poor, rich = site.namespace(), site.namespace()
    here = one_gpu(site)
    site.kubectl.create(pod("train", TRAIN, annotations=here), namespace=rich)
    site.kubectl.create(pod("greedy", GREEDY, annotations={**here, names.CORE_LIMIT: "90"}), namespace=poor)
    for namespace, name, expected in (
        (rich, "train", (50, 100, 4 * GIB, "in-budget", 1)),
        (poor, "greedy", (40, 90, 8 * GIB, "in-budget", 1)),
    ):
        site.wait_phase(namespace, name, "Running")
        _wait_for(site, namespace, name, *expected)
        [memory] = wait_for(lambda n=namespace, p=name: said(site, n, p, "memory"), "its memory")
        assert memory == [str(expected[2]), "2", "0"], "its slice, and not one byte more"
    began = site.pod(poor, "greedy")["status"]["containerStatuses"]
    site.kubectl.patch("pod", "greedy", {"metadata": {"annotations": {names.CORE_LIMIT: "60"}}}, poor)
    _wait_for(site, poor, "greedy", 40, 60, 8 * GIB, "in-budget", 1)

    with site.timekeeper() as client:
        client.set_budget(Budget, poor, {"amountMs": 1_000, "period": "none", "timeZone": "UTC"})
    _wait_for(site, poor, "greedy", "background", 1)
    kept = wait_for(lambda: policy(site, rich, "train"), "the arbiter's answer")
    assert kept == (50, 100, 4 * GIB, "in-budget", 1)
    with site.timekeeper() as client:
        client.grant(Budget, poor, 3_600_000, "the suite says so", "grant-1")
    _wait_for(site, poor, "greedy", "in-budget", 1)
    assert site.pod(poor, "greedy")["status"]["containerStatuses"] == began, "nothing was restarted"
    _goes_on(site, poor, "greedy")


def test_arbiter_and_agent_are_replaced_under_running_slices(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("train", worker(30, 16, batch=5, kernel="spin_1ms", host=0.005)), namespace=team)
    site.wait_phase(team, "train", "Running")
    held = (30, 100, 4 * GIB, "in-budget", 1)
    _wait_for(site, team, "train", *held)
    for part in ("arbiter", "nodeagent"):
        site.rollout(f"daemonset/{part}")
        _wait_for(site, team, "train", *held)
    _goes_on(site, team, "train")
    assert site.pod(team, "train")["status"]["containerStatuses"][0]["restartCount"] == 0


def test_whatever_is_killed_on_the_node_slices_hold_and_the_charge_is_exact(site: Site, cluster: Cluster) -> None:
    team = site.namespace()
    training = worker(30, 16, batch=5, kernel="spin_1ms", host=0.005)
    site.kubectl.create(pod("train", training), namespace=team)
    began = site.wait_phase(team, "train", "Running")
    held = (30, 100, 4 * GIB, "in-budget", 1)
    _wait_for(site, team, "train", *held)

    def kill_agents() -> None:
        """Kill an agent, and then the one that takes its place: kubelet would wait before it starts a third."""
        before = _restarts_of_agent(site)
        for ceiling in (60, 100):
            kill_agent(site, cluster)
            site.kubectl.patch("pod", "train", {"metadata": {"annotations": {names.CORE_LIMIT: str(ceiling)}}}, team)
            _wait_for(site, team, "train", 30, ceiling, 4 * GIB, "in-budget", 1)
        assert _restarts_of_agent(site) == before

    def kill_sidecar() -> None:
        [sidecar] = began["status"]["initContainerStatuses"]
        cluster.kill_container(sidecar["containerID"])

    def restart_containerd() -> None:
        cluster.kill("containerd")
        cluster.start("containerd")

    for blow in (
        lambda: kill_arbiter(cluster),
        kill_agents,
        lambda: restart_kubelet(site, cluster),
        restart_containerd,
        kill_sidecar,
    ):
        blow()
        _wait_for(site, team, "train", *held)
        _goes_on(site, team, "train")
    status = site.pod(team, "train")["status"]["containerStatuses"][0]
    assert (status["restartCount"], status["containerID"]) == (
        0,
        began["status"]["containerStatuses"][0]["containerID"],
    )
    cluster.kill_container(status["containerID"])
    done = site.wait_phase(team, "train", "Failed")
    closed = wait_for(lambda: [w for w in site.workloads(team).values() if w.state == "closed"], "its charge")
    assert closed[0].charged_ms == charge_of(done)


def test_a_node_whose_run_folder_is_emptied_puts_its_slices_back(site: Site, cluster: Cluster) -> None:
    """As a reboot does, for a container that is started again afterwards."""
    team = site.namespace()
    training = worker(30, 16, batch=5, kernel="spin_1ms", host=0.005)
    made = deployment("train", training)
    made["spec"]["template"]["metadata"]["annotations"] = {names.GPU_CLASS: names.BACKGROUND, names.CORE_LIMIT: "60"}
    site.kubectl.create(made, namespace=team)

    def running() -> list[Object]:
        return [one for one in site.pods(team) if one["status"].get("phase") == "Running"]

    [one] = wait_for(running, "a running pod")
    name, held = one["metadata"]["name"], (30, 60, 4 * GIB, "background", 1)
    _wait_for(site, team, name, *held)
    cluster.run("sh", "-c", "rm -rf /run/slicekeeper/* /var/run/cdi/*")
    _wait_for(site, team, name, *held)  # the arbiter has filled the folder again, and its process kept its seat
    ours = ("-l", "app.kubernetes.io/name in (arbiter, nodeagent)")
    site.kubectl("delete", "pods", "-n", NAMESPACE, *ours)
    for part in ("arbiter", "nodeagent"):
        site.kubectl.rollout(f"daemonset/{part}", NAMESPACE)
    _wait_for(site, team, name, *held)
    cluster.kill_container(one["status"]["containerStatuses"][0]["containerID"])

    def restarted() -> list[Object]:
        return [one for one in running() if one["status"]["containerStatuses"][0]["restartCount"] == 1]

    [after] = wait_for(restarted, "its next container")
    _wait_for(site, team, name, *held)
    _goes_on(site, team, name)
    assert after["metadata"]["uid"] == one["metadata"]["uid"]


def test_after_a_reboot_of_the_node_slices_are_held_again_and_what_ended_is_paid(site: Site, cluster: Cluster) -> None:
    """kubelet fails every pod with a device of a plugin that is a pod, ours or another's: it judges them first."""
    team = site.namespace()
    training = worker(30, 16, batch=5, kernel="spin_1ms", host=0.005)
    site.kubectl.create(deployment("train", training), pod("alone", training), namespace=team)

    def running(but: frozenset[str] = frozenset()) -> list[Object]:
        return [
            one
            for one in site.pods(team)
            if one["status"].get("phase") == "Running"
            and one["metadata"]["uid"] not in but
            and "deletionTimestamp" not in one["metadata"]
        ]

    before = wait_for(lambda: found if len(found := running()) == 2 else [], "both pods")
    held = (30, 100, 4 * GIB, "in-budget", 1)
    for one in before:
        _wait_for(site, team, one["metadata"]["name"], *held)
    ran_until = datetime.now(UTC)
    cluster.reboot()
    gone = frozenset(one["metadata"]["uid"] for one in before)
    [after] = wait_for(lambda: running(gone), "another pod of the Deployment", seconds=180)
    name = after["metadata"]["name"]
    _wait_for(site, team, name, *held)
    _goes_on(site, team, name)
    ended = {one["metadata"]["uid"]: one for one in site.pods(team) if one["metadata"]["uid"] in gone}
    assert {one["status"]["reason"] for one in ended.values()} == {"UnexpectedAdmissionError"}

    def closed() -> dict[str, int]:
        found = site.workloads(team).values()
        return {w.pod_uid: w.charged_ms for w in found if w.state == "closed" and w.pod_uid in gone}

    charges = wait_for(lambda: found if len(found := closed()) == 2 else {}, "their charges")
    # kubelet writes whole seconds, and the refusal came before the Deployment made another pod.
    refused = datetime.fromisoformat(after["metadata"]["creationTimestamp"])
    for uid, one in ended.items():
        bound = datetime.fromisoformat(one["metadata"]["annotations"]["slicekeeper.io/bound-at"])
        least, most = (300 * (end - bound).total_seconds() for end in (ran_until, refused))
        assert least - 600 <= charges[uid] <= most + 300, one["status"]


def test_a_hostile_container_keeps_to_its_caps_or_is_evicted_and_its_neighbour_keeps_its_share(site: Site) -> None:
    team, other = site.namespace(), site.namespace("audited")
    here = one_gpu(site)
    site.kubectl.create(pod("train", TRAIN, annotations=here), namespace=team)
    site.wait_phase(team, "train", "Running")
    wait_for(lambda: said(site, team, "train", "steps"), "steps")
    site.kubectl.create(pod("hostile", attacker(30, 8), annotations=here), namespace=other)
    site.wait_phase(other, "hostile", "Running")
    wait_for(lambda: said(site, other, "hostile", "over"), "end of the attack", seconds=120)
    outcome = {what: said(site, other, "hostile", what) for what in ("damaged", "memory", "sockets", "granted")}
    assert outcome == {
        "damaged": [["0"]],  # a mount is neither removed nor written
        "memory": [[str(2 * GIB)]] * 2,  # the file for preloading binds programs that have lost the variable
        "sockets": [["0"]],
        "granted": [[str(2 * GIB)]],
    }, f"{FORKS} children"
    [[began]], [[ended]] = (said(site, other, "hostile", what) for what in ("forking", "forked"))
    share = speed(site, team, "train", float(began), float(ended)) * BATCH["train"] / 1000  # of kernels of 1 ms
    say(f"beside {FORKS} forks in {float(ended) - float(began):.1f} s the neighbour has {share:.0%} of the GPU")
    assert share > 0.45, "nine tenths of what it asked for"
    seat = seat_of(site, other, "hostile")
    assert seat is not None
    assert seat["memory_peak"] <= seat["memory_limit"] == 2 * GIB
    # Preloading is a fence: a program that evades it and uses memory beyond the limit is reported, and evicted if the
    # policy says so.
    [told] = wait_for(lambda: site.events(other, "OutsideSlice"), "word of it")
    assert "container train uses GPU" in told["message"]
    wait_for(lambda: site.events(other, "AuditEviction"), "eviction")
    wait_for(lambda: not site.pods(other), "its end")
    kept = wait_for(lambda: policy(site, team, "train"), "the arbiter's answer")
    assert kept == (50, 100, 4 * GIB, "in-budget", 1)
    _goes_on(site, team, "train")


def test_images_without_a_loader_start_unharmed_and_a_whole_gpu_has_no_limiter(site: Site) -> None:
    team = site.namespace()
    show = "cat /etc/ld.so.preload; ls /run/slicekeeper"
    static = gpu_container(script=show, core=30, blocks=4)
    static["securityContext"] = {"readOnlyRootFilesystem": True}
    site.kubectl.create(
        pod("part", static), pod("whole", gpu_container(script=show, core=100, blocks=None)), namespace=team
    )
    site.wait_phase(team, "part", "Succeeded")
    seen = wait_for(lambda: site.kubectl("logs", "part", "-c", "train", "-n", team).split(), "its log")
    assert seen == [names.LIBRARY_PATH, "seat.json", "seat.sock"]
    site.wait_phase(team, "whole", "Succeeded")
    assert "seat.sock" not in site.kubectl("logs", "whole", "-c", "train", "-n", team)
