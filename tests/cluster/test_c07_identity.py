# SPDX-License-Identifier: Apache-2.0
"""Who may say and change what: forged reports, stolen tokens, editors, the parts' own accounts."""

from __future__ import annotations

import base64
import contextlib
import json
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import pytest
from cluster.harness.cluster import Cluster
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Kubectl, Object, Refused, wait_for
from cluster.harness.role_bindings import role_binding
from cluster.harness.site import CORE, Site, gpu_container, pod
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, utils

from certificates.authority import make_ca
from slicekeeper import names
from slicekeeper.errors import Forbidden, Unavailable
from slicekeeper.kube.client import CONFIG_MAPS, NODES, PODS, TOKEN_REVIEWS, Resource
from slicekeeper.net.json_client import JsonClient

SECRETS = Resource("/api/v1", "secrets")
LEASES = Resource("/apis/coordination.k8s.io/v1", "leases")
TIMEKEEPER = "system:serviceaccount:slicekeeper-system:timekeeper"


def _report(of: Object, used_ms: int = 1) -> dict[str, Any]:
    metadata = of["metadata"]
    return {
        "namespace": metadata["namespace"],
        "podName": metadata["name"],
        "podUid": metadata["uid"],
        "container": "train",
        "epoch": time.time_ns(),
        "seq": 1,
        "usedMs": used_ms,
        "monotonicNs": time.monotonic_ns(),
        "source": "node",
        "final": False,
    }


def _outcomes(site: Site, token: str, *reports: dict[str, Any]) -> list[dict[str, str]]:
    with site.raw_timekeeper(token) as client:
        answer = client.json("POST", "/api/v1/reports", body={"reports": list(reports)})
    outcomes: list[dict[str, str]] = answer["outcomes"]
    return outcomes


@pytest.fixture(scope="module")
def pair(site: Site) -> Iterator[tuple[Object, Object]]:
    """Two running pods of two namespaces."""
    teams = [site.namespace(), site.namespace()]
    site.namespaces.clear()  # they outlive the first test
    for team in teams:
        site.kubectl.create(pod("one", gpu_container(core=5)), namespace=team)
    mine, theirs = (site.wait_phase(team, "one", "Running") for team in teams)
    for team in teams:
        wait_for(partial(site.workloads, team), "the pod in the ledger")
    yield mine, theirs
    site.namespaces.extend(teams)
    site.clear()


def test_a_pod_speaks_for_itself_alone(site: Site, pair: tuple[Object, Object]) -> None:
    mine, theirs = pair
    wait_for(lambda: site.heard(theirs), "report of the other pod's own sidecar", pause=1)
    before = site.workloads(theirs["metadata"]["namespace"])[theirs["metadata"]["uid"]]
    token = site.pod_token(mine)
    [own] = _outcomes(site, token, _report(mine))
    assert own["outcome"] in ("accepted", "refused"), own
    [forged] = _outcomes(site, token, _report(theirs, used_ms=5))
    assert forged["outcome"] == "refused"
    assert forged["reason"]
    after = site.workloads(theirs["metadata"]["namespace"])[theirs["metadata"]["uid"]]
    assert after.used_ms == before.used_ms


def test_a_sidecar_reports_over_tls_and_clear_text_gets_no_answer(site: Site, pair: tuple[Object, Object]) -> None:
    mine, _ = pair
    [sidecar] = [c for c in mine["spec"]["initContainers"] if c["name"] == names.SIDECAR]
    environ = {entry["name"]: entry.get("value", "") for entry in sidecar["env"]}
    assert environ["SLICEKEEPER_TIMEKEEPER_CLIENT_URL"].startswith("https://")
    wait_for(lambda: site.heard(mine), "report of the pod's own sidecar", pause=1)
    token = site.folder / "mine.token"
    token.write_text(site.pod_token(mine))
    stranger = site.folder / "stranger.crt"
    stranger.write_bytes(make_ca(datetime.now(UTC), timedelta(hours=1)).certificate)
    for old, new, ca in (
        ("https://", "http://", site.timekeeper_ca()),
        ("", "", str(stranger)),
        ("localhost", "127.0.0.1", site.timekeeper_ca()),
    ):
        with site.timekeeper_url() as url:  # one for each: kubectl gives up forwarding once a connection is reset
            assert JsonClient(url, ca_file=site.timekeeper_ca()).request("GET", "/healthz")[0] == 200
            with pytest.raises(Unavailable):
                JsonClient(url.replace(old, new), ca_file=ca, token_file=str(token)).json("GET", "/healthz")


