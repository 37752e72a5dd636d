# SPDX-License-Identifier: Apache-2.0
"""Deployment and Job: what is there becomes what is wanted."""

from typing import Any

import pytest
from support.manual_clock import ManualClock

from simulator.cluster import Cluster
from simulator.controllers import JOB_TRACKING, Controllers
from simulator.initial_objects import fill
from slicekeeper.config.settings import Settings
from slicekeeper.kube.client import DEPLOYMENTS, EVENTS, JOBS, PODS, Object

SPEC = {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}


@pytest.fixture
def cluster() -> Cluster:
    cluster = Cluster(ManualClock(1_000_000))
    fill(cluster.store, Settings(), 1, 1, "T4")
    return cluster


def job(cluster: Cluster, **spec: Any) -> Controllers:
    cluster.create(JOBS, {"metadata": {"name": "j"}, "spec": {**spec, "template": {"spec": SPEC}}}, "default")
    controllers = Controllers(cluster)
    controllers.reconcile()
    return controllers


def pods(cluster: Cluster) -> list[Object]:
    return cluster.store.collection(PODS)[0]


def end(cluster: Cluster, pod: Object, phase: str) -> None:
    change = lambda old: {**old, "status": {"phase": phase}}  # noqa: E731
    cluster.store.update(PODS, pod["metadata"]["name"], "default", change, subresource="status")


def status(cluster: Cluster) -> Object:
    found: Object = cluster.store.get(JOBS, "j", "default")["status"]
    return found


def test_a_job_runs_its_completions_in_parallel(cluster: Cluster) -> None:
    controllers = job(cluster, completions=3, parallelism=2)
    assert len(pods(cluster)) == 2
    first = pods(cluster)[0]
    assert first["metadata"]["labels"]["job-name"] == "j"
    assert first["metadata"]["ownerReferences"][0]["controller"]
    for expected in (2, 3, 3):
        controllers.reconcile()
        for pod in pods(cluster):
            if JOB_TRACKING in pod["metadata"]["finalizers"] and expected > 1:
                end(cluster, pod, "Succeeded")
                break
        controllers.reconcile()
        controllers.reconcile()
    for pod in pods(cluster):
        end(cluster, pod, "Succeeded")
    controllers.reconcile()
    assert status(cluster)["succeeded"] == 3
    assert status(cluster)["conditions"][0]["type"] == "Complete"
    controllers.reconcile()
    assert len(pods(cluster)) == 3


def test_a_job_gives_up_after_its_backoff_limit(cluster: Cluster) -> None:
    controllers = job(cluster, backoffLimit=1)
    for _ in range(2):
        end(cluster, pods(cluster)[-1], "Failed")
        controllers.reconcile()
    assert status(cluster)["conditions"][0]["reason"] == "BackoffLimitExceeded"
    assert (status(cluster)["failed"], len(pods(cluster))) == (2, 2)


def test_a_pod_of_a_job_that_is_deleted_is_counted_and_replaced(cluster: Cluster) -> None:
    controllers = job(cluster)
    (pod,) = pods(cluster)
    cluster.store.delete(PODS, pod["metadata"]["name"], "default")
    assert pods(cluster), "the Job's finalizer holds it until it is counted"
    controllers.reconcile()
    (other,) = pods(cluster)
    assert other["metadata"]["uid"] != pod["metadata"]["uid"]
    assert status(cluster)["failed"] == 1


def deployment(cluster: Cluster, replicas: int) -> Controllers:
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": SPEC["containers"]}}
    spec = {"replicas": replicas, "selector": {"matchLabels": {"a": "b"}}, "template": template}
    cluster.create(DEPLOYMENTS, {"metadata": {"name": "d"}, "spec": spec}, "default")
    controllers = Controllers(cluster)
    controllers.reconcile()
    return controllers


def test_a_deployment_replaces_pods_that_failed_or_were_deleted(cluster: Cluster) -> None:
    controllers = deployment(cluster, 2)
    failed, evicted = pods(cluster)
    end(cluster, failed, "Failed")
    cluster.evict(evicted["metadata"]["name"], "default", {})
    controllers.reconcile()
    controllers.reconcile()
    now = {pod["metadata"]["uid"] for pod in pods(cluster)}
    assert len(now) == 2
    assert now.isdisjoint({failed["metadata"]["uid"], evicted["metadata"]["uid"]})


def test_a_deployment_scales_and_its_pods_go_with_it(cluster: Cluster) -> None:
    controllers = deployment(cluster, 1)
    for replicas in (3, 1):
        change = lambda old, n=replicas: {**old, "spec": {**old["spec"], "replicas": n}}  # noqa: E731
        cluster.store.update(DEPLOYMENTS, "d", "default", change)
        controllers.reconcile()
        assert len(pods(cluster)) == replicas
    cluster.store.delete(DEPLOYMENTS, "d", "default")
    controllers.reconcile()
    assert pods(cluster) == []


def test_a_pod_that_is_refused_is_told_and_not_hammered(cluster: Cluster) -> None:
    controllers = deployment(cluster, 0)
    change = lambda old: {**old, "spec": {**old["spec"], "replicas": 2, "template": {"spec": {"containers": []}}}}  # noqa: E731
    cluster.store.update(DEPLOYMENTS, "d", "default", change)
    controllers.reconcile()
    controllers.reconcile()
    (event,) = cluster.store.collection(EVENTS)[0]
    assert event["reason"] == "FailedCreate"
    assert event["involvedObject"]["kind"] == "Deployment"
