# SPDX-License-Identifier: Apache-2.0
"""The extender's protocol: kube-scheduler's requests, invalid requests, and bindings that fail."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import generate_latest
from support.asgi import ask
from support.manual_clock import ManualClock
from support.small_cluster import NAMESPACE, binding, lost_after, lost_before, small_cluster
from support.waiting import wait_for

from scheduler.app import make_app
from scheduler.held_places import HoldKind
from scheduler.scheduler_process import Scheduler
from simulator.api_errors import ApiError
from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings, ServingSettings, Settings
from slicekeeper.gpu import inventory
from slicekeeper.kube import agent_address
from slicekeeper.kube.client import NODES, PODS
from slicekeeper.net import probes
from slicekeeper.units import parse_instant


class Extender:
    """A scheduler on a small cluster, called as kube-scheduler calls it, without a socket."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.clock = ManualClock(1_800_000_000_123)
        self.scheduler = Scheduler(Settings(kubernetes=KubernetesSettings(server=cluster.server.url)), self.clock)
        self.state = self.scheduler.state
        self.app = make_app(self.scheduler)

    def start(self):
        self.scheduler.watches.start()
        wait_for(lambda: ask(self.app, "GET", "/readyz").status == 200, "ready")
        return self

    def call(self, verb, body):
        answer = ask(self.app, "POST", f"/{verb}", body if isinstance(body, bytes) else json.dumps(body).encode())
        return answer.status, answer.json

    def metrics(self):
        return generate_latest(self.scheduler.metrics.registry).decode()

    def filter(self, pod, *nodes):
        status, answer = self.call("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})
        assert status == 200
        assert answer["Error"] == ""
        return answer

    def bind(self, pod, node):
        status, answer = self.call("bind", binding(pod, node))
        assert status == 200
        return answer["Error"]


@pytest.fixture
def extender(cluster):
    made = Extender(cluster).start()
    yield made
    made.scheduler.watches.stop()


def counts(extender):
    return {kind.value: count for kind, count in extender.state.counts().items() if count}


def test_the_whole_path_of_a_pod(cluster, extender):
    pod = cluster.pod("a")
    assert extender.filter(pod, "n0", "n1")["NodeNames"] == ["n0", "n1"]
    status, scores = extender.call("prioritize", {"Pod": pod, "NodeNames": ["n0", "n1"]})
    assert (status, scores) == (200, [{"Host": "n0", "Score": 10}, {"Host": "n1", "Score": 9}])
    assert extender.bind(pod, "n0") == ""
    bound = cluster.get("a")
    annotations = bound["metadata"]["annotations"]
    assert bound["spec"]["nodeName"] == "n0"
    assert annotations[names.gpu_annotation("c")] == "n0-0"
    assert parse_instant(annotations[names.BOUND_AT]) == extender.clock.now_ms()
    assert annotations[names.BOUND_AT].endswith(".123Z")
    assert annotations[names.SHARING_MODE] == (
        "shared: adaptive, a share was asked for; best-fit, the cheapest of 2 nodes with room; GPU before: idle"
    )
    wait_for(lambda: counts(extender) == {"bound": 1}, "the watch shows it bound")
    assert extender.bind(pod, "n0") == ""
    assert "bound to node n0 already" in extender.bind(pod, "n1")


def test_the_binding_says_whether_a_pod_is_on_a_mig_slice_and_why(cluster, extender):
    mig = (inventory.MigSlice("MIG-a", 2048, 1, 7), inventory.MigSlice("MIG-b", 4096, 3, 7))
    listed = inventory.encode([inventory.Gpu("GPU-a", "A100", 16384, healthy=False, mig=mig)])
    cluster.client.create(NODES, {"metadata": {"name": "m", "annotations": {names.NODE_GPUS: listed}}})
    asked = cluster.pod("asked", 10, 4, annotations={names.SHARING: names.MIG})
    wait_for(lambda: extender.filter(asked, "m", "n0")["NodeNames"] == ["m"], "the node is seen")
    assert extender.bind(asked, "m") == ""
    adaptive = cluster.pod("adaptive", 40)
    assert extender.bind(adaptive, "m") == ""
    found = {name: cluster.get(name)["metadata"]["annotations"] for name in ("asked", "adaptive")}
    assert [chosen[names.gpu_annotation("c")] for chosen in found.values()] == ["MIG-a", "MIG-b"]
    assert found["asked"][names.SHARING_MODE] == (
        "mig: asked for; the only node with room; the smallest slice that fits"
    )
    assert found["adaptive"][names.SHARING_MODE] == (
        "mig: adaptive, no shared GPU here had room; kube-scheduler's own rules; the smallest slice that fits"
    )


def test_place_leaves_the_node_that_alone_would_get_ten_points(cluster, extender):
    cluster.node("n2")
    first, second = cluster.pod("a"), cluster.pod("b", core=60)
    wait_for(lambda: extender.filter(first, "n2")["NodeNames"] == ["n2"], "the node is seen")
    assert extender.bind(first, "n1") == ""
    for among in (["n0", "n1", "n2"], ["n2", "n0"], ["n1"]):
        args = {"Pod": second, "NodeNames": among}
        fitting = extender.filter(second, *among)["NodeNames"]
        scores = extender.call("prioritize", {"Pod": second, "NodeNames": fitting})[1]
        best = [score["Host"] for score in scores if score["Score"] == 10]
        assert len(best) == (among != ["n1"])
        status, answer = extender.call("place", args)
        assert (status, answer["NodeNames"]) == (200, best)
        assert bool(answer["FailedNodes"]) == (among == ["n1"])
        if not best:
            assert answer == extender.filter(second, *among), "with the reasons"
    assert extender.call("place", {"Pod": second, "NodeNames": ["n0", "n2"]})[1]["NodeNames"] == ["n0"]
    assert extender.bind(second, "n0") == ""
    assert cluster.get("b")["metadata"]["annotations"][names.gpu_annotation("c")] == "n0-0"


def test_place_leaves_kube_scheduler_all_nodes_as_good_as_the_best_if_the_pod_has_preferences(cluster, extender):
    for name in ("n2", "n3"):
        cluster.node(name)
    used = cluster.pod("used")
    wait_for(lambda: extender.filter(used, "n2", "n3")["NodeNames"] == ["n2", "n3"], "the nodes are seen")
    assert extender.bind(used, "n1") == ""
    every = ["n3", "n2", "n1", "n0"]
    term = {"weight": 1, "preference": {"matchExpressions": [{"key": "zone", "operator": "Exists"}]}}
    spread = {"maxSkew": 1, "topologyKey": "zone", "labelSelector": {}}
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    for number, (spec, left) in enumerate((
        ({"affinity": {"nodeAffinity": {preferred: [term]}}}, ["n3", "n2", "n0"]),
        ({"affinity": {"podAntiAffinity": {preferred: [{"weight": 1, "podAffinityTerm": {}}]}}}, ["n3", "n2", "n0"]),
        ({"topologySpreadConstraints": [{**spread, "whenUnsatisfiable": "ScheduleAnyway"}]}, ["n3", "n2", "n0"]),
        ({"topologySpreadConstraints": [{**spread, "whenUnsatisfiable": "DoNotSchedule"}]}, ["n0"]),
        ({"affinity": {"nodeAffinity": {preferred: []}, "podAffinity": None}}, ["n0"]),
    )):  # fmt: skip
        asks = cluster.pod(f"whole-{number}", core=100, blocks=0, **spec)
        assert extender.call("place", {"Pod": asks, "NodeNames": every})[1]["NodeNames"] == left
        extender.state.intake.drop_pod(asks["metadata"]["uid"])
    small = cluster.pod("small", core=40, affinity={"nodeAffinity": {preferred: [term]}})
    assert extender.call("place", {"Pod": small, "NodeNames": every})[1]["NodeNames"] == ["n1"], (
        "the policy comes first"
    )
    assert extender.bind(small, "n1") == ""
    extender.state.avoid("n3")
    asks = cluster.pod("whole", core=100, blocks=0, affinity={"nodeAffinity": {preferred: [term]}})
    assert extender.call("place", {"Pod": asks, "NodeNames": every})[1]["NodeNames"] == ["n2", "n0"]


def test_place_passes_pods_without_gpus_and_says_what_is_wrong_with_others(cluster, extender):
    plain, unmanaged = cluster.pod("plain", core=0, managed=False), cluster.pod("unmanaged", managed=False)
    for pod in (plain, unmanaged):
        assert extender.call("place", {"Pod": pod, "NodeNames": ["n0", "n1"]})[1] == extender.filter(pod, "n0", "n1")


def test_several_containers_and_whole_gpus(cluster, extender):
    cluster.node("big", gpus=4)
    limits = {"tencent.com/vcuda-core": "200"}
    extra = {"name": "d", "image": "x", "resources": {"limits": limits}}
    share = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "2"}
    pod = cluster.pod("a", containers=[extra, {"name": "e", "image": "x", "resources": {"limits": share}}])
    wait_for(lambda: extender.filter(pod, "big")["NodeNames"] == ["big"], "the node is seen")
    assert extender.filter(pod, "n0")["FailedAndUnresolvableNodes"] == {
        "n0": "its GPUs could not hold 2 whole GPUs + 30 percent of a GPU with 512 MiB even if they were idle"
    }
    assert extender.bind(pod, "big") == ""
    annotations = cluster.get("a")["metadata"]["annotations"]
    gpus = annotations[names.gpu_annotation("d")].split(",")
    assert len(set(gpus)) == 2
    assert annotations[names.gpu_annotation("e")] not in gpus