def test_tokens_that_say_nothing_are_refused(site: Site, pair: tuple[Object, Object]) -> None:
    mine, _ = pair
    namespace = mine["metadata"]["namespace"]
    other_audience = site.pod_token(mine, audience="https://kubernetes.default.svc")
    not_bound = site.kubectl("create", "token", "default", "-n", namespace, "--audience=timekeeper").strip()
    for token, status in (("", 401), ("nonsense", 401), (other_audience, 401), (not_bound, 403)):
        with pytest.raises(Forbidden) as refused:
            _outcomes(site, token, _report(mine))
        assert refused.value.status == status, token[:20]
        assert refused.value.reason


def test_an_expired_token_is_refused(site: Site, cluster: Cluster, pair: tuple[Object, Object]) -> None:
    mine, _ = pair
    good = site.pod_token(mine)
    key = (cluster.folder / "pki/service-account.key").read_bytes()
    assert _outcomes(site, _resigned(good, key, exp=int(time.time()) + 600), _report(mine))
    with pytest.raises(Forbidden, match="audience|token"):
        _outcomes(site, _resigned(good, key, exp=int(time.time()) - 60), _report(mine))


def test_the_token_of_a_pod_that_is_gone_is_refused(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("one", gpu_container(core=5)), namespace=team)
    mine = site.wait_phase(team, "one", "Running")
    token = site.pod_token(mine)
    site.kubectl("delete", "pod", "one", "-n", team)
    with pytest.raises(Forbidden):
        _outcomes(site, token, _report(mine))


def test_readers_see_what_their_roles_allow(site: Site, pair: tuple[Object, Object]) -> None:
    mine, theirs = (one["metadata"]["namespace"] for one in pair)
    site.kubectl("create", "serviceaccount", "reader", "-n", mine)
    site.kubectl("create", "rolebinding", "reader", "--clusterrole=view", f"--serviceaccount={mine}:reader", "-n", mine)
    token = site.kubectl("create", "token", "reader", "-n", mine, "--audience=timekeeper").strip()
    with site.raw_timekeeper(token) as client:
        assert client.json("GET", f"/api/v1/budgets/{mine}")["namespace"] == mine
        for method, path, body in (
            ("GET", f"/api/v1/budgets/{theirs}", None),
            ("GET", "/api/v1/budgets", None),
            ("PUT", f"/api/v1/budgets/{mine}", {"amountMs": 10**9, "period": "none", "timeZone": "UTC"}),
            ("POST", f"/api/v1/budgets/{mine}/grants", {"amountMs": 10**9, "reason": "mine"}),
        ):
            with pytest.raises(Forbidden, match="may not") as refused:
                client.json(method, path, body=body)
            assert refused.value.status == 403


