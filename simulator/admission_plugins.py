# SPDX-License-Identifier: Apache-2.0
"""kube-apiserver's own changes of a new pod: defaults, and the plugins ServiceAccount and Priority.

Only what our parts can see. Each function works on a pod in place and may be run again after a webhook has changed it.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from fractions import Fraction
from typing import Any, Final

from simulator.api_errors import Denied, Invalid
from simulator.store import Store
from slicekeeper.kube.client import PRIORITY_CLASSES, Object
from slicekeeper.kube.objects import PodSpec, read
from slicekeeper.kube.pod_amounts import amount_of, can_be_pods_own, requested_by, requested_together
from slicekeeper.units import parse_quantity

_TOKEN_MOUNT: Final = "/var/run/secrets/kubernetes.io/serviceaccount"  # noqa: S105 - a path
_TOKEN_VOLUME: Final = "kube-api-access-"  # noqa: S105 - a name
_CONTAINER_NAME: Final = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")
_DEFAULTS: Final = {
    "restartPolicy": "Always",
    "terminationGracePeriodSeconds": 30,
    "dnsPolicy": "ClusterFirst",
    "schedulerName": "default-scheduler",
    "securityContext": {},
}


def all_containers(spec: Object) -> list[dict[str, Any]]:
    """Return a pod's init and app containers."""
    return [*(spec.get("initContainers") or []), *(spec.get("containers") or [])]


def fill_in(spec: Object, defaults: Mapping[str, Any]) -> None:
    """Write the default of each field that is missing or null."""
    for key, value in defaults.items():
        if spec.get(key) is None:
            spec[key] = {} if value == {} else value  # no two objects share it


def set_defaults(pod: Object) -> None:
    """Write what the API's defaulting writes; limits become requests if there are none."""
    spec = pod["spec"]
    fill_in(spec, _DEFAULTS)
    for container in all_containers(spec):
        resources = container.setdefault("resources", {})
        limits = resources.get("limits") or {}
        missing = {name: value for name, value in limits.items() if name not in (resources.get("requests") or {})}
        if missing:
            resources["requests"] = {**(resources.get("requests") or {}), **missing}


def check_pod(pod: Object, where: str = "spec") -> None:
    """Refuse invalid pods like the API's validation, as far as users may plausibly write them.

    Raises Invalid.
    """
    metadata, spec = pod.get("metadata") or {}, pod.get("spec")
    name = metadata.get("name") or metadata.get("generateName", "").rstrip("-")
    if not isinstance(spec, dict) or not isinstance(spec.get("containers"), list) or not spec["containers"]:
        raise Invalid(f"Pod {name!r} is invalid: {where}.containers: Required value")
    seen: set[str] = set()
    for container in all_containers(spec):
        label = container.get("name") if isinstance(container, dict) else None
        if not isinstance(label, str) or not _CONTAINER_NAME.fullmatch(label):
            raise Invalid(f"Pod {name!r} is invalid: {where}.containers[].name: Invalid value: {label!r}")
        if label in seen:
            raise Invalid(f"Pod {name!r} is invalid: {where}.containers[].name: Duplicate value: {label!r}")
        seen.add(label)
        _check_resources(name, label, container.get("resources") or {})
    _check_own_amounts(name, read(spec, PodSpec), f"{where}.resources")


def _check_own_amounts(pod: str, spec: PodSpec, where: str) -> None:
    """Compare the amounts of a pod as a whole with those of its containers, as Kubernetes does from 1.34 on.

    A request that is not given becomes that of the containers together, and must not exceed the limit either.
    """
    wrong = []
    for resource in spec.resources.amounts:
        if not can_be_pods_own(resource):
            wrong.append(f"{where}: Unsupported value: {resource!r}: supported values: 'cpu', 'hugepages-', 'memory'")
        most, limit = requested_by(spec.resources, resource), amount_of(spec.resources.limits, resource)
        together = requested_together(spec, resource)
        if most is not None and together > most:
            least = f"must be greater than or equal to aggregate container requests of {_quantity(together)}"
            wrong.append(f"{where}.requests[{resource}]: Invalid value: {_quantity(most)!r}: {least}")
        for index, container in enumerate(spec.containers):
            of_container = amount_of(container.resources.limits, resource)
            if limit is not None and of_container is not None and of_container > limit:
                most_allowed = f"must be less than or equal to pod limits of {_quantity(limit)}"
                wrong.append(f"{where}.containers[{index}][{resource}].limits: Invalid value: {most_allowed}")
    if wrong:
        raise Invalid(f"Pod {pod!r} is invalid: {', '.join(wrong)}")


