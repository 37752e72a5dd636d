# SPDX-License-Identifier: Apache-2.0
"""The webhook's rules as a pure function: (pod, namespace policy, budget's standing) → patch and warnings, or refusal.

Nothing here reads a file, a clock or the network: the same input gives the same answer, so a dry run, a second pass and
`slicekeeper review` give the answer of a real admission. `validation` checks the user's manifest, `mutation` adds what
is missing; this module combines the two for each kind of review.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final

from slicekeeper.config.settings import Settings
from slicekeeper.errors import Violation
from slicekeeper.gpu.pod_manifest import asks_for
from slicekeeper.gpu.request import PodRequest
from slicekeeper.untyped import show
from slicekeeper.wire.json_patch import JsonPatch
from webhook import mutation, pod_fields, readmission, reserved_names, validation
from webhook.foreign.conversion import NOTHING, Conversion, convert
from webhook.patch import apply, value_at
from webhook.pod_shape import malformed
from webhook.review_inputs import Case, ClassSource, ClusterContext
from webhook.sidecar_container import without_gpu
from webhook.warnings import WHEN_LAST_KNOWN, cut, warnings_of

_STATUS: Final = {
    "budget-unknown": 503,
    "priority-class-unknown": 503,
    **dict.fromkeys(
        (
            "budget-exhausted",
            "capability",
            "device-mount",
            "device-refused",
            "env-from",
            "host-ipc",
            "host-path",
            "host-pid",
            "node-name",
            "not-as-admitted",
            "priority-class-not-allowed",
            "privileged",
            "proc-mount",
            "reserved-annotation",
            "reserved-container",
            "reserved-env",
            "reserved-finalizer",
            "reserved-gate",
            "reserved-label",
            "reserved-resource",
            "reserved-volume",
            "scheduler-name",
            "sharing-not-allowed",
        ),
        403,
    ),
}
"""Refusals by a rule of the cluster are 403, by a temporary state 503, all others (the manifest is wrong) 422."""

_IN_THE_WAY: Final = ("reserved-container", "reserved-volume")
"""Rules whose violation conflicts with our own patch. In mode `observe`, pods that break any other rule are metered."""

_CHECKED_BY_API_SERVER: Final = ("/spec/priority", "/spec/preemptionPolicy")


@dataclass(frozen=True)
class Verdict:
    """The result of a review: a patch and warnings, or violations."""

    patch: JsonPatch = field(default_factory=list)
    warnings: tuple[str, ...] = ()
    violations: tuple[Violation, ...] = ()

    @property
    def allowed(self) -> bool:
        """Whether the object passes."""
        return not self.violations

    @property
    def status(self) -> int:
        """HTTP-like status of a refusal: the first violation's."""
        return _STATUS.get(self.violations[0].code, 422) if self.violations else 200


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
        may_name_node = case.policy.mode == "observe" or pod_fields.may_name_node(case, self._cluster, ours=ours)
        former = readmission.taken_off(pod, may_name_node=may_name_node)
        foreign = self._converted(pod, case)
        if foreign.violations:
            return Verdict(violations=foreign.violations)
        first = [*former, *without_gpu(pod, resources), *foreign.patch]
        if not first:
            return self._mutate(pod, case)
        verdict = self._mutate(apply(dict(pod), first), case)
        warnings = (*((readmission.WARNING,) if former else ()), *map(cut, foreign.warnings))
        return replace(verdict, patch=[*first, *verdict.patch], warnings=(*warnings, *verdict.warnings))

    def _mutate(self, pod: Mapping[str, Any], case: Case) -> Verdict:
        """Return the verdict on a pod whose request is in our own resources."""
        if found := _forged(pod, case):
            return Verdict(violations=found)
        if self._untouched(pod, case):
            return Verdict()
        request, violations = validation.check_pod(pod, case, self._cluster)
        if request is not None:
            violations += validation.gang_of_nobody(pod, request)
        if case.policy.mode == "observe":
            warnings = tuple(cut(f"observed, not refused: {violation}") for violation in violations)
            usable = not any(v.code in _IN_THE_WAY for v in violations)
            if request is None or not usable or not _holds_gpus(request):
                return Verdict(warnings=warnings)
            return Verdict(mutation.patch_pod(pod, request, case, self._cluster), warnings)
        if not violations and request is not None:
            violations = _refused_by_budget(case)
        if violations or request is None:
            return Verdict(violations=tuple(violations))
        if not _holds_gpus(request):
            return Verdict()
        patch = mutation.patch_pod(pod, request, case, self._cluster)
        return Verdict(patch, warnings_of(pod, request, case, self._cluster))

    def validate(self, pod: Mapping[str, Any], case: Case) -> Verdict:
        """Return whether a new pod is as `mutate` would make it, in the budget's state or, after a flip, the other."""
        if found := _forged(pod, case):
            return Verdict(violations=found)
        foreign = self._converted(pod, case)
        if foreign.violations or foreign.patch:
            bypassed = tuple(_not_as_admitted(pod, operation) for operation in foreign.patch[:1])
            return Verdict(violations=foreign.violations or bypassed)
        if self._untouched(pod, case) or case.policy.mode == "observe":
            return Verdict()
        request, violations = validation.check_pod(pod, case, self._cluster)
        if not violations and case.standing.settled:
            violations = _refused_by_budget(case)
        if violations or request is None:
            return Verdict(violations=tuple(violations))
        if not _holds_gpus(request):
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
        found = _forged(template, case)
        if not found and self.forges_mirror(template, case):
            found = (reserved_names.not_by_kubelet(template),)  # its pods are created by a controller
        if found:
            return Verdict(violations=tuple(replace(v, field=f"{prefix}.{v.field}") for v in found))
        foreign = self._converted(template, case)
        if foreign.violations:
            return Verdict(violations=tuple(replace(v, field=f"{prefix}.{v.field}") for v in foreign.violations))
        if foreign.patch:
            verdict = self.validate_template(apply(dict(template), foreign.patch), case, prefix)
            return replace(verdict, warnings=(*map(cut, foreign.warnings), *verdict.warnings))
        if self._untouched(template, case):
            return Verdict()
        request, violations = validation.check_pod(template, case, self._cluster)
        violations = [replace(violation, field=f"{prefix}.{violation.field}") for violation in violations]
        if case.policy.mode == "observe":
            return Verdict(warnings=tuple(cut(f"observed, not refused: {violation}") for violation in violations))
        if violations or request is None:
            return Verdict(violations=tuple(violations))
        if not _holds_gpus(request):
            return Verdict()
        # The template itself is admitted: its pods may be created when there is budget again.
        later = tuple(cut(f"pods of this template will be refused: {refusal}") for refusal in _refused_by_budget(case))
        return Verdict(warnings=later or warnings_of(template, request, case, self._cluster))

    def forges_mirror(self, pod: Mapping[str, Any], case: Case) -> bool:
        """Whether a GPU pod, or a template of one, says that it mirrors a static pod, as only a kubelet's pods do."""
        return reserved_names.is_mirror(pod) and validation.concerns(pod, case, self._cluster)

    def mutate_ephemeral(self, pod: Mapping[str, Any], old: Mapping[str, Any], case: Case) -> Verdict:
        """Return the patch for ephemeral containers that were added to a running pod; /validate checks them."""
        if case.policy.mode != "enforce" or any(malformed(pod)) or not validation.is_gpu_pod(pod, case, self._cluster):
            return Verdict()
        return Verdict(mutation.patch_ephemeral(pod, old, self._cluster))

    def validate_ephemeral(self, pod: Mapping[str, Any], old: Mapping[str, Any], case: Case) -> Verdict:
        """Return whether the ephemeral containers that were added to a running pod pass."""
        if case.policy.mode != "enforce":
            return Verdict()
        return Verdict(violations=tuple(validation.check_ephemeral(pod, old, case, self._cluster)))

    def _converted(self, pod: Mapping[str, Any], case: Case) -> Conversion:
        """Return the conversion of a foreign request; only in mode `enforce`, because the pod changes."""
        if not case.policy.foreign.dialects or case.policy.mode != "enforce" or any(malformed(pod)):
            return NOTHING
        return convert(pod, case.policy, self._cluster.resources, self._cluster.webhook.scheduler_name)

    def _untouched(self, pod: Mapping[str, Any], case: Case) -> bool:
        """Whether a pod is none of our business: no rule applies to it, and nothing is written on it."""
        return (
            case.policy.mode == "off"
            or reserved_names.is_mirror(pod)
            or not validation.concerns(pod, case, self._cluster)
        )

    def _missing(self, pod: Mapping[str, Any], request: PodRequest, case: Case) -> JsonPatch:
        """Return what `mutate` would still write. The API server itself compares the class's numbers with its name."""
        patch = mutation.patch_pod(pod, request, case, self._cluster)
        return [operation for operation in patch if operation["path"] not in _CHECKED_BY_API_SERVER]


