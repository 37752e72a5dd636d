# SPDX-License-Identifier: Apache-2.0
"""Missing rights of our service accounts, for `slicekeeper check`: one right of each rule that they always need."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import yaml

from slicekeeper import names
from slicekeeper.cli.check.remedies import APPLY, Finding, component
from slicekeeper.config.settings import Settings
from slicekeeper.kube.client import ACCESS_REVIEWS, KubeClient
from slicekeeper.untyped_json import as_map

_RBAC: Final = "authorization.k8s.io"
_LEASES: Final = "coordination.k8s.io"
_ADMISSION: Final = "admissionregistration.k8s.io"


class Right(NamedTuple):
    """A verb on a resource, everywhere or in the installation's own namespace."""

    account: str
    verb: str
    resource: str
    group: str = ""
    name: str = ""
    at_home: bool = False

    def __str__(self) -> str:
        group = f".{self.group}" if self.group else ""
        return f"{self.account} may not {self.verb} {self.resource}{group}{f' {self.name}' if self.name else ''}"


ALWAYS: Final = (
    Right("webhook", "list", "priorityclasses", "scheduling.k8s.io"),
    Right("webhook", "list", "limitranges"),
    Right("webhook", "list", "gpubudgets", names.GROUP),
    Right("timekeeper", "patch", "pods"),
    Right("timekeeper", "list", "namespaces"),
    Right("timekeeper", "get", "leases", _LEASES),
    Right("timekeeper", "create", "events"),
    Right("timekeeper", "create", "tokenreviews", "authentication.k8s.io"),
    Right("timekeeper", "create", "subjectaccessreviews", _RBAC),
    Right("timekeeper", "delete", "configmaps", at_home=True),
    Right("scheduler", "create", "pods/eviction"),
    Right("scheduler", "list", "poddisruptionbudgets", "policy"),
    Right("scheduler", "create", "pods/binding"),
    Right("scheduler", "list", "pods"),
    Right("scheduler", "patch", "pods/status"),
    Right("scheduler", "create", "events"),
    Right("scheduler", "list", "nodes"),
    Right("scheduler", "update", "leases", _LEASES, "slicekeeper-binder", at_home=True),
    Right("nodeagent", "get", "nodes"),
    Right("nodeagent", "patch", "nodes/status"),
    Right("nodeagent", "list", "pods"),
    Right("nodeagent", "create", "events"),
    Right("certificates", "list", "namespaces"),
    Right("certificates", "create", "configmaps"),
    Right("certificates", "patch", "mutatingwebhookconfigurations", _ADMISSION, "slicekeeper"),
    Right("certificates", "patch", "apiservices", "apiregistration.k8s.io", names.API_SERVICE),
    Right("certificates", "update", "leases", _LEASES, "slicekeeper-certificates", at_home=True),
)


def lacking(client: KubeClient, namespace: str, settings: Settings, policy: str) -> Iterator[Finding]:
    """Yield rights that a part lacks; `policy` is the text of the installed policy file, which may ask for more."""
    for right in ALWAYS:
        if not _allowed(client, namespace, right):
            yield f"the {right}: its role or its binding is missing or was changed", APPLY
    policies = _policies(policy)
    needed = []
    if any(policy["budget"].get("enforcement") == "hard" for policy in policies):
        needed.append(("timekeeper", "create", "pods/eviction", "hardBudgets", "the policy has `enforcement: hard`"))
    if any(policy.get("audit") == "evict" for policy in policies):
        needed.append(("nodeagent", "create", "pods/eviction", "auditEvictions", "the policy has `audit: evict`"))
    if settings.timekeeper.weight == "quota":
        needed.append(("timekeeper", "list", "resourcequotas", "quotaWeight", "timekeeper.weight is quota"))
    for account, verb, resource, name, why in needed:
        right = Right(account, verb, resource)
        if not _allowed(client, namespace, right):
            yield f"{why}, and the {right}", component(name)


def _allowed(client: KubeClient, namespace: str, right: Right) -> bool:
    """Ask the API server whether a service account of ours has a right."""
    resource, _, subresource = right.resource.partition("/")
    attributes = {
        "verb": right.verb,
        "group": right.group,
        "resource": resource,
        "subresource": subresource,
        "name": right.name,
        "namespace": namespace if right.at_home else "",
    }
    review = {
        "apiVersion": f"{_RBAC}/v1",
        "kind": "SubjectAccessReview",
        "spec": {
            "user": f"system:serviceaccount:{namespace}:{right.account}",
            "groups": ["system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated"],
            "resourceAttributes": {key: value for key, value in attributes.items() if value},
        },
    }
    return bool(as_map(client.create(ACCESS_REVIEWS, review).get("status")).get("allowed"))


def _policies(text: str) -> list[dict[str, Any]]:
    """Return the entries of a policy file; the parts themselves report one that they cannot read."""
    try:
        tree = yaml.safe_load(text) or {}
        entries = [tree.get("default") or {}, *(tree.get("namespaces") or [])]
    except (yaml.YAMLError, AttributeError, TypeError, ValueError):
        return []
    return [{**entry, "budget": as_map(entry.get("budget"))} for entry in entries if isinstance(entry, dict)]