@pytest.mark.parametrize(
    ("role", "may"),
    [
        ("slicekeeper-budget-viewer", {"read"}),
        ("slicekeeper-budget-auditor", {"read", "audit"}),
        ("slicekeeper-budget-manager", {"read", "set", "grant"}),
    ],
)
def test_a_role_may_do_what_it_is_for(site: Site, pair: tuple[Object, Object], role: str, may: set[str]) -> None:
    mine = pair[0]["metadata"]["namespace"]
    user = role.rpartition("-")[2]
    site.kubectl("create", "serviceaccount", user, "-n", mine)
    binding = f"{mine}-{user}"
    site.kubectl("create", "clusterrolebinding", binding, f"--clusterrole={role}", f"--serviceaccount={mine}:{user}")
    done = set()
    try:
        token = site.kubectl("create", "token", user, "-n", mine, "--audience=timekeeper").strip()
        with site.raw_timekeeper(token) as client:
            for name, method, path, body in (
                ("read", "GET", "/api/v1/budgets", None),
                ("audit", "GET", "/api/v1/audit", None),
                ("set", "PUT", f"/api/v1/budgets/{mine}", {"amountMs": 10**12, "period": "none", "timeZone": "UTC"}),
                ("grant", "POST", f"/api/v1/budgets/{mine}/grants", {"amountMs": 1000, "reason": "the suite says so"}),
            ):
                key = {"Idempotency-Key": f"{user}-{name}"} if method == "POST" else {}
                with contextlib.suppress(Forbidden):
                    client.json(method, path, body=body, headers=key)
                    done.add(name)
    finally:
        site.kubectl("delete", "clusterrolebinding", binding)
    assert done == may


def _editor(site: Site, namespace: str) -> Kubectl:
    alice = {"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": "alice"}
    binding = role_binding("alice", "admin", alice)
    site.kubectl.apply(binding, namespace=namespace)
    return site.kubectl.acting("--as=alice")


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"annotations": {names.BUDGET_STATE: names.OVER_BUDGET}}, "only the timekeeper may write it"),
        ({"annotations": {names.BOUND_AT: "2030-01-01T00:00:00.000Z"}}, "is reserved and cannot be changed"),
        ({"annotations": {names.gpu_annotation("train"): None}}, "is reserved and cannot be changed"),
        ({"annotations": {names.GPU_CLASS: names.BACKGROUND}}, "is reserved and cannot be changed"),
        ({"annotations": {names.CORE_LIMIT: None}}, "is reserved and cannot be changed"),
        ({"annotations": {names.CORE_LIMIT: "101"}}, "from 1 to 100"),
        ({"annotations": {names.CORE_LIMIT: "60", names.BOUND_AT: "2030"}}, "bound-at is reserved and cannot"),
        ({"annotations": {names.limit_annotation("train"): "0"}}, "from 1 to 100"),
        ({"annotations": {"io.kubernetes.cri-o.Devices": "/dev/nvidia0"}}, "is reserved and cannot be changed"),
        ({"labels": {names.MANAGED_LABEL: None}}, "is reserved and cannot be changed"),
        ({"finalizers": None}, "the timekeeper removes it"),
    ],
)
def test_an_editor_cannot_change_what_we_wrote(
    site: Site, pair: tuple[Object, Object], metadata: dict[str, Any], told: str
) -> None:
    namespace = pair[0]["metadata"]["namespace"]
    before = site.pod(namespace, "one")
    alice = _editor(site, namespace)
    with pytest.raises(Refused, match=told):
        alice.patch("pod", "one", {"metadata": metadata}, namespace)
    ceilings = {names.CORE_LIMIT: "60", names.limit_annotation("train"): "70"}
    own = {"annotations": {"mine": "yes", **ceilings}, "labels": {"team": "mine"}}
    alice.patch("pod", "one", {"metadata": own}, namespace)
    after = site.pod(namespace, "one")
    assert after["metadata"]["finalizers"] == before["metadata"]["finalizers"]
    assert after["metadata"]["annotations"] == {**before["metadata"]["annotations"], **own["annotations"]}


