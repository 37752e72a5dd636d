# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper explain` about pods on a real API: those that wait, and those that have a place."""

import json
import re
from unittest import mock

import pytest
from click.testing import CliRunner
from support.manual_clock import ManualClock
from support.small_cluster import NAMESPACE, small_cluster
from support.waiting_pods import OVER

from simulator.api_errors import ApiError
from slicekeeper import names
from slicekeeper.cli.main import cli
from slicekeeper.kube import events
from slicekeeper.kube.client import NAMESPACES, NODES, PODS
from slicekeeper.net.timekeeper_client import TimekeeperClient


@pytest.fixture
def real(tmp_path, monkeypatch):
    with small_cluster() as made:
        monkeypatch.setenv("SLICEKEEPER_KUBERNETES_SERVER", made.server.url)
        monkeypatch.setenv("SLICEKEEPER_HOME", str(tmp_path))
        monkeypatch.delenv("KUBECONFIG", raising=False)
        yield made


def explain(*args):
    done = CliRunner().invoke(cli, ["explain", *args])
    assert done.exit_code == 0, done.output
    return done.output


def test_the_command_tells_of_a_waiting_pod(real):
    real.node("n0")
    real.pod("w", 200, 0)
    told = json.loads(explain("w", "-n", NAMESPACE, "-o", "json"))
    assert (told["state"], told["expected"]) == ("waiting", None)
    assert told["reasons"] == [{"reason": "its GPUs could not hold 2 whole GPUs even if they were idle", "nodes": 1}]
    words = explain("pod/w", "-n", NAMESPACE)
    assert "Pod team-a/w waits since " in words
    assert "  1 node: its GPUs could not hold 2 whole GPUs" in words
    assert "Expected: never as things are; no pod's end would make room" in words
    assert words.endswith("the largest node 1 GPU\n")


def test_the_command_tells_where_a_pod_went(real):
    why = "best-fit, the cheapest of 2 nodes with room; GPU before: idle"
    annotations = {
        names.gpu_annotation("c"): "n0-0",
        names.BOUND_AT: "2027-01-15T08:00:00.000Z",
        names.SHARING_MODE: f"shared: adaptive, a share was asked for; {why}",
    }
    real.pod("p", annotations=annotations, nodeName="n0")
    words = explain("p", "-n", NAMESPACE)
    assert "has its place since 2027-01-15T08:00:00.000Z (in-budget)" in words
    assert "on node n0 (shared: adaptive, a share was asked for):\n  container c: n0-0" in words
    assert f"Why there: {why}" in words


