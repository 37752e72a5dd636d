# SPDX-License-Identifier: Apache-2.0
"""What other parts believe of a pod nobody can bring along, in whatever namespace and under whatever name."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import orjson
import pytest
from support.json_patch import apply

from slicekeeper import names
from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.config.settings import Settings
from webhook.admission import Admission
from webhook.admission_review import Reviewer
from webhook.review_inputs import Case

SETTINGS = Settings()
ADMISSION = Admission(SETTINGS)
SHARE = {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 15}
FORGED = [
    {names.gpu_annotation("a"): "GPU-of-somebody-else"},
    {names.BOUND_AT: "2001-01-01T00:00:00.000Z"},
    {names.ADOPTED_AT: "2001-01-01T00:00:00.000Z"},
    {names.SHARING_MODE: "exclusive"},
]
MIRROR = {"kubernetes.io/config.mirror": "4f1"}


def pod(annotations: dict[str, str], limits: dict[str, int]) -> dict[str, Any]:
    labels = {names.MANAGED_LABEL: names.MANAGED_VALUE}
    return {
        "metadata": {"labels": labels, "annotations": annotations},
        "spec": {"nodeName": "node-1", "containers": [{"name": "a", "resources": {"limits": limits}}]},
    }


def told(endpoint: str, kind: str, obj: dict[str, Any], mode: str, groups: list[str]) -> str:
    """Return the refusal's message, empty if the review is allowed."""
    policy = NamespacePolicy(mode=mode)  # type: ignore[arg-type]
    request = {
        "uid": "u",
        "kind": {"group": "apps" if kind == "Deployment" else "", "version": "v1", "kind": kind},
        "operation": "CREATE",
        "namespace": "team",
        "object": obj,
        "userInfo": {"username": "x", "groups": groups},
    }
    body = orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    reviewer = Reviewer(ADMISSION, lambda namespace: Case(namespace, policy))
    response = orjson.loads(getattr(reviewer, endpoint)(body).body)["response"]
    return "" if response["allowed"] else str(response["status"]["message"])


@pytest.mark.parametrize("mode", ["enforce", "observe", "off"])
@pytest.mark.parametrize("limits", [SHARE, {}])
@pytest.mark.parametrize("annotations", FORGED)
def test_no_new_pod_brings_what_the_scheduler_writes(
    annotations: dict[str, str], limits: dict[str, int], mode: str
) -> None:
    if limits == {} and names.ADOPTED_AT in annotations:
        annotations = {**annotations, **FORGED[0]}
    for endpoint in ("mutate", "validate"):
        assert "is reserved" in told(endpoint, "Pod", pod(annotations, limits), mode, ["system:authenticated"])
    template = {"spec": {"template": pod(annotations, limits)}}
    assert "spec.template.metadata.annotations" in told("validate", "Deployment", template, mode, [])


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_what_harms_nobody_else_passes_where_nothing_is_enforced(mode: str) -> None:
    for endpoint in ("mutate", "validate"):
        assert told(endpoint, "Pod", pod({names.BUDGET_STATE: "mine"}, SHARE), mode, []) == ""


def test_only_a_kubelet_makes_mirrors_of_its_static_pods() -> None:
    mirror = pod(MIRROR, {"tencent.com/vcuda-core": 400})
    for endpoint in ("mutate", "validate"):
        refusal = told(endpoint, "Pod", mirror, "enforce", ["system:authenticated"])
        assert "only a kubelet creates mirrors" in refusal
        assert told(endpoint, "Pod", mirror, "enforce", ["system:nodes", "system:authenticated"]) == ""


def test_a_node_that_a_pod_of_nvidias_devices_names_is_its_own() -> None:
    """As NVIDIA's operator names it, in a second pass too; in a manifest read back it is the last pod's."""
    case = Case("team", NamespacePolicy())
    asked = {
        "metadata": {},
        "spec": {"nodeName": "node-1", "containers": [{"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]},
    }
    admitted = apply(asked, ADMISSION.mutate(asked, case).patch)
    assert admitted["spec"]["nodeName"] == "node-1"
    assert ADMISSION.mutate(admitted, case).patch == []
    assert ADMISSION.validate(admitted, case).allowed
    read_back = {**admitted, "status": {"phase": "Running"}}
    assert "nodeName" not in apply(read_back, ADMISSION.mutate(read_back, case).patch)["spec"]
    safe = Case("team", NamespacePolicy(budget=BudgetPolicy(enforcement="safe")))
    assert "node-name" in [violation.code for violation in ADMISSION.mutate(asked, safe).violations]


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_a_pod_read_back_from_the_cluster_is_placed_anew(mode: str) -> None:
    """As by `kubectl replace --force`, which has deleted the pod when it creates it."""
    case = Case("team", NamespacePolicy(mode=mode))  # type: ignore[arg-type]
    asked = {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": SHARE}}]}}
    admitted = apply(asked, ADMISSION.mutate(asked, case).patch)
    bound = deepcopy(admitted)
    for forged in FORGED:
        bound["metadata"].setdefault("annotations", {}).update(forged)
    bound["spec"]["nodeName"] = "node-1"
    without_finalizer = {**bound, "metadata": {**bound["metadata"], "finalizers": []}}  # `kubectl debug --copy-to`
    for read_back in (bound, without_finalizer):
        verdict = ADMISSION.mutate(read_back, case)
        assert "gets a new node and new GPUs" in verdict.warnings[0]
        anew = apply(read_back, verdict.patch)
        assert (anew["spec"], anew["metadata"]["labels"]) == (admitted["spec"], admitted["metadata"]["labels"])
        assert anew["metadata"].get("annotations", {}) == admitted["metadata"].get("annotations", {})
        assert ADMISSION.mutate(anew, case).patch == []
        assert ADMISSION.validate(anew, case).allowed
    assert not ADMISSION.validate(bound, case).allowed, "where the first webhook was away"
    by_us = {**admitted, "spec": {**admitted["spec"], "nodeName": "node-1"}}
    told = ADMISSION.mutate(by_us, case).patch
    assert bool(told) == (mode == "enforce"), "a node that a user may name stays in a second pass"
