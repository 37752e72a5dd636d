# SPDX-License-Identifier: Apache-2.0
"""Count the pods of a gang: which have a place, which wait for one, and how many must find one together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from scheduler.pods import Gang, KnownPod


@dataclass(frozen=True)
class GangMembers:
    """The existing pods of a gang."""

    gang: Gang
    placed: int
    """Pods that run, are being bound, or have succeeded."""
    waiting: tuple[KnownPod, ...]
    """Pods that kube-scheduler may place, those with the largest requests first."""
    held_back: int = 0
    """Pods that wait for something else first: a scheduling gate."""
    schedulers: tuple[str, ...] = ()
    """The schedulers that the waiting pods name: if there are several, none could place them all."""

    @property
    def needed(self) -> int:
        """How many of the waiting pods must find a place together; 0: the gang has started."""
        return max(self.gang.size - self.placed, 0)

    @property
    def is_complete(self) -> bool:
        """Whether enough pods of the gang exist."""
        return len(self.waiting) >= self.needed


def gang_members(
    pods: Iterable[KnownPod], is_binding: Callable[[KnownPod], bool], succeeded: Mapping[str, int]
) -> GangMembers | None:
    """Return the existing pods of one gang, None if there are none; `is_binding` returns whether a pod is being bound.

    A pod that succeeded counts while the gang exists: while another runs, or its controller creates more. A later gang
    of the same name begins with no pods. `succeeded` is how many pods of each controller have succeeded, as far as that
    is known; some of them may have been removed.
    """
    members = list(pods)
    gangs = [pod.gang for pod in members if pod.gang is not None]
    if not gangs:
        return None
    alive = [pod for pod in members if not (pod.finished or pod.leaving)]
    placed = [pod for pod in alive if pod.node or is_binding(pod)]
    free = [pod for pod in alive if not (pod.node or is_binding(pod) or pod.refusal)]
    waiting = [pod for pod in free if not pod.gates]
    makers = {pod.controller for pod in free if pod.controller}
    there = Counter(pod.controller for pod in members if pod.succeeded and (placed or pod.controller in makers))
    done = sum(max(there[controller], succeeded.get(controller, 0)) for controller in makers | there.keys())
    waiting.sort(key=_hardest_first)
    gang = max(gangs, key=lambda gang: gang.size)
    # A rolling update may raise the size: the gang has started all the same, by that of the pods that run.
    started = min((pod.gang.size for pod in placed if pod.gang is not None), default=gang.size)
    return GangMembers(
        replace(gang, size=started) if len(placed) + done >= started else gang,
        len(placed) + done,
        tuple(waiting),
        len(free) - len(waiting),
        tuple(sorted({pod.scheduler for pod in waiting})),
    )


def _hardest_first(pod: KnownPod) -> tuple[int, int, int, int, str]:
    pieces = pod.demand.pieces
    wholes = sum(piece.whole for piece in pieces)
    return -wholes, -sum(s.core for s in pieces), -sum(s.memory_mib for s in pieces), pod.created_ms, pod.key
