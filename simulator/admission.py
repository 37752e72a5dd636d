# SPDX-License-Identifier: Apache-2.0
"""Admission of a new object before it is stored, in the API server's own order.

Defaults and in-tree plugins, our webhook's `/mutate` (failurePolicy Ignore) with the plugins run again after it and
one reinvocation if they changed something, then `/validate` (failurePolicy Fail). Reviews are real ones, sent over
HTTPS. No rule of ours is here: what a pod may ask for, the webhook says.
"""

from __future__ import annotations

import base64
import logging
import uuid
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from simulator import admission_plugins, limit_ranger
from simulator.api_errors import ApiError, Denied, Invalid
from simulator.kinds import BY_RESOURCE
from simulator.patch import PatchError, apply, clone
from simulator.store import Store
from slicekeeper.errors import ServiceError, Unavailable
from slicekeeper.kube.client import DEPLOYMENTS, JOBS, PODS, Object, Resource
from slicekeeper.net.json_client import JsonClient
from slicekeeper.wire import admission_types as wire

log = logging.getLogger(__name__)

WEBHOOK: Final = "pods.slicekeeper.io"


@dataclass
class Attributes:
    """The attributes of a request, as every plugin and webhook sees them."""

    resource: Resource
    namespace: str
    user: str
    old: Object | None = None
    warnings: list[str] = field(default_factory=list)

    @property
    def operation(self) -> str:
        """CREATE, or UPDATE if there was an object before."""
        return "UPDATE" if self.old is not None else "CREATE"


class SimulatedAdmission:
    """Admits objects; `webhook` is the webhook's client, None if the cluster has none."""

    def __init__(self, store: Store, webhook: JsonClient | None = None) -> None:
        self._store = store
        self._webhook = webhook

    def admit(self, obj: Object, attributes: Attributes) -> Object:
        """Return the object as it is to be stored; warnings for its author are left in `attributes`.

        Raises ApiError.
        """
        if attributes.resource == PODS and attributes.old is None:
            return self._pod(obj, attributes)
        if attributes.resource in (DEPLOYMENTS, JOBS):
            _workload_defaults(obj, attributes.resource)
            self._validate(obj, attributes)
        return obj

    def _pod(self, pod: Object, attributes: Attributes) -> Object:
        admission_plugins.check_pod(pod)
        self._in_tree(pod, attributes.namespace)
        mutated = self._mutate(pod, attributes)
        if mutated is not pod:
            before = clone(mutated)
            self._in_tree(mutated, attributes.namespace)
            if mutated != before:
                mutated = self._mutate(mutated, attributes)
                self._in_tree(mutated, attributes.namespace)
        admission_plugins.check_pod(mutated)
        limit_ranger.check(self._store, mutated, attributes.namespace)
        admission_plugins.default_own_requests(mutated)
        self._validate(mutated, attributes)
        return mutated

    def _in_tree(self, pod: Object, namespace: str) -> None:
        admission_plugins.set_defaults(pod)
        limit_ranger.set_defaults(self._store, pod, namespace)
        admission_plugins.service_account(pod)
        admission_plugins.priority(self._store, pod)

    def _mutate(self, pod: Object, attributes: Attributes) -> Object:
        try:
            answer = self._call("/mutate", pod, attributes)
        except ServiceError as error:
            log.warning("webhook /mutate failed and is passed over (failurePolicy Ignore): %s", error)
            return pod
        if answer is None or not answer.get("patch"):
            return pod
        try:
            patched = apply(pod, msgspec.json.decode(base64.b64decode(answer["patch"])))
        except (PatchError, msgspec.DecodeError, ValueError) as error:
            raise ApiError(500, "InternalError", f'admission webhook "{WEBHOOK}": the patch fails: {error}') from error
        if not isinstance(patched, dict):
            raise ApiError(500, "InternalError", f'admission webhook "{WEBHOOK}": the patch leaves no object')
        return patched

    def _validate(self, obj: Object, attributes: Attributes) -> None:
        try:
            self._call("/validate", obj, attributes)
        except ServiceError as error:
            raise ApiError(
                500, "InternalError", f'Internal error occurred: failed calling webhook "{WEBHOOK}": {error}'
            ) from error

    def _call(self, path: str, obj: Object, attributes: Attributes) -> wire.AdmissionResponse | None:
        """Send one review; return the answer of a webhook that allows it.

        Raises Denied if it does not, ServiceError if it cannot be asked.
        """
        if self._webhook is None:
            return None
        review = _review(obj, attributes)
        try:
            answer = self._webhook.json("POST", path, body=review)
        except Unavailable:  # a kept connection to a webhook that has gone breaks once; reviews are safe to repeat
            answer = self._webhook.json("POST", path, body=review)
        response: wire.AdmissionResponse | None = answer.get("response") if isinstance(answer, dict) else None
        if response is None or response.get("uid") != review["request"]["uid"]:
            raise ServiceError(f"{path}: the answer is no response to this review")
        attributes.warnings += response.get("warnings") or []
        if response.get("allowed") is not True:
            status: Any = response.get("status") or {}
            message = status.get("message") or "without explanation"
            raise Denied(
                f'admission webhook "{WEBHOOK}" denied the request: {message}',
                int(status.get("code") or 403),
                str(status.get("reason") or "Forbidden"),
            )
        return response


def _review(obj: Object, attributes: Attributes) -> wire.AdmissionReview:
    kind = BY_RESOURCE[attributes.resource]
    gvk: wire.GroupVersionKind = {"group": kind.group, "version": kind.version, "kind": kind.name}
    resource = {"group": kind.group, "version": kind.version, "resource": kind.resource.plural}
    request: Any = {
        "uid": str(uuid.uuid4()),
        "kind": gvk,
        "requestKind": gvk,
        "resource": resource,
        "requestResource": resource,
        "name": obj["metadata"].get("name", ""),
        "namespace": attributes.namespace,
        "operation": attributes.operation,
        "userInfo": {"username": attributes.user, "groups": ["system:authenticated"]},
        "object": obj,
        "oldObject": attributes.old,
        "dryRun": False,
        "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
    }
    return {"apiVersion": wire.API_VERSION, "kind": wire.KIND, "request": request}


def _workload_defaults(obj: Object, resource: Resource) -> None:
    spec = obj.get("spec")
    template = spec.get("template") if isinstance(spec, dict) else None
    name = obj["metadata"].get("name", "")
    if not isinstance(spec, dict) or not isinstance(template, dict):
        raise Invalid(f"{resource.plural} {name!r} is invalid: spec.template: Required value")
    admission_plugins.check_pod(template, "spec.template.spec")
    pod_spec = template["spec"]
    if resource == JOBS:
        admission_plugins.fill_in(spec, {"parallelism": 1, "completions": 1, "backoffLimit": 6})
        if pod_spec.get("restartPolicy") not in ("Never", "OnFailure"):
            raise Invalid(
                f'Job.batch "{name}" is invalid: spec.template.spec.restartPolicy: Required value: '
                'valid values: "OnFailure", "Never"'
            )
        return
    admission_plugins.fill_in(spec, {"replicas": 1})
    labels = (template.get("metadata") or {}).get("labels") or {}
    wanted = (spec.get("selector") or {}).get("matchLabels")
    if not wanted or any(labels.get(key) != value for key, value in wanted.items()):
        raise Invalid(
            f'Deployment.apps "{name}" is invalid: spec.template.metadata.labels: Invalid value: '
            "`selector` does not match template `labels`"
        )
    admission_plugins.set_defaults(template)