@pytest.mark.parametrize("style", [str.lower, str.upper, str.swapcase, lambda key: key])
def test_field_names_are_read_without_regard_to_case(cluster, extender, style):
    pod = cluster.pod("a")
    args = {style(k): v for k, v in {"Pod": pod, "Nodes": None, "NodeNames": ["n1"]}.items()}
    assert extender.call("filter", args)[1]["NodeNames"] == ["n1"]
    assert extender.call("bind", {style(k): v for k, v in binding(pod, "n1").items()}) == (200, {"Error": ""})


def test_null_and_absent_node_names(cluster, extender):
    pod = cluster.pod("a")
    for args in ({"Pod": pod}, {"Pod": pod, "Nodes": None, "NodeNames": None}, {"Pod": pod, "NodeNames": []}):
        assert extender.call("filter", args)[1]["NodeNames"] == []
        assert extender.call("prioritize", args) == (200, [])


def test_nodes_in_full_say_what_to_configure(cluster, extender):
    _, answer = extender.call("filter", {"Pod": cluster.pod("a"), "Nodes": {"items": []}})
    assert "nodeCacheCapable: true" in answer["Error"]


def test_pods_without_gpus_pass_through(cluster, extender):
    plain = cluster.pod("plain", core=0, managed=False)
    assert extender.filter(plain, "n0", "nowhere")["NodeNames"] == ["n0", "nowhere"]
    assert extender.call("prioritize", {"Pod": plain, "NodeNames": ["n0"]})[1] == []
    assert extender.bind(plain, "n0") == ""
    bound = cluster.get("plain")
    assert bound["spec"]["nodeName"] == "n0"
    assert names.BOUND_AT not in bound["metadata"]["annotations"]
    assert extender.bind(plain, "n0") == ""


