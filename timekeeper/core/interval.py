# SPDX-License-Identifier: Apache-2.0
"""Read from a pod's own record when it held its GPUs. Pure: an interval is the same whenever it is read.

An interval opens at the scheduler's `bound-at` (a pod that another scheduler bound: at its PodScheduled condition, or
when it was adopted, whichever is later), and never before the pod was created.
It closes, once the pod is terminal (`slicekeeper.kube.pod`), at the last `finishedAt` of all its containers: until then
kubelet and the scheduler keep the slice. If kubelet has not recorded a container's end, the pod's own end counts: the
disruption that ended it, kubelet's refusal to start it, its deletion unless it had ended before, or its last change to
not ready.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal

from slicekeeper import names
from slicekeeper.clock import CLOCK_SKEW_MS, NODE_CLOCK_MS
from slicekeeper.kube.container_end import waited_for_a_restart
from slicekeeper.kube.pod import deletion_requested_at, has_ended, is_bound
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.units import EPOCH, MS_PER_SECOND, Instant, as_instant
from slicekeeper.untyped_json import as_list, as_map

EndSource = Literal["finished", "disrupted", "rejected", "deleted", "not-ready", "last-confirmed"]

LAST_CONFIRMED: Final = "last-confirmed"
"""The source of an interval's end if its pod vanished although it had our finalizer."""

NOT_READY = ("Ready", "ContainersReady", "PodReadyToStartContainers")
"""Conditions that are False once a pod has ended. The first two become False with the first container that ends or
fails, the last one when kubelet has stopped the sandbox, right before it frees the slice."""

_STARTED = ("running", "terminated")
"""States of a container that record when it was started."""


@dataclass(frozen=True)
class Start:
    """When an interval opened, whether the scheduler recorded it, and whether a clock was clearly wrong."""

    at: Instant
    exact: bool
    skewed: bool = False


@dataclass(frozen=True)
class End:
    """When an interval closed, and which record says so."""

    at: Instant
    source: EndSource


def created_at(pod: Mapping[str, Any], default: Instant) -> Instant:
    """Return when the API server created the pod, by its clock; `default` if the record does not say."""
    found = as_instant(as_map(pod.get("metadata")).get("creationTimestamp"))
    return default if found is None else found


def start_of(pod: Mapping[str, Any], seen: Instant | None = None, apart_ms: int = NODE_CLOCK_MS) -> Start | None:
    """Return when the interval opened; None while the pod is not bound or its record does not say yet.

    The scheduler's `bound-at` is wrong if it is more than `apart_ms` from the binding's condition, which the API server
    writes: then that counts. `seen` is when the pod was first seen bound: a start more than the skew later than that is
    wrong, and the condition or else `seen` itself counts.
    """
    if not is_bound(pod):
        return None
    scheduled = next(iter(_transitions(pod, "PodScheduled", status="True")), None)
    bound = as_instant(annotations_of(pod).get(names.BOUND_AT))
    adopted = as_instant(annotations_of(pod).get(names.ADOPTED_AT))
    if bound is None and scheduled is None and has_ended(pod):
        # kubelet has removed the condition of a pod that it refuses, and writes when it learnt about the pod.
        scheduled = as_instant(as_map(pod.get("status")).get("startTime"))
    apart = bound is not None and scheduled is not None and abs(bound - scheduled) > apart_ms
    if bound is not None and not apart:
        recorded = bound
    elif scheduled is not None:
        recorded = max(scheduled, adopted or EPOCH)
    else:
        return None
    at = recorded
    if seen is not None and recorded > seen + CLOCK_SKEW_MS:
        # Time before a pod was adopted is not charged, so for such a pod the instant of its binding says nothing.
        at = seen if scheduled is None or adopted is not None else min(scheduled, seen)
    at = max(at, created_at(pod, at))
    skewed = apart or abs(recorded - at) > CLOCK_SKEW_MS or (seen is not None and at > seen + CLOCK_SKEW_MS)
    return Start(at, exact=bound is not None, skewed=skewed)


def end_of(pod: Mapping[str, Any], holders: Collection[str], start: Instant, *, final: bool = False) -> End | None:
    """Return when the interval closed; None while it is open or its record does not say yet.

    `holders` are the containers that hold GPUs. `final` says that the record will not change any more, so a deletion
    counts although the containers' end was never recorded. The record may be wrong: see `credible`.
    """
    found = _ended(pod, holders, final=final)
    return None if found is None else End(max(found.at, start), found.source)


def reported_at(pod: Mapping[str, Any]) -> Instant | None:
    """Return when the API server accepted the record of an ended pod; None if it has not ended, or if that is unknown.

    It is in whole seconds, as kubelet's own instants. Until the pod ends, the record may be as old as the pod.
    """
    return max(filter(None, map(as_instant, _phase_written(pod))), default=None) if has_ended(pod) else None


def is_doubtful(end: End, reported: Instant) -> bool:
    """Return whether an end was reported before it happened, or so late that the node's clock may be set back."""
    late_ms = reported - end.at
    return late_ms < -NODE_CLOCK_MS or (end.source == "finished" and late_ms > NODE_CLOCK_MS)


