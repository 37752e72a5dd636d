# SPDX-License-Identifier: Apache-2.0
"""The two controllers that local mode has: Deployment → pods and Job → pods.

Level-triggered, like Kubernetes' own: each pass compares the current state with the desired one. A Deployment's pods
are created without a ReplicaSet. Quota, rollouts and the rest are Kubernetes' work, and the cluster suite has the real
one.
"""

from __future__ import annotations

import contextlib
import logging
import time
import uuid
from typing import Any, Final

from simulator.api_errors import ApiError, ObjectNotFound
from simulator.cluster import Cluster
from simulator.loop import Loop
from simulator.patch import clone
from simulator.store import phase
from slicekeeper.kube.client import DEPLOYMENTS, EVENTS, JOBS, PODS, Object, Resource
from slicekeeper.kube.pod import has_ended
from slicekeeper.units import format_seconds

log = logging.getLogger(__name__)

RETRY_SECONDS: Final = 0.5
"""Real seconds before a refused pod is tried again."""


JOB_TRACKING: Final = "batch.kubernetes.io/job-tracking"
"""The Job controller's finalizer: no pod of a Job goes uncounted."""


def _has_ended(pod: Object) -> bool:
    """Whether a pod will not run again; one deleted before it got a node never ran."""
    unborn = pod["metadata"].get("deletionTimestamp") and not pod["spec"].get("nodeName")
    return has_ended(pod) or bool(unborn)


