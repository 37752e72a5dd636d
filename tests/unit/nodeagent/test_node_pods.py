# SPDX-License-Identifier: Apache-2.0
"""The node's pods from a watch, and from a request if the watch is behind."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from support.small_cluster import NAMESPACE, SmallCluster, small_cluster

from nodeagent.node_pods import LIST_SECONDS, NodePods
from slicekeeper import names
from slicekeeper.kube.client import PODS, Object


@pytest.fixture
def small() -> Iterator[SmallCluster]:
    with small_cluster() as small:
        small.node("node-1")
        yield small


def bound(small: SmallCluster, name: str) -> Object:
    small.pod(name)
    binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "node-1"}}
    small.client.create(PODS, binding, NAMESPACE, name=name, subresource="binding")
    return small.get(name)


def test_the_api_server_is_asked_for_the_nodes_own_pods_alone(small: SmallCluster) -> None:
    pods = NodePods(small.client, "node-1", lambda: None, lambda: None)
    here = bound(small, "web-0")
    small.pod("waits")
    assert pods.ask(NAMESPACE, "web-0") == here
    assert pods.ask(NAMESPACE, "waits") is None
    assert pods.ask(NAMESPACE, "nobody") is None


def test_a_pod_that_the_watch_never_shows_is_not_asked_for(small: SmallCluster) -> None:
    pods = NodePods(small.client, "node-1", lambda: None, lambda: None)
    bound(small, "other")
    small.client.patch(PODS, "other", {"metadata": {"labels": {names.MANAGED_LABEL: None}}}, NAMESPACE)
    assert pods.ask(NAMESPACE, "other") is None
    assert pods.all() == []


def test_a_pod_that_ends_while_the_watch_is_down_is_gone(small: SmallCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    pods = NodePods(small.client, "node-1", lambda: None, lambda: None)
    new = bound(small, "web-0")
    pods.ask(NAMESPACE, "web-0")
    pods.on_list([])
    assert pods.all() == [new], "the list may have been made before"
    later = time.monotonic() + LIST_SECONDS
    monkeypatch.setattr(time, "monotonic", lambda: later)
    pods.on_list([])
    assert pods.all() == []


def test_a_pod_that_was_asked_for_counts_before_the_watch_shows_it(small: SmallCluster) -> None:
    left: list[set[str]] = []
    pods = NodePods(
        small.client, "node-1", lambda: left.append({pod["metadata"]["uid"] for pod in pods.all()}), lambda: None
    )
    old: Object = {"metadata": {"name": "web-0", "namespace": NAMESPACE, "uid": "uid-old"}}
    pods.on_list([old])
    new = bound(small, "web-0")
    uid = new["metadata"]["uid"]
    assert pods.ask(NAMESPACE, "web-0") == new
    assert {pod["metadata"]["uid"] for pod in pods.all()} == {"uid-old", uid}
    pods.on_event("MODIFIED", old)
    pods.on_event("DELETED", old)
    assert left[-1] == {uid}, "what the watch has not shown yet is not gone"
    pods.on_event("ADDED", new)
    pods.on_event("DELETED", new)
    assert left[-1] == set()
    assert pods.all() == []
