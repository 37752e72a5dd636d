# SPDX-License-Identifier: Apache-2.0
"""The simulated cluster as its components use it: a store behind admission, with bindings and evictions."""

from __future__ import annotations

from typing import Any

from simulator.admission import Attributes, SimulatedAdmission
from simulator.api_errors import Malformed, ObjectConflict, ObjectNotFound
from simulator.identities import USER, TokenBook
from simulator.kinds import BY_RESOURCE, check_types
from simulator.object_names import check_names
from simulator.patch import clone
from simulator.store import Store
from slicekeeper.clock import Clock
from slicekeeper.kube.client import NAMESPACES, PODS, Object, Resource
from slicekeeper.net.json_client import JsonClient
from slicekeeper.units import format_seconds


class Cluster:
    """All state of the simulated cluster, and its compound writes."""

    def __init__(self, clock: Clock, webhook: JsonClient | None = None) -> None:
        self.clock = clock
        self.store = Store(clock)
        self.tokens = TokenBook(self.store)
        self._admission = SimulatedAdmission(self.store, webhook)

    def create(
        self, resource: Resource, body: Object, namespace: str = "", *, user: str = USER
    ) -> tuple[Object, list[str]]:
        """Admit and store a new object; return it with the warnings for its author.

        Raises ApiError.
        """
        kind = BY_RESOURCE[resource]
        obj = clone(body)
        metadata = obj.setdefault("metadata", {})
        if resource.namespaced:
            if metadata.setdefault("namespace", namespace) != namespace:
                raise Malformed(
                    f"the namespace of the provided object ({metadata['namespace']}) does not match the namespace "
                    f"sent on the request ({namespace})"
                )
            if self.store.find(NAMESPACES, namespace) is None:
                raise ObjectNotFound(NAMESPACES, namespace)
        check_types(resource, obj)
        check_names(resource, obj)
        obj |= {"apiVersion": kind.api_version, "kind": kind.name}
        if resource == PODS:
            obj["status"] = {"phase": "Pending"}
        attributes = Attributes(resource, namespace, user)
        obj = self._admission.admit(obj, attributes)
        if resource == PODS and (obj.get("spec") or {}).get("schedulingGates"):
            now, why = self.clock.now_ms(), "Scheduling is blocked due to non-empty scheduling gates"
            set_condition(obj, "PodScheduled", "False", now, "SchedulingGated", why)
        return self.store.create(resource, obj, namespace), attributes.warnings

    def check_update(self, resource: Resource, new: Object, old: Object) -> None:
        """Let the webhook review a changed workload; raises ApiError."""
        namespace = old["metadata"].get("namespace", "")
        self._admission.admit(clone(new), Attributes(resource, namespace, USER, old=old))

    def bind(self, name: str, namespace: str, binding: Object) -> None:
        """Assign a pod to a node, copying the Binding's annotations in the same write.

        Raises ObjectConflict if it is bound, held by a gate, or under deletion.
        """
        node = str((binding.get("target") or {}).get("name", ""))
        given = binding.get("metadata") or {}
        if not node:
            raise Malformed("target.name: Required value")

        def assign(pod: Object) -> Object:
            metadata, spec = pod["metadata"], pod["spec"]
            if given.get("uid", metadata["uid"]) != metadata["uid"]:
                raise ObjectConflict(f'pods "{name}": the Binding is for another UID')
            for wrong, why in (
                (metadata.get("deletionTimestamp"), "is being deleted, cannot be assigned to a host"),
                (spec.get("nodeName"), f"is already assigned to node {spec.get('nodeName')!r}"),
                (spec.get("schedulingGates"), "has non-empty .spec.schedulingGates"),
            ):
                if wrong:
                    raise ObjectConflict(f'Operation cannot be fulfilled on pods/binding "{name}": pod {name} {why}')
            spec["nodeName"] = node
            metadata["annotations"] = {**(metadata.get("annotations") or {}), **(given.get("annotations") or {})}
            set_condition(pod, "PodScheduled", "True", self.clock.now_ms())
            return pod

        self.store.update(PODS, name, namespace, assign, subresource="binding")

    def evict(self, name: str, namespace: str, eviction: Object) -> None:
        """Delete a pod by the eviction API, with the condition that says so, unless it is a dry run."""
        options = eviction.get("deleteOptions") or {}
        uid = str((options.get("preconditions") or {}).get("uid") or "")

        def mark(pod: Object) -> Object:
            set_condition(
                pod, "DisruptionTarget", "True", self.clock.now_ms(), "EvictionByEvictionAPI", "Eviction API: evicting"
            )
            return pod

        with self.store.changed:
            pod = self.store.get(PODS, name, namespace)
            if uid and uid != pod["metadata"]["uid"]:
                raise ObjectConflict(f'pods "{name}": the UID in the precondition does not match the UID in record')
            if options.get("dryRun"):
                return
            if not pod["metadata"].get("deletionTimestamp"):
                self.store.update(PODS, name, namespace, mark, subresource="status")
            self.store.delete(PODS, name, namespace, grace=options.get("gracePeriodSeconds"))


def set_condition(pod: Object, kind: str, status: str, now_ms: int, reason: str = "", message: str = "") -> None:
    """Set one condition of a pod; the transition time moves only with the status."""
    conditions: list[dict[str, Any]] = pod.setdefault("status", {}).setdefault("conditions", [])
    before = next((c for c in conditions if c["type"] == kind), None)
    same = before is not None and before["status"] == status
    condition = {
        "type": kind,
        "status": status,
        "lastProbeTime": None,
        "lastTransitionTime": before["lastTransitionTime"] if before and same else format_seconds(now_ms),
        **({"reason": reason} if reason else {}),
        **({"message": message} if message else {}),
    }
    if before is None:
        conditions.append(condition)
    else:
        conditions[conditions.index(before)] = condition
