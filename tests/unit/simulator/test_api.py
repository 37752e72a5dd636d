# SPDX-License-Identifier: Apache-2.0
"""The API as our parts meet it: through the kernel's own client and watch, over HTTP."""

import socket
import threading
from collections import deque
from collections.abc import Iterator
from typing import Any

import pytest
from support.waiting import wait_for

from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from simulator.initial_objects import fill
from slicekeeper.clock import Clock
from slicekeeper.config.settings import KubernetesSettings, Settings
from slicekeeper.errors import Conflict, Gone, NotFound, ServiceError
from slicekeeper.kube.client import (
    ACCESS_REVIEWS,
    DEPLOYMENTS,
    JOBS,
    JSON_PATCH,
    LEASES,
    NODES,
    PODS,
    PRIORITY_CLASSES,
    TOKEN_REVIEWS,
    KubeClient,
    Object,
    Resource,
)
from slicekeeper.kube.watch import Watch
from slicekeeper.net.json_client import JsonClient


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(Clock())
    fill(cluster.store, Settings(), 1, 2, "A100")
    return cluster


@pytest.fixture
def server(cluster: Cluster) -> Iterator[ApiServer]:
    server = ApiServer(Api(cluster))
    server.start()
    yield server
    server.stop()


@pytest.fixture
def client(server: ApiServer) -> Iterator[KubeClient]:
    client = KubeClient(KubernetesSettings(server=server.url))
    yield client
    client.close()


def pod(name: str = "p", **metadata: Any) -> Object:
    return {"metadata": {"name": name, **metadata}, "spec": {"containers": [{"name": "c", "image": "i"}]}}


@pytest.mark.parametrize(
    ("resource", "body"),
    [
        (PODS, pod(annotations={"simulator.slicekeeper.io/run-seconds": 60})),
        (PODS, {**pod(), "spec": {**pod()["spec"], "activeDeadlineSeconds": "600"}}),
        (JOBS, {**pod(), "spec": {"template": {"spec": pod()["spec"]}, "completions": "two"}}),
        (DEPLOYMENTS, {**pod(), "spec": {"template": {"spec": pod()["spec"]}, "replicas": 1.5}}),
    ],
)
def test_a_field_of_another_type_is_refused_before_it_is_stored(
    client: KubeClient, cluster: Cluster, resource: Resource, body: Object
) -> None:
    """No controller and no kubelet could read it, and each would stop at this object."""
    with pytest.raises(ServiceError, match="cannot be handled as a"):
        client.create(resource, body, "default")
    assert cluster.store.collection(resource)[0] == []


def test_a_patch_with_a_field_of_another_type_is_refused(client: KubeClient) -> None:
    client.create(PODS, pod(), "default")
    with pytest.raises(ServiceError, match="Expected `str`, got `int`"):
        client.patch(PODS, "p", {"metadata": {"annotations": {"mine": 1}}}, "default")


def test_objects_are_created_read_patched_and_deleted(client: KubeClient) -> None:
    made = client.create(PODS, pod(), "default")
    assert (made["kind"], made["apiVersion"], made["status"]) == ("Pod", "v1", {"phase": "Pending"})
    assert client.get(PODS, "p", "default") == made
    patched = client.patch(PODS, "p", {"metadata": {"annotations": {"a": "1"}}}, "default")
    assert patched["metadata"]["annotations"] == {"a": "1"}
    version = patched["metadata"]["resourceVersion"]
    operations = [
        {"op": "test", "path": "/metadata/resourceVersion", "value": version},
        {"op": "add", "path": "/metadata/finalizers", "value": ["x/y"]},
    ]
    client.patch(PODS, "p", operations, "default", content_type=JSON_PATCH)
    with pytest.raises(ServiceError) as refused:
        client.patch(PODS, "p", operations, "default", content_type=JSON_PATCH)
    assert refused.value.status == 422
    with pytest.raises(Conflict):
        client.patch(PODS, "p", {"metadata": {"resourceVersion": version, "labels": {"a": "b"}}}, "default")
    with pytest.raises(Conflict):
        client.delete(PODS, "p", "default", uid="another")
    client.delete(PODS, "p", "default", uid=made["metadata"]["uid"])
    assert client.get(PODS, "p", "default")["metadata"]["deletionTimestamp"]
    client.patch(PODS, "p", {"metadata": {"finalizers": None}}, "default")
    with pytest.raises(NotFound, match='pods "p" not found'):
        client.get(PODS, "p", "default")


def test_what_is_wrong_has_kubernetes_own_status(client: KubeClient, server: ApiServer) -> None:
    with pytest.raises(NotFound, match='namespaces "nowhere" not found'):
        client.create(PODS, pod(), "nowhere")
    client.create(PODS, pod(), "default")
    with pytest.raises(Conflict) as exists:
        client.create(PODS, pod(), "default")
    assert exists.value.reason == "AlreadyExists"
    with pytest.raises(ServiceError, match="does not match the namespace"):
        client.create(PODS, pod(namespace="other"), "default")
    plain = JsonClient(server.url)
    for method, path, status in (
        ("GET", "/api/v1/secrets", 404),
        ("GET", "/nothing", 404),
        ("DELETE", "/api/v1/namespaces/default", 405),
        ("POST", "/api/v1/namespaces/default/pods", 400),
        ("GET", "/api/v1/pods?fieldSelector=spec.x%3D1", 400),
        ("GET", "/api/v1/pods/p", 404),
    ):
        with pytest.raises(ServiceError) as told:
            plain.request(method, path)
        assert told.value.status == status, path