def test_a_pod_that_went_round_the_webhook_is_refused(cluster, extender):
    stray = cluster.pod("stray", managed=False)
    answer = extender.filter(stray, "n0", "n1")
    assert answer["NodeNames"] == []
    assert "has not passed Slicekeeper's webhook" in answer["FailedAndUnresolvableNodes"]["n0"]
    assert "has not passed" in extender.bind(stray, "n0")


def test_a_broken_request_names_the_field(cluster, extender):
    answer = extender.filter(cluster.pod("bad", core=150, blocks=0), "n0")
    assert "tencent.com/vcuda-core" in answer["FailedAndUnresolvableNodes"]["n0"]


def test_unknown_and_damaged_nodes(cluster, extender):
    cluster.client.create(NODES, {"metadata": {"name": "hurt", "annotations": {names.NODE_GPUS: "[{"}}})
    pod = cluster.pod("a")

    def damaged():
        failed = extender.filter(pod, "hurt", "gone")["FailedAndUnresolvableNodes"]
        return "cannot be read" in failed["hurt"] and "no GPUs" in failed["gone"]

    wait_for(damaged, "the damaged node is seen")
    assert "cannot be read" in extender.bind(pod, "hurt")


@pytest.mark.parametrize("body", [
    b"", b"null", b"[]", b"3", b'"x"', b"{", b'{"Pod":', b"\xff\xfe", b'{"Pod":null}', b'{"Pod":[]}', b'{"Pod":{}',
    b'{"Pod":{"spec":7},"NodeNames":{}}', b'{"Pod":{},"NodeNames":[1]}', b'{"Pod":{},"NodeNames":"n0"}',
    b"[" * 100_000, b'{"a":' * 100_000, b'{"Pod":' + b'{"a":' * 900 + b"1" + b"}" * 901,
])  # fmt: skip
@pytest.mark.parametrize("verb", ["filter", "place", "prioritize", "preempt", "bind"])
def test_garbage_is_answered_in_words(extender, verb, body):
    status, answer = extender.call(verb, body)
    if verb in ("prioritize", "preempt"):
        assert status in (200, 400)
        assert isinstance(answer, list) or "NodeNameToMetaVictims" in answer or answer["Error"]
    else:
        assert status == 200
        assert "internal" not in answer["Error"]
        assert answer["Error"] or answer.get("NodeNames") == []