def test_what_kube_scheduler_said_last_is_the_condition_as_it_is_now(real):
    made = real.pod("w", 50)
    said = [
        {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    ]
    real.client.patch(PODS, "w", {"status": {"conditions": said}}, NAMESPACE, subresource="status")
    events.write(
        real.client,
        real.clock,
        made,
        kind="Warning",
        reason="FailedScheduling",
        action="Scheduling",
        note="0/1 nodes are available",
        reporter="slicekeeper-scheduler",
    )
    assert explain("w", "-n", NAMESPACE).endswith("kube-scheduler said last:\n  0/3 nodes are available\n")


def test_a_pod_that_its_owner_put_on_a_node_has_a_time_too(real):
    real.pod("p", nodeName="n0")
    assert re.search(r"has its place since \d{4}-", explain("p", "-n", NAMESPACE))


def test_a_pod_that_the_webhook_has_not_seen_is_told(real):
    real.pod("stranger", managed=False)
    assert "create it again in a namespace where the webhook is on" in explain("stranger", "-n", NAMESPACE)


def test_something_is_always_said_to_be_why(real):
    real.pod("w")
    assert "Why:\n  no node has GPUs that Slicekeeper manages\n" in explain("w", "-n", NAMESPACE)
    real.node("n0")
    assert "Why:\n  nothing on GPUs: there is room\nExpected: now, on node n0" in explain("w", "-n", NAMESPACE)
    real.pod("gated", schedulingGates=[{"name": "slicekeeper.io/budget"}])
    words = explain("gated", "-n", NAMESPACE)
    assert "Why:\n  held back by its scheduling gate: slicekeeper.io/budget\n" in words
    assert "Expected: unknown; its scheduling gate comes first" in words


def test_a_pod_behind_a_safe_budget_is_told_how_much_gpu_time_is_missing(real):
    real.node("n0")
    pod = real.pod("gated", schedulingGates=[{"name": names.GATE}])
    assert "the timekeeper said" not in explain("gated", "-n", NAMESPACE)
    clock = ManualClock(1_800_000_000_000)
    for note in ("waits behind pod w", "needs 2h of GPU time: 1h30m are missing (30m are free)"):
        clock.advance(60_000)
        text = {"kind": "Warning", "reason": names.WAITS_FOR_GPU_TIME, "action": "Reserve", "reporter": "timekeeper"}
        events.write(real.client, clock, pod, note=f"This pod {note}", **text)
        events.write(real.client, clock, pod, note="else", **{**text, "reason": "Else"})
    words = explain("gated", "-n", NAMESPACE)
    assert (
        f"  held back by its scheduling gate: {names.GATE}\n"
        "  at 2027-01-15T08:02:00Z the timekeeper said: "
        "This pod needs 2h of GPU time: 1h30m are missing (30m are free)\n"
    ) in words
    assert f"the namespace's safe budget sets aside for it: slicekeeper budget grant {NAMESPACE} AMOUNT" in words
    assert "hard" not in words


def test_a_pod_that_others_give_way_to_has_its_place_soon(real):
    real.node("n0")
    real.pod("v", 60, state=OVER, annotations={names.gpu_annotation("c"): "n0-0"}, nodeName="n0")
    real.pod("w", 60)
    words = explain("w", "-n", NAMESPACE)
    assert "About to give way to it: team-a/v\nExpected: soon, when the pods that give way to it have ended" in words


def test_the_command_counts_the_cpu_of_all_pods_if_there_is_room_on_gpus(real):
    real.node("n0")
    real.client.patch(NODES, "n0", {"status": {"allocatable": {"cpu": "2", "memory": "8Gi"}}}, subresource="status")
    requests = {"requests": {"cpu": "1500m"}}
    containers = [{"name": "c", "image": "web", "resources": requests}]
    real.pod("web", managed=False, nodeName="n0", containers=containers)
    limits = {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "4"}
    real.pod("w", containers=[{"name": "c", "image": "cuda", "resources": {"limits": limits, **requests}}])
    words = explain("w", "-n", NAMESPACE)
    assert "1 node: GPUs are free, but not enough CPU or main memory (asked for: cpu 1.5, memory 0Mi)" in words
    assert "Expected: unknown" in words


def test_a_pod_that_waits_for_one_that_is_being_deleted_is_not_told_of_its_deadline(real):
    real.node("n0")
    real.pod("a", annotations={names.gpu_annotation("c"): "n0-0"}, nodeName="n0")
    real.client.delete(PODS, "a", NAMESPACE)
    real.pod("w")
    assert "Expected: soon, on node n0, when team-a/a has ended, which is being deleted" in explain(
        "w", "-n", NAMESPACE
    )


def test_the_command_tells_how_a_gang_stands(real):
    gang = {names.GANG: "bert", names.GANG_SIZE: "3"}
    real.node("n0", gpus=2)
    for name in ("a", "b"):
        real.pod(name, annotations=gang)
    assert (
        "Gang bert: 3 pods are placed together or not at all; 0 have one, 2 wait, of which 2 would fit now "
        "together, and 1 must still come" in explain("a", "-n", NAMESPACE)
    )
    assert json.loads(explain("a", "-n", NAMESPACE, "-o", "json"))["expected"] is None
    assert "create the pods that are missing (1), or name a smaller" in explain("a", "-n", NAMESPACE)
    real.pod("gated", annotations=gang, schedulingGates=[{"name": names.GATE}])
    words = explain("a", "-n", NAMESPACE)
    assert "pods of its gang are held back by scheduling gates (1): `slicekeeper explain` them" in words
    assert "create the pods" not in words
    real.end("gated")
    real.pod("c", annotations=gang)
    words = explain("a", "-n", NAMESPACE)
    assert "3 wait; it can never fit: idle GPUs would hold 2 of them\nExpected: never as things are" in words
    assert "there is room" not in words
    real.node("n1", gpus=2)
    real.pod("p", annotations={names.gpu_annotation("c"): "n1-0"}, nodeName="n1")
    assert "0 have one, 3 wait, of which 3 would fit now together" in explain("a", "-n", NAMESPACE)


@pytest.mark.parametrize("name", ["slicekeeper-scheduler", "gpus"])
def test_nodes_of_other_schedulers_do_not_count_and_one_with_room_is_named(real, name):
    for node in ("n0", "n1"):
        real.node(node)
    real.client.patch(NODES, "n1", {"metadata": {"labels": {names.SHARD: "b"}}})
    real.pod("v", 60, annotations={names.gpu_annotation("c"): "n0-0"}, nodeName="n0")
    real.pod("first", 60, schedulerName=name)
    words = explain("first", "-n", NAMESPACE)
    assert "  1 node: not enough is free" in words
    assert f"{name}-b has nodes with room for it: create it again with that schedulerName" in words
    real.pod("second", 60, schedulerName=f"{name}-b")
    assert "Expected: now, on node n1" in explain("second", "-n", NAMESPACE)


def test_a_scheduler_without_nodes_is_no_other_one(real):
    real.node("n0")
    real.pod("stray", 30, schedulerName="slicekeeper-scheduler-c")
    words = explain("stray", "-n", NAMESPACE)
    assert "Why:\n  no node has GPUs that Slicekeeper manages\n" in words
    assert "slicekeeper-scheduler has nodes with room for it" in words


def test_what_others_wrote_into_a_pod_forges_no_line_of_the_answer(real):
    forged = "shared; why\n\x1b[2JExpected: now, on node n9"
    annotations = {names.gpu_annotation("c"): "n0-0\nExpected: now", names.SHARING_MODE: forged}
    real.pod("p", annotations=annotations, nodeName="n0")
    words = explain("p", "-n", NAMESPACE)
    assert not [line for line in words.splitlines() if line.startswith("Expected")]
    assert "\x1b" not in words
    assert r"Why there: why\n\x1b[2JExpected" in words


def test_a_pod_or_a_namespace_that_is_not_there_is_named_as_the_user_names_it(real):
    for args, told in ((("w", "-n", NAMESPACE), f"pod {NAMESPACE}/w is not found"),
                       (("pod/w", "-n", "taem"), "namespace taem is not found")):  # fmt: skip
        done = CliRunner().invoke(cli, ["explain", *args])
        assert (done.exit_code, str(done.exception)) == (1, told)


def as_researcher(real, monkeypatch):
    """Let the API server answer as to a user who has the role `edit` in one namespace."""
    answer = real.api.answer

    def checked(method, call):
        if not call.namespace and call.kind.resource.plural in ("nodes", "pods", "jobs"):
            plural = call.kind.resource.plural
            raise ApiError(
                403, "Forbidden", f'{plural} is forbidden: User "jane" cannot list {plural} at the cluster scope'
            )
        return answer(method, call)

    monkeypatch.setattr(real.api, "answer", checked)


def test_a_user_of_one_namespace_is_told_what_was_said_about_a_pod(real, monkeypatch):
    made = real.pod("w", 50)
    as_researcher(real, monkeypatch)
    words = explain("w", "-n", NAMESPACE)
    assert "Nothing has been said about it yet" in words
    for reason, note in ((names.WAITS_FOR_GPU, "Pods served before it: 3."), ("Other", "not this")):
        write = {"kind": "Normal", "reason": reason, "action": "Scheduling", "note": note, "reporter": "scheduler"}
        events.write(real.client, real.clock, made, **write)
    said = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes are available"}
    real.client.patch(PODS, "w", {"status": {"conditions": [said]}}, NAMESPACE, subresource="status")
    words = explain("w", "-n", NAMESPACE)
    assert "Pod team-a/w waits since " in words
    assert ": Pods served before it: 3." in words
    assert "kube-scheduler said last:\n  0/3 nodes are available" in words
    assert "not this" not in words
    told = json.loads(explain("w", "-n", NAMESPACE, "-o", "json"))
    assert [one["message"] for one in told["told"]] == ["Pods served before it: 3."]


def test_a_pod_is_named_as_pods_prints_it(real):
    real.pod("w", 200, 0)
    for named in (["team-a/w"], ["pod/w", "-n", "team-a"], ["team-a/w", "-n", "team-a"]):
        assert explain(*named).startswith("Pod team-a/w waits since ")
    done = CliRunner().invoke(cli, ["explain", "team-a/w", "-n", "other"])
    assert done.exit_code == 2
    assert "team-a/w names the namespace team-a, and -n names other" in done.output


def test_a_budget_that_runs_out_makes_room(real, monkeypatch):
    real.node("n0")
    real.client.create(NAMESPACES, {"metadata": {"name": "spender"}})
    holds = real.pod("h", 100, 0, annotations={names.gpu_annotation("c"): "n0-0"}, nodeName="n0")
    real.client.delete(PODS, "h", NAMESPACE)
    metadata = {key: holds["metadata"][key] for key in ("name", "labels", "annotations")}
    real.client.create(PODS, {"metadata": metadata, "spec": holds["spec"]}, "spender")
    real.pod("w", 100, 0)
    assert "Expected: unknown" in explain("w", "-n", NAMESPACE)
    at = "2100-01-01T00:00:00.000Z"

    def budgets(_self, _kind):
        return [mock.Mock(namespace="spender", run_out_at=at, enforcement=enforcement, gone=False)]

    monkeypatch.setenv("SLICEKEEPER_TIMEKEEPER_CLIENT_URL", "http://127.0.0.1:9")
    monkeypatch.setattr(TimekeeperClient, "budgets", budgets)
    enforcement = "soft"
    words = explain("w", "-n", NAMESPACE)
    assert f"Expected: about {at} on node n0, when the budget of spender/h runs out: then it gives way" in words
    enforcement = "safe"
    assert "Expected: unknown" in explain("w", "-n", NAMESPACE)
