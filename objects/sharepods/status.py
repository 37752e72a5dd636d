# SPDX-License-Identifier: Apache-2.0
"""The status of a SharePod: its pod, in fields named as in KubeShare, and the reason if it has none.

All of it mirrors the pod, so nothing in it changes by itself.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from objects.conditions import READY, condition, find
from objects.sharepods.template import DIGEST_ANNOTATION, Template
from slicekeeper import names
from slicekeeper.kube.client import Object
from slicekeeper.kube.container_end import waited_for_a_restart
from slicekeeper.kube.pod import deletion_requested_at, has_ended
from slicekeeper.kube.pod_manifest import annotations_of, container_name, containers
from slicekeeper.units import Instant, as_instant
from slicekeeper.untyped_json import as_list, as_map

UP_TO_DATE: Final = "UpToDate"
ENDED: Final = "Ended"
_KEPT: Final = ("name", "namespace", "uid", "creationTimestamp")


def status_of(
    sharepod: Object, pod: Object | None, template: Template, problem: tuple[str, str] | None, now: Instant
) -> Object | None:
    """Return the status to write; None if the current one may stay.

    `problem` is the reason and the message if the SharePod has no pod of its own.
    """
    reason, message = problem or ("", "")
    new: Object = {"observedGeneration": sharepod["metadata"]["generation"]}
    if pod is None:
        conditions = [condition(sharepod, READY, "False", reason, message, now)]
    else:
        new |= _mirror(pod)
        conditions = [
            condition(sharepod, READY, *_readiness(pod), now),
            condition(sharepod, UP_TO_DATE, *_freshness(pod, template), now),
        ]
        outcome = find(sharepod, ENDED).get("reason") or outcome_of(pod)  # an ended pod stays ended
        if outcome:
            conditions.append(condition(sharepod, ENDED, "True", outcome, "no other pod will be created", now))
    new["conditions"] = conditions
    return new if new != sharepod.get("status") else None


def has_outcome(sharepod: Object) -> bool:
    """Whether its pod has finally ended, so that no other is created even if that one is gone."""
    return find(sharepod, ENDED).get("status") == "True"


def outcome_of(pod: Object) -> str:
    """Return the phase in which a pod has ended for good; empty if it has not, or if another is to replace it.

    One that was deleted while it ran, or evicted, has not ended by itself, whatever its containers' exit codes are.
    """
    status = as_map(pod.get("status"))
    phase = str(status.get("phase"))
    if not has_ended(pod):
        return ""
    if status.get("reason") == "DeadlineExceeded":
        return phase
    return phase if not waited_for_a_restart(pod) and _ended_before_its_deletion(pod) else ""


def _ended_before_its_deletion(pod: Object) -> bool:
    requested = deletion_requested_at(pod)
    if requested is None:
        return True
    of_containers = map(as_map, as_list(as_map(pod.get("status")).get("containerStatuses")))
    ends = [as_instant(as_map(as_map(one.get("state")).get("terminated")).get("finishedAt")) for one in of_containers]
    return bool(ends) and all(end is not None and end <= requested for end in ends)


def _mirror(pod: Object) -> Object:
    metadata, spec = pod["metadata"], as_map(pod.get("spec"))
    mirrored: Object = {
        "PodStatus": pod.get("status") or {},
        "PodObjectMeta": {key: metadata[key] for key in _KEPT if key in metadata},
    }
    if spec.get("nodeName"):
        mirrored["nodeName"] = spec["nodeName"]
    given = (annotations_of(pod).get(names.gpu_annotation(container_name(c))) for _, _, c in containers(spec))
    gpus = dict.fromkeys(uuid for text in given if isinstance(text, str) for uuid in text.split(","))
    if gpus:
        mirrored["BoundDeviceID"] = ",".join(gpus)
    return mirrored


def _readiness(pod: Object) -> tuple[str, str, str]:
    """Return status, reason and message of the condition Ready: the pod's own, or why it is not scheduled yet."""
    phase = as_map(pod.get("status")).get("phase")
    if has_ended(pod):
        return "False", f"Pod{phase}", str(as_map(pod.get("status")).get("message") or f"its pod is {phase}")
    scheduled, ready = find(pod, "PodScheduled"), find(pod, READY)
    if scheduled.get("status") == "False":
        return _same_as(scheduled, "PodUnscheduled")
    if ready:
        return _same_as(ready, "PodReady" if ready.get("status") == "True" else "PodNotReady")
    return "False", "PodPending", "its pod is not scheduled yet"


def _same_as(given: Mapping[str, Any], reason: str) -> tuple[str, str, str]:
    return str(given.get("status")), str(given.get("reason") or reason), str(given.get("message") or "as its pod says")


def _freshness(pod: Object, template: Template) -> tuple[str, str, str]:
    if template.violations:
        return "False", "SpecInvalid", "; ".join(map(str, template.violations))
    if annotations_of(pod).get(DIGEST_ANNOTATION) != template.digest:
        return (
            "False",
            "SpecChanged",
            "the pod has another spec; delete the pod, and it is created again with this spec",
        )
    return "True", "SpecUnchanged", "; ".join(template.notes) or "the pod has this spec"
