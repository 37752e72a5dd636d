# SPDX-License-Identifier: Apache-2.0
"""Admission in the API server's order, with a webhook that answers what the test says."""

import base64
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.json_server import JsonServer

from simulator.api_errors import ApiError, Denied, Invalid
from simulator.cluster import Cluster
from simulator.initial_objects import fill
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Settings
from slicekeeper.kube.client import DEPLOYMENTS, JOBS, LIMIT_RANGES, PODS, Object
from slicekeeper.net.json_client import JsonClient


class Webhook:
    """Keeps the reviews it gets, and answers with `mutate(pod) -> patch` and `refuse(path, object) -> message`."""

    def __init__(self) -> None:
        self.reviews: list[tuple[str, Object]] = []
        self.mutate: Callable[[Object], list[Any]] = lambda _: []
        self.refuse: Callable[[str, Object], str] = lambda _path, _obj: ""
        self.server = JsonServer(self.answer)
        self.url = self.server.url

    def answer(self, path: str, review: Object) -> Object:
        request = review["request"]
        self.reviews.append((path, request))
        response: Object = {"uid": request["uid"], "allowed": True, "warnings": [f"seen by {path}"]}
        if message := self.refuse(path, request["object"]):
            response |= {"allowed": False, "status": {"code": 422, "message": message}}
        elif path == "/mutate" and (patch := self.mutate(request["object"])):
            response |= {"patchType": "JSONPatch", "patch": base64.b64encode(json.dumps(patch).encode()).decode()}
        return {"response": response}

    @property
    def paths(self) -> list[str]:
        return [path for path, _ in self.reviews]


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    webhook = Webhook()
    yield webhook
    webhook.server.stop()


@pytest.fixture
def cluster(webhook: Webhook) -> Cluster:
    cluster = Cluster(Clock(), JsonClient(webhook.url))
    fill(cluster.store, Settings(), 1, 1, "T4")
    return cluster


def pod(**spec: Any) -> Object:
    container = {"name": "c", "image": "i", "resources": {"limits": {"tencent.com/vcuda-core": 50}}}
    return {"metadata": {"generateName": "p-"}, "spec": {"containers": [container], **spec}}


def set_class(name: str, **exact: Any) -> Callable[[Object], list[Any]]:
    """Return a mutation as our webhook makes it: the class, and what else the test names."""
    values = {"priorityClassName": name, **exact}
    return lambda _: [{"op": "add", "path": f"/spec/{key}", "value": value} for key, value in values.items()]


LOWER = {"priority": -100, "preemptionPolicy": "Never"}


def test_a_pod_is_reviewed_with_defaults_and_priority_before_it_has_a_name(cluster: Cluster, webhook: Webhook) -> None:
    made, warnings = cluster.create(PODS, pod(), "default", user="somebody")
    path, request = webhook.reviews[0]
    seen = request["object"]
    assert (path, request["operation"], request["name"], request["namespace"]) == ("/mutate", "CREATE", "", "default")
    assert request["userInfo"]["username"] == "somebody"
    assert (seen["spec"]["priority"], seen["spec"]["preemptionPolicy"]) == (0, "PreemptLowerPriority")
    assert seen["spec"]["serviceAccountName"] == "default"
    assert seen["spec"]["containers"][0]["resources"]["requests"] == {"tencent.com/vcuda-core": 50}
    assert "uid" not in seen["metadata"]
    assert webhook.paths == ["/mutate", "/validate"], "nothing changed, so nobody is asked again"
    assert warnings == ["seen by /mutate", "seen by /validate"]
    assert made["metadata"]["name"].startswith("p-")


def test_the_class_alone_is_refused_by_the_priority_plugin(cluster: Cluster, webhook: Webhook) -> None:
    webhook.mutate = set_class("gpu-lower-priority")
    with pytest.raises(Denied, match=r"the integer value of priority \(0\) must not be provided in pod spec"):
        cluster.create(PODS, pod(), "default")
    webhook.mutate = set_class("gpu-lower-priority", priority=-100)
    with pytest.raises(Denied, match="the string value of PreemptionPolicy"):
        cluster.create(PODS, pod(), "default")
    webhook.mutate = set_class("absent", priority=5)
    with pytest.raises(Denied, match="no PriorityClass with name absent was found"):
        cluster.create(PODS, pod(), "default")
    webhook.mutate = set_class("gpu-lower-priority", **LOWER)
    made, _ = cluster.create(PODS, pod(), "default")
    assert made["spec"]["priority"] == -100


def test_the_webhook_is_asked_again_when_a_plugin_changed_its_work(cluster: Cluster, webhook: Webhook) -> None:
    sidecar = {"name": "s", "image": "i", "restartPolicy": "Always"}
    webhook.mutate = lambda seen: (
        [] if "initContainers" in seen["spec"] else [{"op": "add", "path": "/spec/initContainers", "value": [sidecar]}]
    )
    made, _ = cluster.create(PODS, pod(), "default")
    assert webhook.paths == ["/mutate", "/mutate", "/validate"]
    second = webhook.reviews[1][1]["object"]["spec"]["initContainers"][0]
    assert second["volumeMounts"][0]["mountPath"].endswith("serviceaccount"), (
        "ServiceAccount mounts into new containers"
    )
    assert made["spec"]["initContainers"][0]["name"] == "s"


def test_a_refusal_carries_the_webhooks_code_and_words(cluster: Cluster, webhook: Webhook) -> None:
    for refusing in ("/mutate", "/validate"):
        webhook.refuse = lambda path, _, refusing=refusing: "no" if path == refusing else ""
        with pytest.raises(Denied, match=r'admission webhook "pods.slicekeeper.io" denied the request: no') as refused:
            cluster.create(PODS, pod(), "default")
        assert refused.value.code == 422
    assert cluster.store.collection(PODS)[0] == []