def test_lists_select(client: KubeClient) -> None:
    for name, labels in (("a", {"x": "1"}), ("b", {"x": "2"}), ("c", {})):
        client.create(PODS, pod(name, labels=labels), "default")
    found, version = client.list(PODS, label_selector="x in (1,2)")
    assert [obj["metadata"]["name"] for obj in found] == ["a", "b"]
    assert int(version) > 0
    found, _ = client.list(PODS, namespace="kube-system")
    assert found == []
    found, _ = client.list(PODS, field_selector="metadata.name=c")
    assert len(found) == 1


def test_lists_are_read_page_by_page_as_they_were_at_the_first(client: KubeClient, cluster: Cluster) -> None:
    for number in range(1_203):
        cluster.store.create(PODS, pod(f"p{number}"), "default")
    pages = client.pages(PODS)
    first, version = next(pages)
    cluster.store.create(PODS, pod("late"), "default")
    others = list(pages)
    assert [len(first), *(len(page) for page, _ in others)] == [500, 500, 203]
    assert {at for _, at in others} == {version}
    assert len(client.list(PODS)[0]) == 1_204


def test_a_watch_sees_an_object_come_into_and_leave_its_selector(client: KubeClient) -> None:
    _, version = client.list(PODS)
    seen: list[tuple[str, str]] = []
    client.create(PODS, pod("other"), "default")
    client.create(PODS, pod(), "default")
    for value in ("true", "true", None):
        client.patch(PODS, "p", {"metadata": {"labels": {"m": value}, "annotations": {"n": str(value)}}}, "default")
    client.patch(PODS, "p", {"metadata": {"labels": {"m": "true"}}}, "default")
    client.delete(PODS, "p", "default")
    with client.watch(PODS, version, label_selector="m=true", seconds=5) as events:
        for kind, obj in events:
            if kind == "BOOKMARK":
                assert int(obj["metadata"]["resourceVersion"]) > int(version)
                break
            seen.append((kind, obj["metadata"]["name"]))
    assert seen == [("ADDED", "p"), ("DELETED", "p"), ("ADDED", "p"), ("DELETED", "p")]


def test_a_watch_from_the_start_begins_with_what_is_there(client: KubeClient) -> None:
    with client.watch(NODES, "0", seconds=5) as events:
        kind, obj = next(events)
    assert (kind, obj["metadata"]["name"]) == ("ADDED", "node-1")


def test_a_version_out_of_history_is_gone_at_once_and_on_an_open_watch(cluster: Cluster, client: KubeClient) -> None:
    cluster.store._history = deque(maxlen=5)
    for index in range(10):
        client.create(PODS, pod(f"p{index}"), "default")
    with pytest.raises(Gone), client.watch(PODS, "1", seconds=5) as events:
        next(events)


class Seen:
    """A watch's handler that keeps the last state."""

    def __init__(self) -> None:
        self.state: dict[str, str] = {}
        self.lists = 0

    def on_list(self, objects: list[Object]) -> None:
        self.lists += 1
        self.state = {obj["metadata"]["name"]: obj["metadata"]["resourceVersion"] for obj in objects}

    def on_event(self, kind: str, obj: Object) -> None:
        self.state.pop(obj["metadata"]["name"], None)
        if kind != "DELETED":
            self.state[obj["metadata"]["name"]] = obj["metadata"]["resourceVersion"]


def test_thirty_watches_follow_all_writes(server: ApiServer, client: KubeClient, cluster: Cluster) -> None:
    handlers = [Seen() for _ in range(30)]
    watches = [Watch(KubeClient(KubernetesSettings(server=server.url)), PODS, handler) for handler in handlers]
    for watch in watches:
        watch.start()
    assert all(watch.synced.wait(60) for watch in watches)
    for index in range(40):
        client.create(PODS, pod(f"p{index}"), "default")
        if index % 3 == 0:
            client.delete(PODS, f"p{index}", "default")
    wanted = {p["metadata"]["name"]: p["metadata"]["resourceVersion"] for p in cluster.store.collection(PODS)[0]}
    wait_for(lambda: all(handler.state == wanted for handler in handlers), "all have seen all")
    for watch in watches:
        watch.stop()


def test_a_client_that_vanishes_leaves_no_thread(server: ApiServer) -> None:
    before = set(threading.enumerate())
    host, port = server.url.removeprefix("http://").split(":")
    connections = [socket.create_connection((host, int(port))) for _ in range(10)]
    for connection in connections:
        connection.sendall(b"GET /api/v1/pods?watch=1 HTTP/1.1\r\nHost: x\r\n\r\n")
        assert connection.recv(4096)
    serving = set(threading.enumerate()) - before
    assert len(serving) >= 10
    for connection in connections:
        connection.close()
    for thread in serving:
        thread.join(30)
    assert not any(thread.is_alive() for thread in serving)