def _binding(name: str, metadata: dict[str, Any]) -> Object:
    target = {"kind": "Node", "name": "node-1"}
    return {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": name, **metadata}, "target": target}


@pytest.mark.parametrize(
    "metadata",
    [
        {"annotations": {names.gpu_annotation("train"): "GPU-mine"}},
        {"annotations": {names.CORE_LIMIT: "100"}},
        {"annotations": {names.BUDGET_STATE: names.IN_BUDGET}},
        {"annotations": {"cdi.k8s.io/all": "nvidia.com/gpu=all"}},
        {"annotations": {"io.kubernetes.cri-o.Devices": "/dev/nvidia0"}},
        {"labels": {names.MANAGED_LABEL: "no"}},
        {"labels": {names.MANAGED_LABEL: ""}, "annotations": {"mine": "yes"}},
    ],
)
def test_an_editor_cannot_bind_a_pod_to_gpus(site: Site, metadata: dict[str, Any]) -> None:
    team = site.namespace()
    alice = _editor(site, team)
    site.kubectl.create(pod("one", gpu_container(core=5), nodeSelector={"nowhere": "true"}), namespace=team)
    # The namespace's administrator has no right on bindings; the guard stops users who have it.
    resources = ("--resource=pods/binding", "--resource=bindings")
    site.kubectl("create", "role", "binder", "--verb=create", *resources, "-n", team)
    site.kubectl("create", "rolebinding", "binder", "--role=binder", "--user=alice", "-n", team)
    for url in (f"/api/v1/namespaces/{team}/pods/one/binding", f"/api/v1/namespaces/{team}/bindings"):
        with pytest.raises(Refused, match="only Slicekeeper's scheduler"):
            alice("create", "--raw", url, "-f", "-", stdin=json.dumps(_binding("one", metadata)))
    assert "nodeName" not in site.pod(team, "one")["spec"]
    # What carries none of our names is none of our business.
    own = _binding("one", {"labels": {"team": "mine"}, "annotations": {"mine": "yes"}})
    alice("create", "--raw", f"/api/v1/namespaces/{team}/pods/one/binding?dryRun=All", "-f", "-", stdin=json.dumps(own))


def test_the_schedulers_token_writes_its_own_annotations_in_a_binding_and_nothing_else(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("one", gpu_container(core=5), nodeSelector={"nowhere": "true"}), namespace=team)
    acting = site.kubectl.acting(f"--as=system:serviceaccount:{NAMESPACE}:scheduler")
    url = f"/api/v1/namespaces/{team}/pods/one/binding?dryRun=All"

    def bind(metadata: dict[str, Any]) -> None:
        acting("create", "--raw", url, "-f", "-", stdin=json.dumps(_binding("one", metadata)))

    own = {
        names.gpu_annotation("train"): "GPU-1",
        names.BOUND_AT: "2030-01-01T00:00:00.000Z",
        names.SHARING_MODE: "shared: of its own",
    }
    bind({"annotations": own})
    bind({})
    bind({"labels": {"topology.kubernetes.io/zone": "a"}})  # as the API server adds it
    for metadata in (
        {"labels": {names.MANAGED_LABEL: "no"}},
        {"labels": {"app": "another"}},
        {"annotations": {**own, names.CORE_LIMIT: "100"}},
        {"annotations": {**own, names.BUDGET_STATE: names.IN_BUDGET}},
        {"annotations": {**own, "mine": "yes"}},
    ):
        with pytest.raises(Refused, match="is not one that the scheduler writes in a Binding"):
            bind(metadata)


@pytest.mark.parametrize("taken", ["by a Binding", "from a pod that runs"])
def test_a_pod_whose_label_was_taken_in_spite_of_the_guards_is_labelled_again_and_charged(
    site: Site, taken: str
) -> None:
    team = site.namespace()
    if taken == "by a Binding":  # by the cluster's administrator, who may override the guards
        site.kubectl.create(pod("one", gpu_container(core=5), nodeSelector={"nowhere": "true"}), namespace=team)
        node = site.part("nodeagent")["spec"]["nodeName"]
        binding = _binding("one", {"labels": {names.MANAGED_LABEL: "no"}})
        binding["target"]["name"] = node
        url = f"/api/v1/namespaces/{team}/pods/one/binding"
        site.kubectl("create", "--raw", url, "-f", "-", stdin=json.dumps(binding))
    else:
        site.kubectl.create(pod("one", gpu_container(core=5)), namespace=team)
        site.wait_phase(team, "one", "Running")
        site.kubectl.patch("pod", "one", {"metadata": {"labels": None}}, team)

    def labelled() -> bool:
        return site.pod(team, "one")["metadata"].get("labels", {}).get(names.MANAGED_LABEL) == names.MANAGED_VALUE

    wait_for(labelled, "label")
    uid = site.pod(team, "one")["metadata"]["uid"]
    wait_for(lambda: site.workloads(team).get(uid), "charge", pause=2)


def test_an_editor_cannot_make_a_pod_that_says_it_holds_gpus(site: Site) -> None:
    """With a mirror pod's annotation it would not be checked, and would count as holding the GPUs that it names."""
    team = site.namespace()
    alice = _editor(site, team)
    claimed = {names.BOUND_AT: "2001-01-01T00:00:00.000Z", names.gpu_annotation("train"): "GPU-x"}
    annotations = {"kubernetes.io/config.mirror": "x", **claimed}
    forged = pod("mirror", gpu_container(core=100), nodeName="node-1", annotations=annotations)
    with pytest.raises(Refused, match="only a kubelet creates mirrors"):
        alice.create(forged, namespace=team)
    forged["metadata"]["annotations"] = claimed
    with pytest.raises(Refused, match="bound-at.* is reserved"):
        alice.create(forged, namespace=team)
    assert site.pods(team) == []


def test_the_timekeepers_account_changes_nothing_else(site: Site, pair: tuple[Object, Object]) -> None:
    mine, _ = pair
    namespace = mine["metadata"]["namespace"]
    acting = site.kubectl.acting(f"--as={TIMEKEEPER}")
    image = {"spec": {"containers": [{"name": "train", "image": "evil:1"}]}}
    with pytest.raises(Refused, match="may not change a pod's spec"):
        acting("patch", "pod", "one", "-n", namespace, "--type=strategic", "-p", json.dumps(image))
    with pytest.raises(Refused, match="only the budget state"):
        acting.patch("pod", "one", {"metadata": {"labels": {"mine": "yes"}}}, namespace)
    with pytest.raises(Refused, match="is reserved and cannot be changed"):
        acting.patch("pod", "one", {"metadata": {"labels": {names.MANAGED_LABEL: None}}}, namespace)
    with pytest.raises(Refused, match="cannot delete"):
        acting("delete", "pod", "one", "-n", namespace)
    acting.patch("pod", "one", {"metadata": {"annotations": {names.BUDGET_STATE: names.IN_BUDGET}}}, namespace)


def test_the_schedulers_account_marks_pods_that_wait_and_changes_nothing_else(
    site: Site, pair: tuple[Object, Object]
) -> None:
    namespace = pair[0]["metadata"]["namespace"]
    site.kubectl.create(pod("waits", gpu_container(core=5), nodeSelector={"nowhere": "true"}), namespace=namespace)
    acting = site.client(site.kubectl("create", "token", "scheduler", "-n", NAMESPACE).strip())
    seen = {names.ROOM_SEEN_AT: "2030-01-01T00:00:00.000Z"}
    mark = {"metadata": {"annotations": seen}}
    acting.patch(PODS, "waits", mark, namespace, subresource="status")
    assert site.pod(namespace, "waits")["metadata"]["annotations"].items() >= seen.items()
    with pytest.raises(Forbidden, match="on a waiting pod"):
        acting.patch(PODS, "one", mark, namespace, subresource="status")
    for metadata in (
        {"annotations": {names.ROOM_SEEN_AT: None, "mine": "yes"}},
        {"labels": {"mine": "yes"}},
        {"finalizers": None},
        {"annotations": {names.BUDGET_STATE: names.OVER_BUDGET}},
    ):
        with pytest.raises(Forbidden, match="may write only|is reserved"):
            acting.patch(PODS, "waits", {"metadata": metadata}, namespace, subresource="status")
    with pytest.raises(Forbidden, match="cannot patch"):
        acting.patch(PODS, "waits", mark, namespace)
    later = {"metadata": {"annotations": {names.ROOM_SEEN_AT: "2031-01-01T00:00:00.000Z"}}}
    with pytest.raises(Refused, match="only the scheduler may write it"):
        _editor(site, namespace).patch("pod", "waits", later, namespace)


def test_the_schedulers_account_does_not_go_as_far_as_kube_schedulers_role(
    site: Site, pair: tuple[Object, Object]
) -> None:
    namespace = pair[0]["metadata"]["namespace"]
    acting = site.client(site.kubectl("create", "token", "scheduler", "-n", NAMESPACE).strip())
    with pytest.raises(Forbidden, match="may not write how a pod runs"):
        acting.patch(PODS, "one", {"status": {"phase": "Succeeded"}}, namespace, subresource="status")
    for name, where in (("one", namespace), (site.part("webhook")["metadata"]["name"], NAMESPACE)):
        with pytest.raises(Forbidden, match="may delete only pods that it preempts"):
            acting.delete(PODS, name, where)
        victim = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler"}
        acting.patch(PODS, name, {"status": {"conditions": [victim]}}, where, subresource="status")
        with pytest.raises(Forbidden, match="may delete only pods that it preempts"):
            acting.delete(PODS, name, where)
    with pytest.raises(Forbidden, match="cannot create resource"):
        acting.create(TOKEN_REVIEWS, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview", "spec": {}})
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "any"}}
    with pytest.raises(Forbidden, match="cannot create resource"):
        acting.create(LEASES, lease, namespace)
    for account in ("scheduler", "timekeeper"):
        who = site.kubectl.acting(f"--as=system:serviceaccount:{NAMESPACE}:{account}")
        name = site.part("webhook")["metadata"]["name"]
        evict = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": NAMESPACE}}
        url = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}/eviction"
        with pytest.raises(Refused, match="may not evict pods in system namespaces"):
            who("create", "--raw", url, "-f", "-", stdin=json.dumps(evict))