def test_a_body_that_is_too_large_is_answered_in_words(extender):
    status, answer = extender.call("filter", b'{"Pod":"' + b"x" * (33 << 20) + b'"}')
    assert status == 200
    assert "could not be read" in answer["Error"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from([
        "Pod", "NodeNames", "metadata", "uid", "spec", "containers", "resources", "limits", "annotations", "labels",
        "tencent.com/vcuda-core", "tencent.com/vcuda-memory", names.SHARING, names.MANAGED_LABEL, "name", "PodName",
        "PodUID", "Node", "PodNamespace", "NodeNameToMetaVictims", "Pods", "UID",
    ]) | st.text(max_size=5), inner, max_size=5),
    max_leaves=25,
)  # fmt: skip


@pytest.fixture(scope="module")
def shared():
    with small_cluster() as made:
        made.node("n0")
        extender = Extender(made).start()
        yield extender
        extender.scheduler.watches.stop()


@settings(max_examples=300, deadline=None)
@given(verb=st.sampled_from(["filter", "place", "prioritize", "preempt", "bind"]), body=JSON)
def test_no_json_whatever_is_an_internal_error(shared, verb, body):
    if isinstance(body, dict):
        body = {"NodeNames": ["n0"], **body}
    status, answer = shared.call(verb, body)
    assert status in (200, 400)
    assert "internal" not in json.dumps(answer)


def test_nothing_is_answered_before_both_lists_are_read(cluster):
    extender = Extender(cluster)
    pod = cluster.pod("a")
    assert ask(extender.app, "GET", "/readyz").status == 503
    assert ask(extender.app, "GET", "/healthz").status == 200
    assert "not read the cluster's state" in extender.call("filter", {"Pod": pod, "NodeNames": ["n0"]})[1]["Error"]
    assert extender.call("prioritize", {"Pod": pod, "NodeNames": ["n0"]})[0] == 503
    assert "not read" in extender.bind(pod, "n0")