def credible(
    end: Instant, start: Instant, seen: Instant, reported: Instant | None = None, ahead: tuple[int, ...] | None = None
) -> Instant:
    """Return when an interval closed if a node's clock showed `end` at that time.

    `ahead` is by how many milliseconds that clock was ahead around `reported`, when the API server accepted the record.
    Of the instants at which such a clock can have shown `end`, the last one before `reported` counts: usually an end is
    reported within seconds. If all of them are after it, an end that is already past is believed nevertheless, because
    owners may write an earlier time into their pods' `managedFields`; if all are before the start, `reported` counts.
    Without a report, an end is believed up to the skew after it was first seen.
    """
    at = end
    if reported is not None:
        latest = Instant(reported + MS_PER_SECOND)
        candidates = [end, *(Instant(end - ms) for ms in ahead or () if abs(ms) > NODE_CLOCK_MS)]
        possible = [one for one in candidates if start - NODE_CLOCK_MS <= one <= latest + NODE_CLOCK_MS]
        later = [one for one in candidates if one > latest]
        if possible:
            at = min(max(possible), latest)
        elif later:
            at = max(reported, min(*later, seen))
        else:
            at = reported
    return max(min(at, Instant(seen + CLOCK_SKEW_MS)), start)


def _ended(pod: Mapping[str, Any], holders: Collection[str], *, final: bool) -> End | None:
    deletion = deletion_requested_at(pod)
    if not has_ended(pod):
        return End(deletion, "deleted") if final and deletion is not None else None
    finished = {str(status.get("name")): at for status in _statuses(pod) if (at := _finished(status)) is not None}
    last = max(finished.values(), default=EPOCH)
    apps = {str(as_map(container).get("name")) for container in as_list(as_map(pod.get("spec")).get("containers"))}
    known = apps | set(holders) <= finished.keys()
    if known and not waited_for_a_restart(pod):
        return End(last, "finished")
    signs: tuple[tuple[EndSource, list[Instant]], ...] = (
        ("disrupted", _transitions(pod, "DisruptionTarget", status="True")),
        ("rejected", _rejection(pod)),
        ("deleted", [] if deletion is None or _stopped_before(pod, deletion) else [deletion]),
        ("not-ready", [at for kind in NOT_READY for at in _transitions(pod, kind, status="False")]),
    )
    for source, instants in signs:
        if instants:
            return End(last, "finished") if known and last >= max(instants) else End(max(last, *instants), source)
    # Nothing shows when the pod ended. Only containers that hold GPUs are worth waiting for.
    return End(last, "finished") if finished and set(holders) <= finished.keys() else None


def _stopped_before(pod: Mapping[str, Any], deletion: Instant) -> bool:
    """Return whether a pod ended by itself before its deletion was requested: its sandbox was gone by then.

    A pod that never ran may have had no sandbox, and a pod that waits for a restart gets a new one.
    """
    stopped = _transitions(pod, NOT_READY[-1], status="False")
    by_itself = not waited_for_a_restart(pod) or as_map(pod.get("status")).get("reason") == "DeadlineExceeded"
    return by_itself and bool(stopped) and max(stopped) < deletion and any(map(_ran, _statuses(pod)))


def _statuses(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    status = as_map(pod.get("status"))
    for key in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        yield from map(as_map, as_list(status.get(key)))


def _finished(status: Mapping[str, Any]) -> Instant | None:
    """Return when a container finally ended; None if kubelet has not seen it, for which it writes the zero time.

    The end of an earlier run, in `lastState`, does not count: the slice was held during the back-off.
    """
    instant = as_instant(as_map(as_map(status.get("state")).get("terminated")).get("finishedAt"))
    return instant if instant is not None and instant > 0 else None


def _ran(status: Mapping[str, Any]) -> bool:
    """Return whether a container was ever started."""
    runs = (as_map(as_map(status.get(key)).get(kind)) for key in ("state", "lastState") for kind in _STARTED)
    return any((as_instant(run.get("startedAt")) or 0) > 0 for run in runs)


def _rejection(pod: Mapping[str, Any]) -> list[Instant]:
    """Return the instants that show when kubelet refused a pod; it then keeps no state of the pod's containers.

    If the pod never ran, that is its `startTime`. After a reboot kubelet also refuses pods that ran: their `startTime`
    is that of the first start, and only the write of the phase is from the refusal.
    """
    status = as_map(pod.get("status"))
    if status.get("phase") != "Failed" or any(True for _ in _statuses(pod)):
        return []
    found = (as_instant(status.get("startTime")), *map(as_instant, _phase_written(pod)))
    return [instant for instant in found if instant is not None]


def _phase_written(pod: Mapping[str, Any]) -> Iterator[object]:
    """Return when the API server accepted the last write of each program that set the pod's phase."""
    for entry in map(as_map, as_list(as_map(pod.get("metadata")).get("managedFields"))):
        if "f:phase" in as_map(as_map(entry.get("fieldsV1")).get("f:status")):
            yield entry.get("time")


def _transitions(pod: Mapping[str, Any], kind: str, *, status: str) -> list[Instant]:
    """Return when the pod's conditions of a kind got a status."""
    conditions = map(as_map, as_list(as_map(pod.get("status")).get("conditions")))
    found = (
        as_instant(condition.get("lastTransitionTime"))
        for condition in conditions
        if (condition.get("type"), condition.get("status")) == (kind, status)
    )
    return [instant for instant in found if instant is not None]
