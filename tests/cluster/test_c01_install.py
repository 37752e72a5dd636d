# SPDX-License-Identifier: Apache-2.0
"""Installed from nothing: everything is ready, and every kind of workload runs on its slice and is charged."""

from __future__ import annotations

import json
import os

import pytest
from cluster.harness.charges import charge_of
from cluster.harness.gpu_work import seats
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, wait_for
from cluster.harness.site import (
    CORE,
    MEMORY,
    SEAT,
    Site,
    deployment,
    gpu_container,
    job,
    plain_container,
    pod,
    template,
)

from slicekeeper import names
from slicekeeper.gpu import inventory

SHOW = "cat /run/slicekeeper/seat.json"
CROWD = int(os.environ.get("SLICEKEEPER_CLUSTER_CROWD", "36"))
"""Pods that start at once, each with two GPU containers. The node has seats for 170; with more, GPUs for 200."""


def test_every_part_is_ready_and_all_but_those_of_the_node_are_restricted(site: Site) -> None:
    pods = site.pods(NAMESPACE)
    restricted = site.namespace(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    assert {p["metadata"]["labels"]["app.kubernetes.io/name"] for p in pods} == {
        "arbiter",
        "certificates",
        "nodeagent",
        "scheduler",
        "timekeeper",
        "timekeeper-forwarder",
        "webhook",
    }
    for part in pods:
        ready = {c["type"]: c["status"] for c in part["status"]["conditions"]}
        assert ready["Ready"] == "True", part["metadata"]["name"]
        assert all(c["securityContext"]["readOnlyRootFilesystem"] for c in part["spec"]["containers"])
        if part["metadata"]["labels"]["app.kubernetes.io/name"] not in ("arbiter", "nodeagent"):
            spec = {key: part["spec"][key] for key in ("containers", "volumes", "securityContext")}
            copy = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "copy"}, "spec": spec}
            spec["containers"] = [{**c, "volumeMounts": []} for c in spec["containers"]]
            site.kubectl.create(copy, namespace=restricted, dry_run=True)
    told = site.kubectl(
        "label",
        "--dry-run=server",
        "--overwrite",
        "namespace",
        NAMESPACE,
        "pod-security.kubernetes.io/enforce=restricted",
    )
    assert "labeled" in told