def test_metrics_name_what_is_held(cluster, extender):
    extender.filter(cluster.pod("a"), "n0")
    text = extender.metrics()
    assert 'slicekeeper_scheduler_places{kind="tentative"} 1.0' in text
    assert "slicekeeper_scheduler_free_core_percent 140.0" in text
    assert 'slicekeeper_scheduler_requests_total{outcome="ok",verb="filter"} 1.0' in text


# Bindings gone wrong.


def test_an_answer_lost_after_the_binding_is_found_out(cluster, extender):
    pod = cluster.pod("a")
    cluster.api.faults["binding"] = lost_after
    assert extender.bind(pod, "n0") == ""
    assert cluster.taken() == {"n0-0": 60}


def test_an_answer_lost_before_the_binding_keeps_the_place_for_the_second_try(cluster, extender):
    pod, rival = cluster.pod("a"), cluster.pod("b")
    cluster.api.faults["binding"] = lost_before
    assert "no answer" in extender.bind(pod, "n0")
    del cluster.api.faults["binding"]
    assert counts(extender) == {"binding": 1}
    assert "not enough is free" in extender.bind(rival, "n0")
    assert extender.bind(pod, "n0") == ""
    assert cluster.taken() == {"n0-0": 60}


def test_a_lost_binding_that_never_came_is_given_up_after_a_look(cluster, extender):
    pod = cluster.pod("a")
    cluster.api.faults["binding"] = lost_before
    extender.bind(pod, "n0")
    extender.clock.advance(59_000)
    extender.scheduler.binder.look_at_overdue()
    assert counts(extender) == {"binding": 1}
    extender.clock.advance(2_000)
    extender.scheduler.binder.look_at_overdue()
    assert counts(extender) == {}


def test_a_lost_binding_of_a_pod_that_is_gone(cluster, extender):
    pod = cluster.pod("a")
    cluster.api.faults["binding"] = lost_before
    extender.bind(pod, "n0")
    cluster.client.delete(PODS, "a", NAMESPACE)
    extender.clock.advance(61_000)
    wait_for(lambda: (extender.scheduler.binder.look_at_overdue(), counts(extender))[1] == {}, "freed")


@pytest.mark.parametrize(("code", "left"), [(429, {}), (403, {}), (422, {}), (500, {"binding": 1})])
def test_refusals_free_the_place_and_doubts_keep_it(cluster, extender, code, left):
    def refuse(_api, _call):
        raise ApiError(code, "Some", "reason")

    cluster.api.faults["binding"] = refuse
    assert "reason" in extender.bind(cluster.pod("a"), "n0")
    assert counts(extender) == left


def test_a_pod_made_anew_under_its_name_does_not_get_the_binding(cluster, extender):
    old = cluster.pod("a")
    cluster.client.delete(PODS, "a", NAMESPACE)
    cluster.pod("a")
    wait_for(lambda: extender.state.pod(old["metadata"]["uid"]) is None, "the old one is forgotten")
    assert "not the one with UID" in extender.bind(old, "n0")
    assert cluster.taken() == {}
    assert counts(extender) == {}


def test_a_pod_under_deletion_is_not_bound(cluster, extender):
    pod = cluster.pod("a")
    wait_for(lambda: extender.state.pod(pod["metadata"]["uid"]), "seen")
    cluster.client.patch(PODS, "a", {"metadata": {"finalizers": [names.FINALIZER]}}, NAMESPACE)
    cluster.client.delete(PODS, "a", NAMESPACE)
    assert "being deleted" in extender.bind(pod, "n0")
    assert counts(extender) == {}


def test_a_pod_that_another_scheduler_took_meanwhile(cluster, extender):
    pod = cluster.pod("a")
    wait_for(lambda: extender.state.pod(pod["metadata"]["uid"]), "seen")
    extender.scheduler.watches.stop()
    cluster.client.create(PODS, {"metadata": {}, "target": {"name": "n1"}}, NAMESPACE, name="a", subresource="binding")
    assert "n1 already" in extender.bind(pod, "n0")
    assert extender.state.counts()[HoldKind.BINDING] == 0


