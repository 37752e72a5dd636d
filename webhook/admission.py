# SPDX-License-Identifier: Apache-2.0
"""The webhook's rules as a pure function: (pod, namespace policy, budget's standing) → patch and warnings, or refusal.

Nothing here reads a file, a clock or the network: the same input gives the same answer, so a dry run, a second pass and
`slicekeeper review` give the answer of a real admission. `validation` checks the user's manifest, `mutation` adds what
is missing; this module combines the two for each kind of review.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from slicekeeper.config.settings import Settings
from slicekeeper.errors import Violation
from slicekeeper.gpu.pod_manifest import asks_for
from slicekeeper.gpu.request import PodRequest
from slicekeeper.untyped_json import show
from slicekeeper.wire.json_patch import JsonPatch
from webhook import (
    concerned_pods,
    ephemeral_containers,
    mutation,
    pod_templates,
    readmission,
    reserved_names,
    validation,
)
from webhook.budget_refusal import refused_by_budget
from webhook.foreign.conversion import convert
from webhook.patch import apply, value_at
from webhook.review_inputs import Case, ClassSource, ClusterContext
from webhook.sidecar_injection import without_gpu
from webhook.verdict import Verdict
from webhook.warnings import cut, warnings_of

_IN_THE_WAY: Final = ("reserved-container", "reserved-volume")
"""Rules whose violation conflicts with our own patch. In mode `observe`, pods that break any other rule are metered."""

_CHECKED_BY_API_SERVER: Final = ("/spec/priority", "/spec/preemptionPolicy")


class Admission:
    """Reviews pods and pod templates; immutable, shared by all threads."""

    def __init__(self, settings: Settings, classes: ClassSource) -> None:
        self._cluster = ClusterContext(settings, classes)

    def mutate(self, pod: Mapping[str, Any], case: Case) -> Verdict:
        """Return the patch that makes a new pod conform to its namespace's policy, or the refusal."""
        if case.policy.mode == "off" or reserved_names.is_mirror(pod):
            return self._mutate(pod, case)
        resources = self._cluster.resources
        ours = asks_for(pod, (resources.core, resources.memory))
        may_name_node = case.policy.mode == "observe" or validation.may_name_node(case, self._cluster, ours=ours)
        former = readmission.taken_off(pod, may_name_node=may_name_node)
        first = [*former, *without_gpu(pod, resources)]
        if first:
            pod = apply(pod, first)
        foreign = convert(pod, case.policy, resources, self._cluster.webhook.scheduler_name)
        if foreign.violations:
            return Verdict(violations=foreign.violations)
        if foreign.patch:
            pod = apply(pod, foreign.patch)
            first += foreign.patch
        verdict = self._mutate(pod, case)
        warnings = (*((readmission.WARNING,) if former else ()), *map(cut, foreign.warnings))
        return replace(verdict, patch=[*first, *verdict.patch], warnings=(*warnings, *verdict.warnings))

    def _mutate(self, pod: Mapping[str, Any], case: Case) -> Verdict:
        """Return the verdict on a pod whose request is in our own resources."""
        if found := tuple(reserved_names.forged(pod, case)):
            return Verdict(violations=found)
        if concerned_pods.is_untouched(pod, case, self._cluster):
            return Verdict()
        request, violations = validation.check_pod(pod, case, self._cluster)
        if request is not None:
            violations += validation.gang_of_nobody(pod, request)
        if case.policy.mode == "observe":
            warnings = tuple(cut(f"observed, not refused: {violation}") for violation in violations)
            usable = not any(v.code in _IN_THE_WAY for v in violations)
            if request is None or not usable or not request.holds_gpus:
                return Verdict(warnings=warnings)
            return Verdict(mutation.patch_pod(pod, request, case, self._cluster), warnings)
        if not violations and request is not None:
            violations = refused_by_budget(case)
        if violations or request is None:
            return Verdict(violations=tuple(violations))
        if not request.holds_gpus:
            return Verdict()
        patch = mutation.patch_pod(pod, request, case, self._cluster)
        return Verdict(patch, warnings_of(pod, request, case, self._cluster))

    def validate(self, pod: Mapping[str, Any], case: Case) -> Verdict:
        """Return whether a new pod is as `mutate` would make it, in the budget's state or, after a flip, the other."""
        if found := tuple(reserved_names.forged(pod, case)):
            return Verdict(violations=found)
        foreign = convert(pod, case.policy, self._cluster.resources, self._cluster.webhook.scheduler_name)
        if foreign.violations or foreign.patch:
            bypassed = tuple(_not_as_admitted(pod, operation) for operation in foreign.patch[:1])
            return Verdict(violations=foreign.violations or bypassed)
        if concerned_pods.is_untouched(pod, case, self._cluster) or case.policy.mode == "observe":
            return Verdict()
        request, violations = validation.check_pod(pod, case, self._cluster)
        if not violations and case.standing.settled:
            violations = refused_by_budget(case)
        if violations or request is None:
            return Verdict(violations=tuple(violations))
        if not request.holds_gpus:
            return Verdict()
        standing = case.standing
        missing = self._missing(pod, request, case)
        if missing and not standing.settled:
            other = replace(case, standing=replace(standing, over_budget=not standing.over_budget))
            if not self._missing(pod, request, other):
                return Verdict()
        return Verdict(violations=tuple(_not_as_admitted(pod, operation) for operation in missing[:1]))

    def validate_template(self, template: Mapping[str, Any], case: Case, prefix: str) -> Verdict:
        """Return whether pods made from a workload's template at `prefix` would pass."""
        return pod_templates.validate(template, case, prefix, self._cluster)

    def forges_mirror(self, pod: Mapping[str, Any], case: Case) -> bool:
        """Whether a GPU pod, or a template of one, says that it mirrors a static pod, as only a kubelet's pods do."""
        return concerned_pods.forges_mirror(pod, case, self._cluster)

    def mutate_ephemeral(self, pod: Mapping[str, Any], old: Mapping[str, Any], case: Case) -> Verdict:
        """Return the patch for ephemeral containers that were added to a running pod; /validate checks them."""
        return Verdict(ephemeral_containers.missing(pod, old, case, self._cluster))

    def validate_ephemeral(self, pod: Mapping[str, Any], old: Mapping[str, Any], case: Case) -> Verdict:
        """Return whether the ephemeral containers that were added to a running pod pass."""
        return Verdict(violations=tuple(ephemeral_containers.check(pod, old, case, self._cluster)))

    def _missing(self, pod: Mapping[str, Any], request: PodRequest, case: Case) -> JsonPatch:
        """Return what `mutate` would still write. The API server itself compares the class's numbers with its name."""
        patch = mutation.patch_pod(pod, request, case, self._cluster)
        return [operation for operation in patch if operation["path"] not in _CHECKED_BY_API_SERVER]


def _not_as_admitted(pod: Mapping[str, Any], operation: dict[str, Any]) -> Violation:
    found, path = value_at(pod, operation["path"])
    return Violation(
        code="not-as-admitted",
        field=path,
        value=show(found),
        rule="a GPU pod must be as the mutating webhook makes it; it was bypassed, or another webhook undid its "
        "changes",
        example=f"{path}: {show(operation['value'])}" if "value" in operation else f"no {path}",
    )