def test_the_node_shows_its_gpus_and_their_capacity(site: Site) -> None:
    node = next(n for n in site.kubectl.list("nodes") if inventory.of_node(n))
    gpus = inventory.of_node(node)
    for amounts in (node["status"]["capacity"], node["status"]["allocatable"]):
        assert int(amounts[CORE]) == 100 * len(gpus)
        assert int(amounts[MEMORY]) == sum(gpu.memory_mib // 256 for gpu in gpus)
        assert int(amounts[SEAT]) == 512


def test_a_job_completes_with_the_meter_inside_and_is_charged_exactly(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(job("train", gpu_container(script=f"{SHOW}; sleep 2", core=25)), namespace=team)
    site.kubectl.wait("Complete", "job/train", team)
    [done] = site.pods(team)
    assert done["spec"]["initContainers"][0]["name"] == names.SIDECAR
    closed = wait_for(
        lambda: [w for w in site.workloads(team).values() if w.state == "closed"],
        "closed interval",
        seconds=180,
    )
    assert closed[0].charged_ms == charge_of(done)


def test_what_the_design_says_stands_on_a_pod(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("one", gpu_container(script=f"env; {SHOW}; sleep 60", core=30)), namespace=team)
    running = site.wait_phase(team, "one", "Running")
    annotations, spec = running["metadata"]["annotations"], running["spec"]
    chosen = annotations[names.gpu_annotation("train")]
    assert chosen in {gpu.uuid for node in site.kubectl.list("nodes") for gpu in inventory.of_node(node)}
    assert annotations[names.BUDGET_STATE] == names.IN_BUDGET
    assert annotations[names.CORE_LIMIT] == "100"
    assert annotations[names.BOUND_AT].endswith("Z")
    assert names.FINALIZER in running["metadata"]["finalizers"]
    assert running["metadata"]["labels"][names.MANAGED_LABEL] == names.MANAGED_VALUE
    assert spec["schedulerName"] == "slicekeeper-scheduler"
    assert spec["containers"][0]["resources"]["limits"][SEAT] == "1"
    assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in spec["containers"][0]["env"]
    said = _logs(site, team, "one", "train", '"gpus"')
    assert "NVIDIA_VISIBLE_DEVICES=void" in said
    seat = json.loads(said.splitlines()[-1])
    assert (seat["namespace"], seat["pod"], seat["uid"]) == (team, "one", running["metadata"]["uid"])
    assert seat["gpus"] == [chosen]


def test_static_and_musl_programs_on_a_read_only_root_run_unharmed_beside_the_limiter(site: Site) -> None:
    team = site.namespace()
    script = "echo $LD_PRELOAD; cat /etc/ld.so.preload; plain maps; plain; echo done; sleep 60"
    container = {**gpu_container(script=script, core=10), "securityContext": {"readOnlyRootFilesystem": True}}
    bare = plain_container(script="ls -d /etc/ld.so.preload; sleep 60")
    site.kubectl.create(pod("one", container, bare), namespace=team)
    site.wait_phase(team, "one", "Running")
    _logs(site, team, "one", "main", "No such file")  # the image has none of its own
    said = _logs(site, team, "one", "train", "done")
    variable, file, loaded, ran, _ = said.splitlines()
    assert variable == file.strip() != ""
    assert loaded.startswith("user 65532, "), "whether musl loads the limiter or not, it hooks nothing"
    assert ran.split()[::2] == ["plain", "0"]


def test_containers_see_their_own_seat_and_no_neighbours(site: Site) -> None:
    team = site.namespace()
    containers = (
        gpu_container("left", f"{SHOW}; sleep 60", core=10),
        gpu_container("right", f"{SHOW}; sleep 60", core=100, blocks=None),
        plain_container("bare", "ls -d /run/slicekeeper /run; touch /run/slicekeeper/x; sleep 60"),
    )
    site.kubectl.create(pod("pair", *containers), namespace=team)
    running = site.wait_phase(team, "pair", "Running")
    seats = {name: json.loads(_logs(site, team, "pair", name)) for name in ("left", "right")}
    for name, seat in seats.items():
        assert seat["container"] == name
        assert seat["gpus"] == running["metadata"]["annotations"][names.gpu_annotation(name)].split(",")
    assert seats["left"]["id"] != seats["right"]["id"]
    assert seats["left"]["gpus"] != seats["right"]["gpus"]
    _logs(site, team, "pair", "bare", "ls: /run/slicekeeper: No such file")
    with pytest.raises(Exception, match="Read-only"):
        site.kubectl("exec", "pair", "-c", "left", "-n", team, "--", "touch", "/run/slicekeeper/x")


def test_deployment_statefulset_and_cronjob_run(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(deployment("serve", gpu_container(core=5, blocks=4), count=2), namespace=team)
    labels = {"set": "test"}
    made = template(gpu_container(core=5, blocks=4), restartPolicy="Always")
    made["metadata"]["labels"] = labels
    stateful = {
        "apiVersion": "apps/v1",
        "kind": "StatefulSet",
        "metadata": {"name": "db"},
        "spec": {"replicas": 2, "serviceName": "db", "selector": {"matchLabels": labels}, "template": made},
    }
    cron = {
        "apiVersion": "batch/v1",
        "kind": "CronJob",
        "metadata": {"name": "nightly"},
        "spec": {
            "schedule": "0 0 1 1 *",
            "jobTemplate": {"spec": {"template": template(gpu_container(script="true", core=5, blocks=4))}},
        },
    }
    site.kubectl.create(stateful, cron, namespace=team)
    site.kubectl("create", "job", "tonight", "--from=cronjob/nightly", "-n", team)
    site.kubectl.rollout("deployment/serve", team)
    site.kubectl.rollout("statefulset/db", team)
    site.kubectl.wait("Complete", "job/tonight", team)
    site.kubectl("rollout", "restart", "deployment/serve", "-n", team)
    site.kubectl.rollout("deployment/serve", team)
    site.kubectl("delete", "pod", "db-0", "-n", team)  # the ordinal waits for the finalizer
    site.kubectl.rollout("statefulset/db", team)


def test_many_pods_at_once_each_of_whose_containers_has_its_own_seat(site: Site) -> None:
    team = site.namespace("crowd")
    most = 200 // CROWD
    asked = {"train": (min(3, most), 4), "eval": (min(2, most), 2)}
    containers = (gpu_container(name, f"{SHOW}; sleep 900", *amounts) for name, amounts in asked.items())
    site.kubectl.create(job("crowd", *containers, count=CROWD), namespace=team)

    def running() -> list[Object]:
        pods = site.pods(team)
        up = [p for p in pods if p["status"].get("phase") == "Running"]
        return up if len(up) == CROWD else []

    pods = wait_for(running, "all of them running", seconds=5 * max(CROWD, 36), pause=2)
    failed = [event["message"] for event in site.events(team, "Failed")]
    assert not [why for why in failed if "CDI" in why], "a container was created before its runtime knew its seat"
    held = seats(site)
    loads: dict[str, int] = {}
    seen = set()
    for name, (core, blocks) in asked.items():
        every = ("--tail=-1", f"--max-log-requests={CROWD}")
        said = site.kubectl("logs", "-n", team, "-l", "job-name=crowd", "-c", name, "--prefix", *every)
        lines = (line.partition("] ") for line in said.splitlines())
        shown = {prefix.split("/")[1]: json.loads(text) for prefix, _, text in lines}
        for one in pods:
            seat = shown[one["metadata"]["name"]]
            there = held[f"{seat['id']}-{seat['nonce']}"]
            assert ([there["uuid"]], there["core"], there["memory_limit"]) == (seat["gpus"], core, blocks << 28)
            assert (seat["uid"], seat["container"]) == (one["metadata"]["uid"], name)
            assert seat["gpus"] == [one["metadata"]["annotations"][names.gpu_annotation(name)]]
            seen.add(seat["id"])
            loads[seat["gpus"][0]] = loads.get(seat["gpus"][0], 0) + core
    assert len(seen) == CROWD * len(asked)
    assert max(loads.values()) <= 100
    site.kubectl("delete", "job", "crowd", "-n", team, "--wait=false")


def _logs(site: Site, namespace: str, name: str, container: str, part: str = "") -> str:
    """Wait until a container has said something, and this part of it; return all that it has said."""

    def look() -> str:
        text = site.kubectl("logs", name, "-c", container, "-n", namespace)
        return text if part in text else ""

    return wait_for(look, f"output {part}")
