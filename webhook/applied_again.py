# SPDX-License-Identifier: Apache-2.0
"""A manifest that is applied again to a pod: keep what admission wrote in place of the user's own values.

Kubernetes refuses to change a pod's scheduler, class or resources, and `kubectl apply` compares the file with the pod:
a file that names `default-scheduler` could never be applied a second time. So the API server sends us the updates that
change these fields, all of which it would otherwise refuse, and no others.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from slicekeeper.config.foreign_dialects import DIALECTS
from slicekeeper.kube.objects import PodSpec
from slicekeeper.untyped_json import show
from slicekeeper.wire.json_patch import escape
from webhook import pod_priority
from webhook.json_patch import PatchBuilder
from webhook.manifest import Manifest
from webhook.mutation import DEFAULT_SCHEDULER
from webhook.review_inputs import Case, ClusterContext
from webhook.verdict import Verdict

_NUMBERS: Final = ("priority", "preemptionPolicy")
_CLASS_FIELDS: Final = ("priorityClassName", *_NUMBERS)


def keep(pod: Manifest, old: Manifest, case: Case, cluster: ClusterContext) -> Verdict:
    """Return the patch that restores what `mutation` once replaced; another change is left to the API server."""
    if pod.malformed or old.malformed:
        return Verdict()
    patch, warnings = PatchBuilder(), []
    sent, before = pod.sent.get("spec") or {}, old.sent.get("spec") or {}
    scheduler, chosen = pod.spec.scheduler_name, old.spec.scheduler_name
    spoken = [DIALECTS[name] for name in case.policy.foreign.dialects]
    replaced = ("", DEFAULT_SCHEDULER, *(name for dialect in spoken for name in dialect.schedulers))
    if scheduler != chosen and scheduler in replaced and chosen in cluster.schedulers:
        patch.member(sent, "/spec", "schedulerName", chosen)
        warnings.append(_warning("schedulerName", sent.get("schedulerName"), chosen))
    name, kept = pod.spec.priority_class_name, old.spec.priority_class_name
    if name != kept and pod_priority.may_be_replaced(name, case, cluster):
        for field in _CLASS_FIELDS:
            if field in before:
                patch.member(sent, "/spec", field, before[field])
        warnings.append(_warning("priorityClassName", name, kept))
    elif name == kept:
        numbers = pod_priority.numbers_without_class(cluster)
        for field in _NUMBERS:
            if field in before and sent.get(field) == numbers[field] != before[field]:
                patch.replace(f"/spec/{field}", before[field])
                warnings.append(_warning(field, sent[field], before[field]))
    _without_converted(patch, pod.spec, old.spec, {name for dialect in spoken for name in dialect.resources})
    return Verdict(patch.operations, warnings)


def _without_converted(patch: PatchBuilder, new: PodSpec, before: PodSpec, foreign: Collection[str]) -> None:
    """Remove the resources of other systems that were converted at admission, and that the file has brought back."""
    for key, ours, theirs in (
        ("initContainers", new.init_containers, before.init_containers),
        ("containers", new.containers, before.containers),
    ):
        for index, (entry, old) in enumerate(zip(ours, theirs, strict=False)):
            for section, declared, there in (
                ("limits", entry.resources.limits, old.resources.limits),
                ("requests", entry.resources.requests, old.resources.requests),
            ):
                for name in declared:
                    if name in foreign and name not in there:
                        patch.remove(f"/spec/{key}/{index}/resources/{section}/{escape(name)}")


def _warning(field: str, named: object, kept: object) -> str:
    return f"spec.{field} stays {show(kept)}, which the pod got at its admission, in place of {show(named)}"
