# SPDX-License-Identifier: Apache-2.0
"""A manifest that is applied again to a pod: keep what admission wrote in place of the user's own values.

Kubernetes refuses to change a pod's scheduler, class or resources, and `kubectl apply` compares the file with the pod:
a file that names `default-scheduler` could never be applied a second time. So the API server sends us the updates that
change these fields, all of which it would otherwise refuse, and no others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Final

from slicekeeper.config.foreign_dialects import DIALECTS
from slicekeeper.untyped_json import as_list, as_map, show
from slicekeeper.wire.json_patch import escape
from webhook import pod_priority
from webhook.json_patch import PatchBuilder
from webhook.mutation import DEFAULT_SCHEDULER
from webhook.review_inputs import Case, ClusterContext
from webhook.verdict import Verdict

_NUMBERS: Final = ("priority", "preemptionPolicy")
_CLASS_FIELDS: Final = ("priorityClassName", *_NUMBERS)


def keep(pod: Mapping[str, Any], old: Mapping[str, Any], case: Case, cluster: ClusterContext) -> Verdict:
    """Return the patch that restores what `mutation` once replaced; another change is left to the API server."""
    new, before = as_map(pod.get("spec")), as_map(old.get("spec"))
    patch, warnings = PatchBuilder(), []
    scheduler, chosen = new.get("schedulerName"), before.get("schedulerName")
    spoken = [DIALECTS[name] for name in case.policy.foreign.dialects]
    replaced = (None, "", DEFAULT_SCHEDULER, *(name for dialect in spoken for name in dialect.schedulers))
    if scheduler != chosen and scheduler in replaced and chosen in cluster.schedulers:
        patch.member(new, "/spec", "schedulerName", chosen)
        warnings.append(_warning("schedulerName", scheduler, chosen))
    name, kept = pod_priority.named_class(pod), pod_priority.named_class(old)
    if name != kept and pod_priority.may_be_replaced(name, case, cluster):
        for field in _CLASS_FIELDS:
            if field in before:
                patch.member(new, "/spec", field, before[field])
        warnings.append(_warning("priorityClassName", name, kept))
    elif name == kept:
        numbers = pod_priority.numbers_without_class(cluster)
        for field in _NUMBERS:
            if field in before and new.get(field) == numbers[field] != before[field]:
                patch.replace(f"/spec/{field}", before[field])
                warnings.append(_warning(field, new[field], before[field]))
    _without_converted(patch, new, before, {name for dialect in spoken for name in dialect.resources})
    return Verdict(patch.operations, warnings)


def _without_converted(
    patch: PatchBuilder, new: Mapping[str, Any], before: Mapping[str, Any], foreign: Collection[str]
) -> None:
    """Remove the resources of other systems that were converted at admission, and that the file has brought back."""
    for key in ("initContainers", "containers"):
        for index, (entry, old) in enumerate(zip(as_list(new.get(key)), as_list(before.get(key)), strict=False)):
            declared, there = as_map(as_map(entry).get("resources")), as_map(as_map(old).get("resources"))
            for section in ("limits", "requests"):
                for name in as_map(declared.get(section)):
                    if name in foreign and name not in as_map(there.get(section)):
                        patch.remove(f"/spec/{key}/{index}/resources/{section}/{escape(name)}")


def _warning(field: str, named: object, kept: object) -> str:
    return f"spec.{field} stays {show(kept)}, which the pod got at its admission, in place of {show(named)}"
