# SPDX-License-Identifier: Apache-2.0
"""A workload whose gang can never be complete is refused; one that waits for something gets a warning."""

from __future__ import annotations

from typing import Any

import pytest

from slicekeeper import names
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Settings
from webhook.admission import Admission
from webhook.pod_templates import template_of, template_path
from webhook.review_inputs import Case
from webhook.verdict import Verdict

LIMITS = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "8"}
GROUPS = {"Job": "batch", "CronJob": "batch", "ReplicationController": ""}


def review(kind: str, spec: dict[str, Any], size: int = 4, gang: str = "", mode: str = "enforce") -> Verdict:
    annotations = {names.GANG_SIZE: str(size), **({names.GANG: gang} if gang else {})}
    containers = [{"name": "a", "image": "i", "resources": {"limits": LIMITS}}]
    template = {"metadata": {"annotations": annotations}, "spec": {"containers": containers}}
    below = {**spec, "template": template}
    workload = {"kind": kind, "spec": {"jobTemplate": {"spec": below}} if kind == "CronJob" else below}
    path = template_path(GROUPS.get(kind, "apps"), kind)
    assert path is not None
    case = Case("team", NamespacePolicy(mode=mode))  # type: ignore[arg-type]
    return Admission(Settings()).validate_template(workload, template_of(workload, path), case, ".".join(path))


@pytest.mark.parametrize(
    ("kind", "spec", "field"),
    [
        ("Job", {}, "spec.parallelism"),
        ("Job", {"parallelism": 3}, "spec.parallelism"),
        ("Job", {"parallelism": 3, "completions": 9}, "spec.parallelism"),
        ("Job", {"parallelism": 9, "completions": 3}, "spec.completions"),
        ("Job", {"completions": 4}, "spec.parallelism"),
        ("CronJob", {"parallelism": 3}, "spec.jobTemplate.spec.parallelism"),
        ("StatefulSet", {"replicas": 4}, "spec.podManagementPolicy"),
        ("StatefulSet", {"replicas": 4, "podManagementPolicy": "OrderedReady"}, "spec.podManagementPolicy"),
    ],
)
def test_a_gang_that_can_never_be_complete_is_refused(kind: str, spec: dict[str, Any], field: str) -> None:
    [found] = review(kind, spec).violations
    assert (found.code, found.field) == ("gang-never-complete", field)
    observed = review(kind, spec, mode="observe")
    assert observed.allowed
    assert "gang" in observed.warnings[0] or "wait together" in observed.warnings[0]


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        ("Job", {"parallelism": 4}),
        ("Job", {"parallelism": 4, "completions": 4}),
        ("Job", {"parallelism": 8, "completions": 100}),
        ("Job", {"parallelism": 0}),
        ("CronJob", {"parallelism": 4}),
        ("StatefulSet", {"replicas": 4, "podManagementPolicy": "Parallel"}),
        ("Deployment", {"replicas": 4}),
        ("Deployment", {"replicas": 0}),
        ("ReplicationController", {"replicas": 5}),
        ("DaemonSet", {}),
    ],
)
def test_a_gang_that_can_be_complete_passes_without_a_word(kind: str, spec: dict[str, Any]) -> None:
    found = review(kind, spec)
    assert (found.violations, found.warnings) == ((), [])


@pytest.mark.parametrize("kind", ["Deployment", "ReplicaSet", "ReplicationController", "StatefulSet"])
@pytest.mark.parametrize("spec", [{}, {"replicas": 3}])
def test_fewer_replicas_than_the_gang_needs_get_a_warning(kind: str, spec: dict[str, Any]) -> None:
    [told] = review(kind, {"podManagementPolicy": "Parallel", **spec}).warnings
    assert "no pod starts until there are 4 replicas" in told


def test_a_named_gang_may_have_pods_of_other_workloads() -> None:
    assert review("Job", {"parallelism": 1}, gang="bert").warnings == []
    assert review("Deployment", {"replicas": 1}, gang="bert").warnings == []
    ordered = review("StatefulSet", {"replicas": 4}, gang="bert")
    assert ordered.allowed
    assert "only one of its pods waits for the gang bert of 4 at a time" in ordered.warnings[0]


@pytest.mark.parametrize("spec", [{"parallelism": "4"}, {"parallelism": [1]}, {"parallelism": 4, "completions": "x"}])
def test_what_the_api_server_refuses_anyhow_is_no_error_here(spec: dict[str, Any]) -> None:
    assert review("Job", spec).allowed