def test_the_account_of_the_certificates_writes_what_is_named_for_it_alone(site: Site) -> None:
    team = site.namespace()
    wait_for(lambda: _there(site, "configmap", names.CA_CONFIG_MAP, team), "CA")
    acting = site.client(site.kubectl("create", "token", "certificates", "-n", NAMESPACE).strip())
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "any"}}
    for namespace in (team, "kube-system", NAMESPACE):
        with pytest.raises(Forbidden, match="may write only the ConfigMap"):
            acting.create(CONFIG_MAPS, config, namespace)
    token_of = {"kubernetes.io/service-account.name": "timekeeper"}
    for name, kind in (("any", "Opaque"), ("any", "kubernetes.io/service-account-token")):
        secret: Object = {"apiVersion": "v1", "kind": "Secret", "type": kind}
        secret["metadata"] = {"name": name, "annotations": token_of}
        with pytest.raises(Forbidden, match="may write only the ConfigMap"):
            acting.create(SECRETS, secret, NAMESPACE)
    site.kubectl("delete", "configmap", names.CA_CONFIG_MAP, "-n", team)
    wait_for(lambda: _there(site, "configmap", names.CA_CONFIG_MAP, team), "CA again")


def _there(site: Site, kind: str, name: str, namespace: str) -> str:
    return site.kubectl("get", kind, name, "-n", namespace, "--ignore-not-found", "-o", "name")


