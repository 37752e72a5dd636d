# SPDX-License-Identifier: Apache-2.0
"""Explain why a pod waits, which pods are served before it, what would help, and when it is expected to start.

Pure: it uses one snapshot, and deadlines.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from scheduler.cluster_snapshot import Snapshot
from scheduler.placement.policy import Policy
from scheduler.placement.reasons import Why
from scheduler.pods import KnownPod
from scheduler.reclaim.room_finder import RoomFinder
from scheduler.wait_forecast import Expected, StartForecast
from scheduler.wait_remedies import grants, remedies
from scheduler.wait_turns import gang_of, order, turns
from slicekeeper import names


@dataclass(frozen=True)
class Outlook:
    """The information for the owner of a waiting pod; pods are `namespace/name`."""

    reasons: tuple[tuple[str, int], ...]
    """Each reason and the number of nodes to which it applies, the most frequent first."""
    ahead: tuple[str, ...]
    """The pods that are served before it."""
    give_way: tuple[str, ...]
    """The pods that are evicted for it, or would be if it were in budget."""
    expected: Expected | None
    """None: according to the deadlines there will be no room."""
    is_stuck: bool
    """No pod's end would make room: something else has to change."""
    held_back: tuple[str, ...]
    """The scheduling gates that it waits for first."""
    helps: tuple[str, ...]
    """Actions that would help."""


def outlook(snapshot: Snapshot, pod: KnownPod, policy: Policy, ends: Mapping[str, int], now_ms: int) -> Outlook:
    """Return the outlook of a pod that waits; `ends` are deadlines by UID in milliseconds."""
    nodes = StartForecast(snapshot, pod, policy)
    line = turns(snapshot, pod.scheduler)
    mine = next((turn for turn in line if pod.uid in {other.uid for other in turn.pods}), None)
    own = order(pod) if mine is None else mine.order
    ahead = [turn for turn in line if turn.order < own and nodes.may_ever_fit(turn)]
    why = nodes.judge()
    helps = tuple(remedies(nodes, why))  # before the forecast, which lets pods end
    expected = None if mine is None else nodes.forecast([*ahead, mine], ends, now_ms)
    has_room = bool(why[Why.FITS]) or (expected is not None and expected.is_leaving)
    give_way = () if has_room else _give_way(snapshot, pod, policy)
    return Outlook(
        reasons=nodes.in_words(why),
        ahead=tuple(other.key for turn in ahead for other in turn.pods),
        give_way=give_way,
        expected=expected,
        is_stuck=all(reason.unresolvable for reason in why),
        held_back=pod.gates,
        helps=(*grants(pod, give_way), *helps),
    )


def _give_way(snapshot: Snapshot, pod: KnownPod, policy: Policy) -> tuple[str, ...]:
    """Return the pods that are evicted for a pod, or would be if it were in budget: for all of its gang, or for none.

    With a grant, the other pods of its namespace would be in budget too.
    """
    has_budget = pod.budget_state != names.OVER_BUDGET
    alike = {other.uid for other in snapshot.pods if other.namespace == pod.namespace}
    finder = RoomFinder(policy)
    finder.update(snapshot.views(), leaving=set(), blocked=set() if has_budget else alike)
    there = gang_of(snapshot, pod)
    together = there.waiting if there else (pod,)
    if (there and not there.is_complete) or not all(
        other.gpu_class == names.STANDARD and (other.budget_state == names.IN_BUDGET or not has_budget)
        for other in together
    ):
        return ()
    if there:
        places = finder.room_for_gang(together, there.needed) or []
    else:
        places = [freed] if (freed := finder.room_by_eviction(pod)) else []
    return tuple(sorted(victim.key for place in places for victim in place.victims))