def _forged(pod: Mapping[str, Any], case: Case) -> tuple[Violation, ...]:
    """Return violations that are refused in every namespace; in mode `enforce` they are among the rules."""
    return () if case.policy.mode == "enforce" else tuple(reserved_names.forged(pod))


def _holds_gpus(request: PodRequest) -> bool:
    return bool(request.requests or request.whole_device_gpus)


def _refused_by_budget(case: Case) -> list[Violation]:
    """Return the reason for which the budget does not admit the pod; empty if it does."""
    standing = case.standing
    if standing.unknown and case.policy.stale == "deny":
        return [
            Violation(
                code="budget-unknown",
                field="metadata.namespace",
                value=show(case.namespace),
                rule="the namespace's budget is currently unknown, and its policy admits no GPU pods until it is known",
                example="the same manifest, once the timekeeper answers again",
            )
        ]
    if standing.hard and standing.over_budget:
        return [
            Violation(
                code="budget-exhausted",
                field="metadata.namespace",
                value=show(case.namespace),
                rule="the namespace has no GPU budget left, and its budget is enforced hard"
                + (f" ({standing.reason})" if standing.reason else "")
                + (WHEN_LAST_KNOWN if standing.stale else ""),
                example="the same manifest, after a grant or in the next period",
            )
        ]
    return []


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