def default_own_requests(pod: Object) -> None:
    """Complete the amounts of a pod as a whole, after all webhooks: its containers' requests, or else its limit."""
    spec = pod["spec"]
    own = spec.get("resources") or {}
    limits, requests = own.get("limits") or {}, own.get("requests") or {}
    for resource in limits:
        if resource not in requests:
            together = requested_together(read(spec, PodSpec), resource)
            requests = {**requests, resource: _quantity(together) if together else limits[resource]}
    if requests:
        own["requests"] = requests


def _quantity(amount: Fraction) -> str:
    """Return a quantity as Kubernetes writes it, if it is less than a thousandth off."""
    return str(amount) if amount.denominator == 1 else f"{int(amount * 1000)}m"


def _check_resources(pod: str, container: str, resources: Object) -> None:
    for section in ("limits", "requests"):
        for resource, value in (resources.get(section) or {}).items():
            try:
                amount = parse_quantity(value)
            except ValueError as error:
                raise Invalid(
                    f"Pod {pod!r} is invalid: container {container!r}: resources.{section}[{resource}]: "
                    f"Invalid value: {value!r}: quantities must match the regular expression of the API"
                ) from error
            if "/" in resource and amount.denominator != 1:
                raise Invalid(
                    f"Pod {pod!r} is invalid: container {container!r}: resources.{section}[{resource}]: "
                    f"Invalid value: {value!r}: must be an integer"
                )


def service_account(pod: Object) -> None:
    """Name the account and mount its token into every container that has no mount there yet."""
    spec = pod["spec"]
    spec.setdefault("serviceAccountName", "default")
    spec["serviceAccount"] = spec["serviceAccountName"]
    if spec.get("automountServiceAccountToken") is False:
        return
    volumes = spec.setdefault("volumes", [])
    name = next((v["name"] for v in volumes if v["name"].startswith(_TOKEN_VOLUME)), "")
    for container in all_containers(spec):
        mounts = container.setdefault("volumeMounts", [])
        if any(mount.get("mountPath") == _TOKEN_MOUNT for mount in mounts):
            continue
        if not name:
            name = _TOKEN_VOLUME + secrets.token_hex(3)[:5]
            volumes.append({"name": name, "projected": {"sources": [{"serviceAccountToken": {"path": "token"}}]}})
        mounts.append({"name": name, "readOnly": True, "mountPath": _TOKEN_MOUNT})


def priority(store: Store, pod: Object) -> None:
    """Compute priority and preemption policy from the class, and refuse a pod that says otherwise.

    Raises Denied with the API server's own words.
    """
    spec, pod_name = pod["spec"], pod["metadata"].get("name", "")
    value, policy = 0, "PreemptLowerPriority"
    name = spec.get("priorityClassName")
    if name:
        found = store.find(PRIORITY_CLASSES, name)
        if found is None:
            raise Denied(f'pods "{pod_name}" is forbidden: no PriorityClass with name {name} was found')
        value, policy = int(found["value"]), found.get("preemptionPolicy") or policy
    for key, given, computed, kind in (
        ("priority", spec.get("priority"), value, "integer value of priority"),
        ("preemptionPolicy", spec.get("preemptionPolicy"), policy, "string value of PreemptionPolicy"),
    ):
        if given is not None and given != computed:
            raise Denied(
                f'pods "{pod_name}" is forbidden: the {kind} ({given}) must not be provided in pod spec; '
                f"priority admission controller computed {computed} from the given PriorityClass name"
            )
        spec[key] = computed
