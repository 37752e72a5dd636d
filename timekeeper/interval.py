# SPDX-License-Identifier: Apache-2.0
"""When a pod held its GPUs, read from the pod's own record. Pure: the time at which anybody looked never matters.

An interval opens at the scheduler's `bound-at` (a pod that another scheduler bound: at its PodScheduled condition, or
when it was adopted, whichever is later).
It closes, once the pod is terminal, at the last `finishedAt` of the containers that hold GPUs. Where kubelet has
left none: at the disruption that ended the pod, at kubelet's refusal to start it, or at the deletion.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from slicekeeper import names
from slicekeeper.request import annotations_of, as_list, as_map
from slicekeeper.units import MS_PER_SECOND, parse_instant

EndSource = Literal["finished", "disrupted", "rejected", "deleted", "not-ready", "last-confirmed"]
TERMINAL = ("Succeeded", "Failed")


@dataclass(frozen=True)
class Start:
    """When an interval opened, and whether the scheduler said so itself."""

    at: int
    exact: bool


@dataclass(frozen=True)
class End:
    """When an interval closed, and what told so."""

    at: int
    source: EndSource


def is_terminal(pod: Mapping[str, Any]) -> bool:
    """Whether all containers have ended for good."""
    return as_map(pod.get("status")).get("phase") in TERMINAL


def created_at(pod: Mapping[str, Any], default: int) -> int:
    """Return when the API server made the pod, by its clock; `default` where the record does not say."""
    found = _instant(as_map(pod.get("metadata")).get("creationTimestamp"))
    return default if found is None else found


def is_bound(pod: Mapping[str, Any]) -> bool:
    """Whether the pod was ever given to a node."""
    return bool(as_map(pod.get("spec")).get("nodeName"))


def deleted_at(pod: Mapping[str, Any]) -> int | None:
    """Return the instant of deletion, grace included; None where nobody has deleted the pod."""
    return _instant(as_map(pod.get("metadata")).get("deletionTimestamp"))


def asked_to_go(pod: Mapping[str, Any]) -> int | None:
    """Return when somebody asked for the pod's deletion; None where nobody did.

    That is `deletionTimestamp` less the grace. The timestamp itself moves when the grace is cut short, as kubelet does
    with its last word on a pod; this does not.
    """
    deletion = deleted_at(pod)
    if deletion is None:
        return None
    grace = as_map(pod.get("metadata")).get("deletionGracePeriodSeconds")
    return deletion - grace * MS_PER_SECOND if isinstance(grace, int) and grace > 0 else deletion


def start_of(pod: Mapping[str, Any]) -> Start | None:
    """Return when the interval opened; None while the pod is not bound or its record does not say yet."""
    if not is_bound(pod):
        return None
    bound = _instant(annotations_of(pod).get(names.BOUND_AT))
    if bound is not None:
        return Start(bound, exact=True)
    scheduled = [
        _instant(condition.get("lastTransitionTime")) for condition in _conditions(pod, "PodScheduled", status="True")
    ]
    found = [instant for instant in scheduled if instant is not None]
    adopted = _instant(annotations_of(pod).get(names.ADOPTED_AT))
    return Start(max(found[0], adopted or 0), exact=False) if found else None


def end_of(pod: Mapping[str, Any], holders: Collection[str], start: int, *, final: bool = False) -> End | None:
    """Return when the interval closed; None while it is open or its record does not say yet.

    `holders` are the containers that hold GPUs. `final` says that the record will not change any more, so a deletion
    counts although the containers' end was never told.
    """
    found = _ended(pod, holders, final=final)
    return None if found is None else End(max(found.at, start), found.source)


def _ended(pod: Mapping[str, Any], holders: Collection[str], *, final: bool) -> End | None:
    deletion = asked_to_go(pod)
    if is_terminal(pod):
        finished = [i for status in _statuses(pod) if status.get("name") in holders for i in _finished(status)]
        if finished:
            return End(max(finished), "finished")
        told: tuple[tuple[EndSource, list[int]], ...] = (
            ("disrupted", _transitions(pod, "DisruptionTarget", status="True")),
            ("rejected", _rejection(pod)),
            ("deleted", [] if deletion is None else [deletion]),
            ("not-ready", _transitions(pod, "Ready", status="False")),
        )
        for source, instants in told:
            if instants:
                return End(max(instants), source)
    return End(deletion, "deleted") if final and deletion is not None else None


def others_ended(pod: Mapping[str, Any]) -> bool:
    """Whether all app containers have ended and none will start again, so that only sidecars are left."""
    if is_terminal(pod):
        return True
    spec = as_map(pod.get("spec"))
    statuses = {s.get("name"): s for s in map(as_map, as_list(as_map(pod.get("status")).get("containerStatuses")))}
    policy = spec.get("restartPolicy", "Always")
    apps = [as_map(container).get("name") for container in as_list(spec.get("containers"))]
    return bool(apps) and all(_ended_for_good(statuses.get(name), policy) for name in apps)


def _ended_for_good(status: Mapping[str, Any] | None, policy: object) -> bool:
    ended = as_map(as_map(as_map(status).get("state")).get("terminated"))
    if not ended:
        return False
    return policy == "Never" or (policy == "OnFailure" and ended.get("exitCode") == 0)


def _statuses(pod: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    status = as_map(pod.get("status"))
    for key in ("initContainerStatuses", "containerStatuses"):
        yield from map(as_map, as_list(status.get(key)))


def _finished(status: Mapping[str, Any]) -> Iterator[int]:
    instant = _instant(as_map(as_map(status.get("state")).get("terminated")).get("finishedAt"))
    if instant is not None and instant > 0:  # kubelet writes the zero time for a container whose end it has not seen
        yield instant


def _rejection(pod: Mapping[str, Any]) -> list[int]:
    """Return the instant at which kubelet refused a pod of which it started nothing."""
    status = as_map(pod.get("status"))
    started = _instant(status.get("startTime"))
    rejected = status.get("phase") == "Failed" and not any(True for _ in _statuses(pod))
    return [started] if rejected and started is not None else []


def _conditions(pod: Mapping[str, Any], kind: str, *, status: str) -> Iterator[Mapping[str, Any]]:
    for condition in map(as_map, as_list(as_map(pod.get("status")).get("conditions"))):
        if condition.get("type") == kind and condition.get("status") == status:
            yield condition


def _transitions(pod: Mapping[str, Any], kind: str, *, status: str) -> list[int]:
    found = (_instant(condition.get("lastTransitionTime")) for condition in _conditions(pod, kind, status=status))
    return [instant for instant in found if instant is not None]


def _instant(value: object) -> int | None:
    if not isinstance(value, str):
        return None
    try:
        return parse_instant(value)
    except (ValueError, OverflowError):
        return None
