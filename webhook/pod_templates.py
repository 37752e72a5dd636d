# SPDX-License-Identifier: Apache-2.0
"""The pod templates of workloads: where each kind has its own, and whether pods made from it would pass."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

from slicekeeper.errors import Violation
from slicekeeper.untyped_json import as_map
from webhook import (
    gang_templates,
    impossible_request,
    pod_rules,
    pod_warnings,
    relevant_pods,
    reserved_names,
    spent_budget,
)
from webhook.foreign.conversion import convert
from webhook.manifest import Manifest
from webhook.review_inputs import Case, ClusterContext
from webhook.verdict import Verdict

_TEMPLATE: Final = ("spec", "template")
PATHS: Final[dict[tuple[str, str], tuple[str, ...]]] = {
    ("", "ReplicationController"): _TEMPLATE,
    ("apps", "Deployment"): _TEMPLATE,
    ("apps", "StatefulSet"): _TEMPLATE,
    ("apps", "DaemonSet"): _TEMPLATE,
    ("apps", "ReplicaSet"): _TEMPLATE,
    ("batch", "Job"): _TEMPLATE,
    ("batch", "CronJob"): ("spec", "jobTemplate", "spec", "template"),
}
"""By API group and kind."""


def template_path(group: object, kind: object) -> tuple[str, ...] | None:
    """Return the path of a kind's pod template; None for a kind that creates no pods."""
    return PATHS.get((group, kind)) if isinstance(group, str) and isinstance(kind, str) else None


def template_of(workload: Mapping[str, Any], path: tuple[str, ...]) -> Mapping[str, Any]:
    """Return the template, empty if there is none."""
    node: Mapping[str, Any] = workload
    for part in path:
        node = as_map(node.get(part))
    return node


def validate(
    workload: Mapping[str, Any], template: Manifest, case: Case, prefix: str, cluster: ClusterContext
) -> Verdict:
    """Return whether pods made from a workload's template at `prefix` would pass."""
    found = list(reserved_names.forged(template.metadata, case))
    if not found and relevant_pods.forges_mirror(template.pod, case, cluster):
        found = [reserved_names.not_by_kubelet(template.metadata)]  # its pods are created by a controller
    if found:
        return Verdict(violations=_below(prefix, found))
    foreign = convert(template, case.policy, cluster.resources, cluster.webhook.scheduler_name)
    if foreign.violations:
        return Verdict(violations=_below(prefix, foreign.violations))
    if foreign.patch:
        verdict = validate(workload, template.patched(foreign.patch), case, prefix, cluster)
        return replace(verdict, warnings=[*foreign.warnings, *verdict.warnings])
    if not relevant_pods.is_relevant(template.pod, case, cluster):
        return Verdict()
    request, broken = pod_rules.check_pod(template, case, cluster)
    violations = [*_below(prefix, broken), *gang_templates.refusal(workload, request)]
    if case.policy.mode == "observe":
        observed = [f"observed, not refused: {violation}" for violation in violations]
        return Verdict(warnings=[*observed, *impossible_request.warnings(request, case.gpus)])
    if violations:
        return Verdict(violations=violations)
    if not request.holds_gpus:
        return Verdict()
    # The template itself is admitted: its pods may be created when there is budget again.
    later = [f"pods of this template will be refused: {refusal}" for refusal in spent_budget.refusal(case)]
    always = [*gang_templates.warnings(workload, request), *pod_warnings.of_pod(template.pod, request, case, cluster)]
    return Verdict(warnings=[*always, *(later or spent_budget.warnings(template.spec, request, case, cluster))])


def _below(prefix: str, violations: Iterable[Violation]) -> list[Violation]:
    return [replace(violation, field=f"{prefix}.{violation.field}") for violation in violations]