def bind(client: KubeClient, name: str, uid: str, **annotations: str) -> None:
    body = {
        "metadata": {"name": name, "uid": uid, "annotations": annotations},
        "target": {"kind": "Node", "name": "node-1"},
    }
    client.create(PODS, body, "default", name=name, subresource="binding")


def test_a_binding_assigns_once_and_copies_its_annotations(client: KubeClient) -> None:
    made = client.create(PODS, pod(annotations={"mine": "1"}), "default")
    with pytest.raises(Conflict, match="another UID"):
        bind(client, "p", "other")
    bind(client, "p", made["metadata"]["uid"], gpu="GPU-1")
    bound = client.get(PODS, "p", "default")
    assert bound["spec"]["nodeName"] == "node-1"
    assert bound["metadata"]["annotations"] == {"mine": "1", "gpu": "GPU-1"}
    (condition,) = bound["status"]["conditions"]
    assert (condition["type"], condition["status"]) == ("PodScheduled", "True")
    with pytest.raises(Conflict, match="already assigned"):
        bind(client, "p", made["metadata"]["uid"])


def test_an_eviction_deletes_and_says_so(client: KubeClient, cluster: Cluster) -> None:
    made = client.create(PODS, pod(finalizers=["x/y"]), "default")
    bind(client, "p", made["metadata"]["uid"])
    body = {"metadata": {"name": "p"}, "deleteOptions": {"preconditions": {"uid": "other"}}}
    with pytest.raises(Conflict):
        client.create(PODS, body, "default", name="p", subresource="eviction")
    client.create(PODS, {"metadata": {"name": "p"}}, "default", name="p", subresource="eviction")
    evicted = client.get(PODS, "p", "default")
    assert evicted["metadata"]["deletionTimestamp"]
    assert any(c["type"] == "DisruptionTarget" for c in evicted["status"]["conditions"])


def test_leases_are_replaced_by_version(client: KubeClient) -> None:
    lease = client.create(LEASES, {"metadata": {"name": "l"}, "spec": {"holderIdentity": "a"}}, "kube-system")
    renewed = client.replace(LEASES, {**lease, "spec": {"holderIdentity": "b"}})
    assert renewed["spec"] == {"holderIdentity": "b"}
    with pytest.raises(Conflict):
        client.replace(LEASES, {**lease, "spec": {"holderIdentity": "c"}})


def test_tokens_speak_for_their_pod_and_audience_alone(client: KubeClient, cluster: Cluster) -> None:
    made = client.create(PODS, pod(), "default")
    bind(client, "p", made["metadata"]["uid"])
    token = cluster.tokens.issue(client.get(PODS, "p", "default"), "timekeeper")

    def review(token: str, *audiences: str) -> Object:
        spec = {"token": token, "audiences": list(audiences)}
        status: Object = client.create(TOKEN_REVIEWS, {"spec": spec})["status"]
        return status

    known = review(token, "timekeeper")
    assert known["authenticated"]
    assert known["user"]["username"] == "system:serviceaccount:default:default"
    assert known["user"]["extra"]["authentication.kubernetes.io/pod-uid"] == [made["metadata"]["uid"]]
    assert not review(token, "other")["authenticated"]
    assert not review(token)["authenticated"], "without an audience the API server's own is meant"
    assert not review("guess", "timekeeper")["authenticated"]
    cluster.store.delete(PODS, "p", "default", grace=0)
    assert not review(token, "timekeeper")["authenticated"]


def test_only_loopbacks_user_may_do_all(client: KubeClient) -> None:
    for user, allowed in (("kubernetes-admin", True), ("system:serviceaccount:a:b", False)):
        assert client.create(ACCESS_REVIEWS, {"spec": {"user": user}})["status"]["allowed"] is allowed


def test_a_new_cluster_has_nodes_with_gpus_and_both_classes(client: KubeClient) -> None:
    node = client.get(NODES, "node-1")
    assert node["status"]["allocatable"]["tencent.com/vcuda-core"] == "200"
    assert node["status"]["allocatable"]["tencent.com/vcuda-memory"] == "320"
    classes, _ = client.list(PRIORITY_CLASSES)
    assert {c["metadata"]["name"]: c["value"] for c in classes} == {
        "gpu-default-priority": 0,
        "gpu-lower-priority": -100,
    }


def test_every_pods_last_record_is_kept(client: KubeClient, server: ApiServer) -> None:
    for name in ("a", "b"):
        client.create(PODS, pod(name), "default")
    client.delete(PODS, "a", "default")
    kept = JsonClient(server.url).json("GET", "/simulator/pods")["items"]
    assert [p["metadata"]["name"] for p in kept] == ["a", "b"]
    assert "deletionTimestamp" in kept[0]["metadata"]
