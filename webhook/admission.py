# SPDX-License-Identifier: Apache-2.0
"""The webhook's rules as a pure function: (pod, namespace policy, budget's standing) → patch and warnings, or refusal.

Nothing here reads a file, a clock or the network: the same input gives the same answer, so a dry run, a second pass and
`slicekeeper review` give the answer of a real admission. `pod_rules` checks the user's manifest, `mutation` adds to it;
this module combines the two for each kind of review.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from slicekeeper.config.settings import Settings
from slicekeeper.errors import Violation
from slicekeeper.gpu.request import PodRequest
from slicekeeper.untyped_json import show
from slicekeeper.wire.json_patch import JsonPatch
from webhook import (
    applied_again,
    ephemeral_containers,
    impossible_request,
    mutation,
    pod_rules,
    pod_templates,
    pod_warnings,
    readmission,
    relevant_pods,
    reserved_names,
    spent_budget,
)
from webhook.foreign.conversion import convert
from webhook.json_patch import value_at
from webhook.limit_range_watch import LimitRanges
from webhook.manifest import Manifest
from webhook.priority_class_watch import PriorityClasses
from webhook.review_inputs import Case, ClusterContext
from webhook.sidecar_injection import without_gpu
from webhook.verdict import Verdict

_IN_THE_WAY: Final = ("container-name-invalid", "reserved-container", "reserved-volume")
"""Rules whose violation conflicts with our own patch. In mode `observe`, pods that break any other rule are metered."""

_CHECKED_BY_API_SERVER: Final = ("/spec/priority", "/spec/preemptionPolicy")


class Admission:
    """Reviews pods and pod templates; immutable, shared by all threads."""

    def __init__(
        self, settings: Settings, classes: PriorityClasses | None = None, limit_ranges: LimitRanges | None = None
    ) -> None:
        classes, limit_ranges = classes or PriorityClasses(settings.classes), limit_ranges or LimitRanges()
        self._cluster = ClusterContext(settings, classes, limit_ranges)

    def mutate(self, sent: Mapping[str, Any], case: Case, *, by_kubelet: bool = True) -> Verdict:
        """Return the patch that makes a new pod conform to its namespace's policy, or the refusal."""
        pod = Manifest(sent)
        if not by_kubelet and reserved_names.is_mirror(pod.metadata):
            return Verdict(violations=[reserved_names.not_by_kubelet(pod.metadata)])
        if case.policy.mode == "off" or reserved_names.is_mirror(pod.metadata):
            return self._mutate_converted(pod, case)
        resources = self._cluster.resources
        ours = pod.spec.names_any((resources.core, resources.memory))
        may_name_node = case.policy.mode == "observe" or pod_rules.may_name_node(case, self._cluster, ours=ours)
        former = readmission.without_former_place(pod.pod, may_name_node=may_name_node)
        first = [*former, *without_gpu(pod.spec, resources)]
        pod = pod.patched(first)
        foreign = convert(pod, case.policy, resources, self._cluster.webhook.scheduler_name)
        if foreign.violations:
            return Verdict(violations=foreign.violations)
        first += foreign.patch
        verdict = self._mutate_converted(pod.patched(foreign.patch), case)
        if not first:
            return verdict
        warnings = [*((readmission.WARNING,) if former else ()), *foreign.warnings, *verdict.warnings]
        return replace(verdict, patch=[*first, *verdict.patch], warnings=warnings)

    def _mutate_converted(self, pod: Manifest, case: Case) -> Verdict:
        """Return the verdict on a pod whose request is in our own resources."""
        if found := list(reserved_names.forged(pod.metadata, case)):
            return Verdict(violations=found)
        if not relevant_pods.is_relevant(pod.pod, case, self._cluster):
            return Verdict()
        request, violations = pod_rules.check_pod(pod, case, self._cluster)
        violations += pod_rules.gang_of_nobody(pod.metadata, request)
        if case.policy.mode == "observe":
            patch = []
            if request.holds_gpus and not any(violation.code in _IN_THE_WAY for violation in violations):
                patch = mutation.patch_pod(pod, request, case, self._cluster)
            observed = [f"observed, not refused: {violation}" for violation in violations]
            return Verdict(patch, [*observed, *impossible_request.warnings(request, case.gpus)])
        if violations:
            return Verdict(violations=violations)
        if not request.holds_gpus:
            return Verdict()
        if spent := spent_budget.refusal(case):
            return Verdict(violations=spent)
        warnings = [
            *pod_warnings.of_pod(pod.pod, request, case, self._cluster),
            *spent_budget.warnings(pod.spec, request, case, self._cluster),
        ]
        return Verdict(mutation.patch_pod(pod, request, case, self._cluster), warnings)

    def validate(self, sent: Mapping[str, Any], case: Case, *, by_kubelet: bool = True) -> Verdict:
        """Return whether a new pod is as `mutate` would make it, in the budget's state or, after a flip, the other."""
        pod = Manifest(sent)
        if not by_kubelet and reserved_names.is_mirror(pod.metadata):
            return Verdict(violations=[reserved_names.not_by_kubelet(pod.metadata)])
        if found := list(reserved_names.forged(pod.metadata, case)):
            return Verdict(violations=found)
        foreign = convert(pod, case.policy, self._cluster.resources, self._cluster.webhook.scheduler_name)
        if foreign.violations:
            return Verdict(violations=foreign.violations)
        if foreign.patch:
            return _not_as_admitted(sent, foreign.patch[0])
        if case.policy.mode == "observe" or not relevant_pods.is_relevant(pod.pod, case, self._cluster):
            return Verdict()
        request, violations = pod_rules.check_pod(pod, case, self._cluster)
        standing = case.standing
        if not violations and request.holds_gpus and standing.settled:
            violations = spent_budget.refusal(case)
        if violations:
            return Verdict(violations=violations)
        missing = self._missing(pod, request, case) if request.holds_gpus else []
        if missing and not standing.settled:
            other = replace(case, standing=replace(standing, over_budget=not standing.over_budget))
            missing = missing if self._missing(pod, request, other) else []
        return _not_as_admitted(sent, missing[0]) if missing else Verdict()

    def validate_template(
        self, workload: Mapping[str, Any], template: Mapping[str, Any], case: Case, prefix: str
    ) -> Verdict:
        """Return whether pods made from a workload's template at `prefix` would pass."""
        return pod_templates.validate(workload, Manifest(template), case, prefix, self._cluster)

    def forges_mirror(self, pod: Mapping[str, Any], case: Case) -> bool:
        """Whether a GPU pod, or a template of one, says that it mirrors a static pod, as only a kubelet's pods do."""
        return relevant_pods.forges_mirror(Manifest(pod).pod, case, self._cluster)

    def mutate_update(self, pod: Mapping[str, Any], old: Mapping[str, Any], case: Case) -> Verdict:
        """Return the patch that keeps what a pod got at its admission when its manifest is applied again."""
        return applied_again.keep(Manifest(pod), Manifest(old), case, self._cluster)

    def mutate_ephemeral(self, pod: Mapping[str, Any], old: Mapping[str, Any], case: Case) -> Verdict:
        """Return the patch for ephemeral containers that were added to a running pod; /validate checks them."""
        return Verdict(ephemeral_containers.missing(Manifest(pod), Manifest(old).spec, case, self._cluster))

    def validate_ephemeral(self, pod: Mapping[str, Any], old: Mapping[str, Any], case: Case) -> Verdict:
        """Return whether the ephemeral containers that were added to a running pod pass."""
        return Verdict(
            violations=list(ephemeral_containers.check(Manifest(pod), Manifest(old).spec, case, self._cluster))
        )

    def _missing(self, pod: Manifest, request: PodRequest, case: Case) -> JsonPatch:
        """Return what `mutate` would still write. The API server itself compares the class's numbers with its name."""
        patch = mutation.patch_pod(pod, request, case, self._cluster)
        return [operation for operation in patch if operation["path"] not in _CHECKED_BY_API_SERVER]


def _not_as_admitted(pod: Mapping[str, Any], operation: dict[str, Any]) -> Verdict:
    """Return the refusal of a pod that lacks a change of ours."""
    found, path = value_at(pod, operation["path"])
    violation = Violation(
        code="not-as-admitted",
        field=path,
        value=show(found),
        rule="a GPU pod must be as the mutating webhook makes it; it was bypassed, or another webhook undid its "
        "changes",
        example=f"{path}: {show(operation['value'])}" if "value" in operation else f"no {path}",
    )
    return Verdict(violations=[violation])