# A node's agent is asked first.


@pytest.fixture(autouse=True)
def _patient(monkeypatch):
    """Wait for an agent for longer than a slow machine takes to ask it."""
    monkeypatch.setattr("scheduler.agent_readiness.ANSWER_SECONDS", 30.0)
    monkeypatch.setattr("scheduler.agent_readiness.WAIT_SECONDS", 30.0)


@pytest.fixture
def agent(cluster, extender):
    """The agent of n0: what is wrong with it, by a list."""
    wrong = []
    server = probes.serve("127.0.0.1:0", ServingSettings(), ready=lambda: ", ".join(wrong))
    publish(cluster, extender, "n0", agent_address.encode("127.0.0.1", server.port))
    yield wrong
    server.close()


def publish(cluster, extender, node, value):
    cluster.client.patch(NODES, node, {"metadata": {"annotations": {names.NODE_AGENT: value}}})
    wait_for(lambda: extender.state.agent(node) == value, "the annotation is seen")


def seated(cluster, name, **more):
    limits = {"tencent.com/vcuda-core": "60", "tencent.com/vcuda-memory": "4", "slicekeeper.io/seat": "1"}
    return cluster.pod(name, containers=[{"name": "c", "image": "x", "resources": {"limits": limits}}], **more)


def test_a_pod_waits_for_the_nodes_agent_and_holds_nothing_meanwhile(cluster, extender, agent):
    pod, rival = seated(cluster, "a"), cluster.pod("b")
    agent.append("seats not registered with kubelet")
    error = extender.bind(pod, "n0")
    assert error == "node n0: its node agent is not ready: seats not registered with kubelet; the pod is tried again"
    assert cluster.taken() == {}
    assert counts(extender) == {}
    assert extender.bind(rival, "n0") == "", "it has no seat, so nobody needs to be asked"
    agent.clear()
    assert "not enough is free" in extender.bind(pod, "n0")
    assert extender.bind(pod, "n1") == "", "its agent has published no address"
    assert 'slicekeeper_scheduler_agent_answers_total{answer="not-ready"} 1.0' in extender.metrics()


def test_a_pod_that_has_to_wait_for_an_agent_goes_elsewhere(cluster, extender):
    publish(cluster, extender, "n0", agent_address.STOPPING)
    pod = seated(cluster, "a")
    best = {"Pod": pod, "NodeNames": ["n0", "n1"]}
    assert extender.call("prioritize", best)[1][0] == {"Host": "n0", "Score": 10}
    assert "being replaced" in extender.bind(pod, "n0")
    assert extender.filter(pod, "n0", "n1")["NodeNames"] == ["n0", "n1"]
    assert extender.call("prioritize", best)[1][-1] == {"Host": "n1", "Score": 10}
    assert extender.call("prioritize", {"Pod": pod, "NodeNames": ["n0"]})[1] == [{"Host": "n0", "Score": 10}]
    extender.clock.advance(10_000)
    assert extender.call("prioritize", best)[1][0] == {"Host": "n0", "Score": 10}


@pytest.mark.parametrize("value", ["elsewhere.example:80", "", "169.254.169.254:80"])
def test_an_address_that_no_agent_writes_keeps_no_pod_out(cluster, extender, value):
    publish(cluster, extender, "n0", value)
    assert extender.bind(seated(cluster, "a"), "n0") == ""


def test_an_agent_is_not_asked_about_a_pod_that_is_bound_already(cluster, extender, agent):
    pod = seated(cluster, "a")
    assert extender.bind(pod, "n0") == ""
    wait_for(lambda: counts(extender) == {"bound": 1}, "the watch shows it bound")
    agent.append("gone")
    assert extender.bind(pod, "n0") == ""
