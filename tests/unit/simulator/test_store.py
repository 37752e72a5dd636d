# SPDX-License-Identifier: Apache-2.0
"""The store: versions, conflicts, deletion with grace and finalizers, the watch's history."""

import threading
from typing import Any

import pytest
from support.manual_clock import ManualClock

from simulator.api_errors import Expired, Invalid, ObjectConflict, ObjectNotFound
from simulator.store import Store
from slicekeeper.kube.client import NAMESPACES, PODS, Object


@pytest.fixture
def store() -> Store:
    return Store(ManualClock(1_000_000_000), history=20)


def pod(store: Store, name: str = "p", *, finalizers: tuple[str, ...] = (), node: str = "n", **spec: Any) -> Object:
    body = {
        "metadata": {"name": name, "finalizers": list(finalizers)},
        "spec": {"nodeName": node, "terminationGracePeriodSeconds": 30, **spec},
        "status": {"phase": "Running"},
    }
    return store.create(PODS, body, "ns")


def finalize(store: Store, *left: str) -> Object:
    def change(obj: Object) -> Object:
        obj["metadata"]["finalizers"] = list(left)
        return obj

    return store.update(PODS, "p", "ns", change)


def test_every_write_gets_the_next_version_and_a_write_without_change_none(store: Store) -> None:
    made = pod(store)
    assert made["metadata"]["resourceVersion"] == "1"
    same = store.update(PODS, "p", "ns", lambda old: old)
    assert same["metadata"]["resourceVersion"] == "1"
    changed = store.update(PODS, "p", "ns", lambda old: {**old, "metadata": {**old["metadata"], "labels": {"a": "b"}}})
    assert changed["metadata"]["resourceVersion"] == "2"
    assert made["metadata"].get("labels") is None, "an object that was handed out changes no more"


def test_a_stale_version_or_another_uid_is_a_conflict(store: Store) -> None:
    made = pod(store)
    finalize(store, "x")
    with pytest.raises(ObjectConflict, match="has been modified"):
        store.update(PODS, "p", "ns", lambda _: made)
    with pytest.raises(ObjectConflict, match="UID"):
        store.update(PODS, "p", "ns", lambda old: {**old, "metadata": {**old["metadata"], "uid": "other"}})
    with pytest.raises(ObjectConflict, match="precondition"):
        store.delete(PODS, "p", "ns", uid="other")
    with pytest.raises(ObjectConflict, match="already exists"):
        pod(store)


def test_status_and_the_rest_are_written_apart(store: Store) -> None:
    pod(store)

    def both(old: Object) -> Object:
        return {**old, "status": {"phase": "Failed"}, "spec": {**old["spec"], "schedulingGates": [{"name": "x"}]}}

    assert store.update(PODS, "p", "ns", both)["status"]["phase"] == "Running"
    assert store.update(PODS, "p", "ns", both, subresource="status")["status"]["phase"] == "Failed"
    with pytest.raises(Invalid, match="pod updates may not change"):
        store.update(PODS, "p", "ns", lambda old: {**old, "spec": {**old["spec"], "priority": 5}})


def test_names_are_generated(store: Store) -> None:
    made = store.create(PODS, {"metadata": {"generateName": "job-"}}, "ns")
    assert made["metadata"]["name"].startswith("job-")
    with pytest.raises(Invalid, match=r"metadata\.name"):
        store.create(PODS, {"metadata": {}}, "ns")


def test_a_running_pod_goes_only_after_its_grace_is_taken_away(store: Store) -> None:
    pod(store)
    asked = store.delete(PODS, "p", "ns")["metadata"]
    assert (asked["deletionTimestamp"], asked["deletionGracePeriodSeconds"]) == ("1970-01-12T13:47:10Z", 30)
    store.clock.wait(threading.Event(), 5)
    store.delete(PODS, "p", "ns")
    assert store.find(PODS, "p", "ns") is not None, "asking twice changes nothing"
    store.delete(PODS, "p", "ns", grace=0)
    assert store.find(PODS, "p", "ns") is None
    last = store.removed_pods[-1]["metadata"]
    assert last["deletionTimestamp"] == "1970-01-12T13:46:40Z", "the grace counts from when deletion was asked for"


@pytest.mark.parametrize("unbound", [True, False])
def test_a_pod_that_does_not_run_goes_at_once(store: Store, unbound: bool) -> None:
    pod(store, node="" if unbound else "n")
    if not unbound:
        store.update(PODS, "p", "ns", lambda old: {**old, "status": {"phase": "Failed"}}, subresource="status")
    store.delete(PODS, "p", "ns")
    assert store.find(PODS, "p", "ns") is None


def test_a_finalizer_holds_a_pod_until_it_is_taken_and_none_can_be_added(store: Store) -> None:
    pod(store, finalizers=("a", "b"))
    store.delete(PODS, "p", "ns", grace=0)
    finalize(store, "b")
    with pytest.raises(Invalid, match="no new finalizers"):
        finalize(store, "a", "b")
    finalize(store)
    with pytest.raises(ObjectNotFound):
        store.get(PODS, "p", "ns")
    assert store.since(0)[-1].kind == "DELETED"


def test_a_finalizer_taken_within_the_grace_does_not_shorten_it(store: Store) -> None:
    pod(store, finalizers=("a",))
    store.delete(PODS, "p", "ns")
    finalize(store)
    assert store.find(PODS, "p", "ns") is not None
    store.delete(PODS, "p", "ns", grace=0)
    assert store.find(PODS, "p", "ns") is None


def test_a_version_older_than_the_history_or_newer_than_all_is_gone(store: Store) -> None:
    for index in range(25):
        store.create(NAMESPACES, {"metadata": {"name": f"n{index}"}})
    assert [change.version for change in store.since(20)] == [21, 22, 23, 24, 25]
    assert store.since(25) == []
    for version in (4, 26):
        with pytest.raises(Expired):
            store.since(version)
    assert len(store.since(5)) == 20