def test_without_the_webhook_mutate_is_passed_over_and_validate_fails(cluster: Cluster, webhook: Webhook) -> None:
    webhook.server.stop()
    with pytest.raises(ApiError, match="failed calling webhook") as failed:
        cluster.create(PODS, pod(), "default")
    assert failed.value.code == 500


def test_templates_are_validated_and_never_mutated(cluster: Cluster, webhook: Webhook) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod(restartPolicy="Never")["spec"]}
    job = {"metadata": {"name": "j"}, "spec": {"template": template}}
    made, _ = cluster.create(JOBS, job, "default")
    assert webhook.paths == ["/validate"]
    assert webhook.reviews[0][1]["kind"] == {"group": "batch", "version": "v1", "kind": "Job"}
    assert made["spec"]["backoffLimit"] == 6
    webhook.refuse = lambda _path, _obj: "bad template"
    deployment = {"metadata": {"name": "d"}, "spec": {"selector": {"matchLabels": {"a": "b"}}, "template": template}}
    with pytest.raises(Denied, match="bad template"):
        cluster.create(DEPLOYMENTS, deployment, "default")


def test_an_empty_field_gets_its_default_like_one_that_is_left_out(cluster: Cluster) -> None:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": pod(restartPolicy="Never")["spec"]}
    job = {"metadata": {"name": "j"}, "spec": {"template": template, "completions": None, "parallelism": None}}
    made, _ = cluster.create(JOBS, job, "default")
    assert (made["spec"]["completions"], made["spec"]["parallelism"]) == (1, 1)
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template, "replicas": None}
    made, _ = cluster.create(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec}, "default")
    assert made["spec"]["replicas"] == 1


def test_a_pods_own_request_is_derived_after_the_webhook(cluster: Cluster, webhook: Webhook) -> None:
    sidecar = {"name": "s", "image": "i", "resources": {"requests": {"cpu": "50m"}}, "restartPolicy": "Always"}
    webhook.mutate = lambda seen: (
        [] if "initContainers" in seen["spec"] else [{"op": "add", "path": "/spec/initContainers", "value": [sidecar]}]
    )
    own = {"limits": {"cpu": 2, "memory": "1Gi"}}
    made, _ = cluster.create(PODS, pod(resources=own), "default")
    assert made["spec"]["resources"] == {**own, "requests": {"cpu": "50m", "memory": "1Gi"}}


def test_a_limit_range_gives_defaults_before_the_webhook_and_limits_what_it_made(
    cluster: Cluster, webhook: Webhook
) -> None:
    entry = {"type": "Container", "min": {"cpu": "100m"}, "max": {"cpu": "1"}, "default": {"memory": "1Gi"}}
    cluster.create(LIMIT_RANGES, {"metadata": {"name": "usual"}, "spec": {"limits": [entry]}}, "default")
    made, _ = cluster.create(PODS, pod(), "default")
    seen = webhook.reviews[0][1]["object"]["spec"]["containers"][0]["resources"]
    assert (seen["requests"]["cpu"], seen["limits"]["cpu"], seen["limits"]["memory"]) == ("1", "1", "1Gi")
    assert made["spec"]["containers"][0]["resources"]["requests"]["memory"] == "1Gi"
    small = {"name": "s", "image": "i", "resources": {"requests": {"cpu": "50m"}}}
    webhook.mutate = lambda seen: (
        [{"op": "add", "path": "/spec/containers/-", "value": small}] if len(seen["spec"]["containers"]) == 1 else []
    )
    with pytest.raises(Denied, match="minimum cpu usage per Container is 100m"):
        cluster.create(PODS, pod(), "default")


@pytest.mark.parametrize(
    ("resource", "body", "what"),
    [
        (PODS, {"metadata": {"name": "P"}, "spec": {"containers": [{"name": "c"}]}}, "RFC 1123"),
        (PODS, {"metadata": {"name": "p"}, "spec": {"containers": []}}, "containers: Required"),
        (PODS, {"metadata": {"name": "p"}}, "containers: Required"),
        (PODS, {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}, {"name": "c"}]}}, "Duplicate"),
        (PODS, {"metadata": {"name": "p"}, "spec": {"containers": [
            {"name": "c", "resources": {"limits": {"tencent.com/vcuda-core": "half"}}}]}}, "quantities"),
        (PODS, pod(resources={"requests": {"cpu": "1"}}, initContainers=[
            {"name": "i", "resources": {"requests": {"cpu": "2050m"}}}]), "aggregate container requests of 2050m"),
        (PODS, pod(resources={"limits": {"cpu": "1"}}, initContainers=[
            {"name": "i", "restartPolicy": "Always", "resources": {"limits": {"cpu": 2}}}]), "container requests of 2"),
        (PODS, {"metadata": {"name": "p"}, "spec": {"resources": {"limits": {"memory": "1Gi"}}, "containers": [
            {"name": "c", "resources": {"limits": {"memory": "2Gi"}, "requests": {"memory": 0}}}]}}, "pod limits of"),
        (PODS, pod(resources={"limits": {"tencent.com/vcuda-core": 50}}), "Unsupported value"),
        (JOBS, {"metadata": {"name": "j"}, "spec": {"template": pod()}}, "restartPolicy"),
        (JOBS, {"metadata": {"name": "j"}, "spec": {}}, "template: Required"),
        (DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": {"template": pod()}}, "does not match template"),
    ],
)  # fmt: skip
def test_what_the_api_itself_refuses_never_reaches_the_webhook(
    cluster: Cluster, webhook: Webhook, resource: Any, body: Object, what: str
) -> None:
    with pytest.raises(Invalid, match=what):
        cluster.create(resource, body, "default")
    assert webhook.paths == []