def test_an_agent_writes_its_own_node_alone(site: Site) -> None:
    site.kubectl.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-2"}})
    try:
        agent = site.part("nodeagent")
        own = agent["spec"]["nodeName"]
        acting = site.client(site.pod_token(agent, audience="https://kubernetes.default.svc"))
        gpus = {"metadata": {"annotations": {names.NODE_GPUS: "[]"}}}
        mine = {"metadata": {"annotations": {"mine": "yes"}}}
        with pytest.raises(Forbidden, match="only the node that it runs on"):
            acting.patch(NODES, "node-2", gpus, subresource="status")
        with pytest.raises(Forbidden, match="only the node that it runs on"):
            acting.patch(
                NODES, "node-2", {"metadata": {"annotations": {names.NODE_AGENT: "10.9.9.9:80"}}}, subresource="status"
            )
        with pytest.raises(Forbidden, match="only its node's GPUs"):
            acting.patch(NODES, own, mine, subresource="status")
        for status in ({"conditions": []}, {"addresses": []}, {"capacity": {"cpu": "99"}}):
            with pytest.raises(Forbidden, match="only its node's GPUs in the status"):
                acting.patch(NODES, own, {"status": status}, subresource="status")
        with pytest.raises(Forbidden, match="cannot patch"):
            acting.patch(NODES, own, mine)
        now = site.kubectl.get("node", own)["metadata"]["annotations"][names.NODE_GPUS]
        acting.patch(NODES, own, {"metadata": {"annotations": {names.NODE_GPUS: now}}}, subresource="status")
        site.kubectl("create", "clusterrole", "labeller", "--verb=get,create,patch", "--resource=nodes,nodes/status")
        site.kubectl("create", "clusterrolebinding", "labeller", "--clusterrole=labeller", "--user=bob")
        bob = site.kubectl.acting("--as=bob")
        capacity = {"status": {"capacity": {CORE: "800"}}}
        elsewhere = {"metadata": {"annotations": {names.NODE_AGENT: "10.9.9.9:80"}}}
        found = {"metadata": {"annotations": {names.NODE_MACHINE: "{}"}}}
        for patch in (gpus, elsewhere, found, {"metadata": {"annotations": {names.NODE_AGENT: None}}}):
            with pytest.raises(Refused, match="only the node agent may write them"):
                bob.patch("node", own, patch)
        with pytest.raises(Refused, match="only the node agent may write them"):
            bob.patch("node", own, capacity, "", "--subresource=status")
        for forged in (gpus, capacity):
            made = {"apiVersion": "v1", "kind": "Node", **forged}
            made["metadata"] = {"name": "node-3", **made.get("metadata", {})}
            kubelet = site.kubectl.acting("--as=system:node:node-3", "--as-group=system:nodes")
            for who in (bob, kubelet)[: 2 if forged is gpus else 1]:
                with pytest.raises(Refused, match="only the node agent may write them"):
                    who.create(made, dry_run=True)
            site.kubectl.create(made, dry_run=True)
        kubelet.create({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-3"}}, dry_run=True)
    finally:
        site.kubectl("delete", "node", "node-2")
        # An agent and an arbiter were made for it, which wait for minutes for a node that is no more.
        waits = ("-l", "app.kubernetes.io/name in (arbiter, nodeagent)", "--field-selector=status.phase=Pending")
        site.kubectl("delete", "pods", "-n", NAMESPACE, *waits)
        site.kubectl("delete", "clusterrolebinding,clusterrole", "labeller", "--ignore-not-found")


def test_what_is_refused_is_counted(site: Site) -> None:
    team = site.namespace()
    with pytest.raises(Refused):
        site.kubectl.create(pod("one", gpu_container(core=150)), namespace=team)
    told = site.kubectl("get", "--raw", "/metrics")
    assert 'apiserver_validating_admission_policy_check_total{enforcement_action="deny"' in told
    webhook = site.part("webhook")["metadata"]["name"]
    own = site.kubectl("get", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/http:{webhook}:8453/proxy/metrics")
    assert "core-not-whole" in own


def _resigned(token: str, key: bytes, **claims: int) -> str:
    """Return the token with other claims, signed with the cluster's own key."""
    header, body, _ = token.split(".")
    content = json.loads(base64.urlsafe_b64decode(body + "=="))
    content |= claims
    content["iat"] = content["nbf"] = min(content["iat"], claims["exp"] - 600)
    signed = f"{header}.{_text(json.dumps(content).encode())}"
    private = serialization.load_pem_private_key(key, None)
    assert isinstance(private, ec.EllipticCurvePrivateKey)
    r, s = utils.decode_dss_signature(private.sign(signed.encode(), ec.ECDSA(hashes.SHA256())))
    return f"{signed}.{_text(r.to_bytes(32, 'big') + s.to_bytes(32, 'big'))}"


def _text(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()