class Controllers:
    """Both controllers in one daemon thread."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._store = cluster.store
        self._loop = Loop("controllers", self.reconcile, self._store, RETRY_SECONDS / 2)
        self.start, self.stop = self._loop.start, self._loop.stop
        self._not_before: dict[str, float] = {}
        """By the owner's UID: when creating may be tried again after a refusal."""

    def reconcile(self) -> None:
        """Process every workload once, and delete pods whose owner is gone."""
        owned: dict[str, list[Object]] = {}
        owners: set[str] = set()
        with self._store.changed:
            for pod in self._store.collection(PODS)[0]:
                for owner in pod["metadata"].get("ownerReferences") or []:
                    if owner.get("controller"):
                        owned.setdefault(owner["uid"], []).append(pod)
            workloads = [(kind, obj) for kind in (DEPLOYMENTS, JOBS) for obj in self._store.collection(kind)[0]]
        for resource, obj in workloads:
            owners.add(obj["metadata"]["uid"])
            pods = owned.get(obj["metadata"]["uid"], [])
            try:
                (self._deployment if resource == DEPLOYMENTS else self._job)(obj, pods)
            except ObjectNotFound:
                continue  # deleted meanwhile
        for uid in owned.keys() - owners:
            for pod in owned[uid]:
                self._delete(pod)
                self._untrack(pod)

    def _deployment(self, obj: Object, pods: list[Object]) -> None:
        live = [pod for pod in pods if not has_ended(pod) and not pod["metadata"].get("deletionTimestamp")]
        wanted = int(obj["spec"]["replicas"])
        for _ in range(wanted - len(live)):
            if not self._create_pod(DEPLOYMENTS, obj):
                break
        for pod in live[wanted:] if wanted < len(live) else []:
            self._delete(pod)
        for pod in pods:
            if has_ended(pod):
                self._delete(pod)
        ready = sum(phase(pod) == "Running" for pod in live)
        self._set_status(DEPLOYMENTS, obj, {"replicas": len(live), "readyReplicas": ready, "availableReplicas": ready})

    def _job(self, obj: Object, pods: list[Object]) -> None:
        spec, status = obj["spec"], clone(obj.get("status") or {})
        if any(c["status"] == "True" for c in status.get("conditions") or []):
            return
        ended = [pod for pod in pods if _has_ended(pod) and JOB_TRACKING in pod["metadata"].get("finalizers", ())]
        for pod in ended:
            key = "succeeded" if phase(pod) == "Succeeded" else "failed"
            status[key] = status.get(key, 0) + 1
        live = [pod for pod in pods if not _has_ended(pod) and not pod["metadata"].get("deletionTimestamp")]
        missing = int(spec["completions"]) - status.get("succeeded", 0)
        status["active"] = len(live)
        status.setdefault("startTime", format_seconds(self._cluster.clock.now_ms()))
        if missing <= 0:
            self._finish(status, "Complete", "")
        elif status.get("failed", 0) > int(spec["backoffLimit"]):
            self._finish(status, "Failed", "BackoffLimitExceeded")
            for pod in live:
                self._delete(pod)
        self._set_status(JOBS, obj, status)
        for pod in ended:
            self._untrack(pod)
        if "conditions" not in status:
            for _ in range(min(int(spec["parallelism"]), missing) - len(live)):
                if not self._create_pod(JOBS, obj):
                    break

    def _finish(self, status: Object, kind: str, reason: str) -> None:
        now = format_seconds(self._cluster.clock.now_ms())
        status["conditions"] = [{"type": kind, "status": "True", "reason": reason, "lastTransitionTime": now}]
        status["completionTime"] = now

    def _set_status(self, resource: Resource, obj: Object, status: Object) -> None:
        def write(old: Object) -> Object:
            return {**old, "status": status}

        metadata = obj["metadata"]
        self._store.update(resource, metadata["name"], metadata["namespace"], write, subresource="status")

    def _create_pod(self, resource: Resource, owner: Object) -> bool:
        metadata, uid = owner["metadata"], owner["metadata"]["uid"]
        if time.monotonic() < self._not_before.get(uid, 0.0):
            return False
        template = clone(owner["spec"]["template"])
        pod_metadata: dict[str, Any] = template.get("metadata") or {}
        labels = pod_metadata.get("labels") or {}
        if resource == JOBS:
            labels |= {"job-name": metadata["name"], "batch.kubernetes.io/job-name": metadata["name"]}
        kind = owner["kind"]
        by = {"apiVersion": owner["apiVersion"], "kind": kind, "name": metadata["name"], "uid": uid}
        pod = {
            "metadata": {
                "generateName": f"{metadata['name']}-",
                "labels": labels,
                "annotations": pod_metadata.get("annotations") or {},
                "finalizers": [JOB_TRACKING] if resource == JOBS else [],
                "ownerReferences": [{**by, "controller": True, "blockOwnerDeletion": True}],
            },
            "spec": template["spec"],
        }
        user = f"system:serviceaccount:kube-system:{kind.lower()}-controller"
        try:
            self._cluster.create(PODS, pod, metadata["namespace"], user=user)
        except ApiError as error:
            self._not_before[uid] = time.monotonic() + RETRY_SECONDS
            write_event(self._cluster, owner, "FailedCreate", f"Error creating: {error}", f"{kind.lower()}-controller")
            return False
        return True

    def _untrack(self, pod: Object) -> None:
        """Remove the Job controller's finalizer from a pod that has been counted."""

        def change(old: Object) -> Object:
            old["metadata"]["finalizers"] = [f for f in old["metadata"].get("finalizers", ()) if f != JOB_TRACKING]
            return old

        if JOB_TRACKING in pod["metadata"].get("finalizers", ()):
            with contextlib.suppress(ObjectNotFound):
                self._store.update(PODS, pod["metadata"]["name"], pod["metadata"]["namespace"], change)

    def _delete(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if not metadata.get("deletionTimestamp"):
            try:
                self._store.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
            except ApiError as error:
                log.info("pod %s/%s is gone already: %s", metadata["namespace"], metadata["name"], error)


def write_event(cluster: Cluster, obj: Object, reason: str, note: str, reporter: str) -> None:
    """Write a warning on an object, as Kubernetes' own components do."""
    metadata, now = obj["metadata"], format_seconds(cluster.clock.now_ms())
    event = {
        "metadata": {"name": f"{metadata['name'][:200]}.{uuid.uuid4().hex[:16]}"},
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {
            "kind": obj.get("kind", "Pod"),
            "namespace": metadata["namespace"],
            "name": metadata["name"],
            "uid": metadata["uid"],
        },
        "type": "Warning",
        "reason": reason,
        "message": note[:1024],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "reportingComponent": reporter,
        "source": {"component": reporter},
    }
    cluster.store.create(EVENTS, event, metadata["namespace"])
