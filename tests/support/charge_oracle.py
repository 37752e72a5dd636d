# SPDX-License-Identifier: Apache-2.0
"""What pods are charged, computed from their own records alone, without a line of the timekeeper's code.

Integers and exact fractions. It walks from grant to grant and looks for the zero-crossing by bisection; the timekeeper
does it by events. A pod's charge is its cumulative value rounded half up, so that a cut moves nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from fractions import Fraction
from math import floor
from typing import Any

CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"


@dataclass(frozen=True)
class Interval:
    """A pod held GPUs from `start` to `end`, for `rate` GPU-milliseconds a millisecond."""

    uid: str
    start: int
    end: int
    rate: Fraction

    def charge(self, at: int) -> int:
        """Cumulative charge at an instant."""
        return floor(self.rate * max(min(at, self.end) - self.start, 0) + Fraction(1, 2))


def instant(text: str) -> int:
    """RFC 3339 to milliseconds since the epoch."""
    return round(datetime.fromisoformat(text).timestamp() * 1000)


def interval(pod: dict[str, Any], memory_mib: int, background: Fraction) -> Interval | None:
    """The interval of a pod's last record; None for a pod that never held a GPU. All GPUs have `memory_mib`."""
    metadata = pod["metadata"]
    annotations = metadata.get("annotations") or {}
    if "slicekeeper.io/bound-at" not in annotations:
        return None
    shares: dict[str, list[Fraction]] = {}
    for container in pod["spec"]["containers"]:
        limits = container["resources"].get("limits") or {}
        if CORE not in limits:
            continue
        core, blocks = int(limits[CORE]), int(limits.get(MEMORY, 0))
        for uuid in annotations["gpu.slicekeeper.io/" + container["name"]].split(","):
            share = shares.setdefault(uuid, [Fraction(0), Fraction(0)])
            share[0] += Fraction(min(core, 100), 100)
            share[1] += Fraction(blocks * 256, memory_mib) if core < 100 else 1
    rate = sum((max(share) for share in shares.values()), Fraction(0))
    if annotations.get("slicekeeper.io/gpu-class") == "background":
        rate *= background
    start = instant(annotations["slicekeeper.io/bound-at"])
    if "creationTimestamp" in metadata:
        start = max(start, instant(metadata["creationTimestamp"]))
    return Interval(metadata["uid"], start, max(end_of(pod), start), rate)


def end_of(pod: dict[str, Any]) -> int:
    """When a pod that has ended gave its GPUs back: with its last container, as far as that is recorded."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    ends: dict[str, int] = {}
    for one in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        text = (one["state"].get("terminated") or {}).get("finishedAt")
        if text and not text.startswith("0001-"):
            ends[one["name"]] = instant(text)
    known = list(ends.values())
    again = {"Always": lambda code: True, "OnFailure": lambda code: code != 0, "Never": lambda code: False}
    back_off = any(
        again[pod["spec"].get("restartPolicy", "Never")](one["state"]["terminated"].get("exitCode"))
        for one in status.get("containerStatuses", ())
        if one["state"].get("terminated")
    )
    if not back_off and all(container["name"] in ends for container in pod["spec"]["containers"]):
        return max(known)
    when = {(c["type"], c["status"]): instant(c["lastTransitionTime"]) for c in status.get("conditions", ())}
    if ("DisruptionTarget", "True") in when:
        return max([*known, when["DisruptionTarget", "True"]])
    if "deletionTimestamp" in metadata:
        asked = instant(metadata["deletionTimestamp"]) - 1000 * metadata.get("deletionGracePeriodSeconds", 0)
        return max([*known, asked])
    kinds = ("Ready", "ContainersReady", "PodReadyToStartContainers")
    return max([*known, *(when[kind, "False"] for kind in kinds if (kind, "False") in when)])


def charges(
    intervals: Sequence[Interval], amount: int, grants: Sequence[tuple[int, int]]
) -> dict[str, tuple[int, int]]:
    """Charge to and over budget by pod UID; `amount` is there from the start, grants are (instant, amount)."""
    last = max((i.end for i in intervals), default=0)
    at = min((i.start for i in intervals), default=0)
    charged = dict.fromkeys((i.uid for i in intervals), 0)
    left = amount + sum(more for since, more in grants if since <= at)
    steps = [*sorted((since, more) for since, more in grants if at < since < last), (last, 0)]
    for until, more in steps:
        stop = first_exhausted(intervals, at, until, left) if left else at
        for i in intervals:
            part = i.charge(stop) - i.charge(at)
            charged[i.uid] += part
            left -= part
        left += more  # to what is there, or to a rest too small for a millisecond
        at = until
    return {i.uid: (charged[i.uid], i.charge(i.end) - charged[i.uid]) for i in intervals}


def first_exhausted(intervals: Sequence[Interval], at: int, until: int, left: int) -> int:
    """Return when nothing is left, or the start of the first millisecond that would cost more; at most `until`."""

    def spent(instant: int) -> int:
        return sum(i.charge(instant) - i.charge(at) for i in intervals)

    if spent(until) < left:
        return until
    low, high = at, until
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if spent(middle) < left else (low, middle)
    return high if spent(high) == left else low


class Tree:
    """Budgets above each other: a pod is charged to its namespace and all above it, or to none.

    `pods` are those of namespaces; `amounts` of all budgets are there from the start, grants are (instant, budget,
    amount).
    """

    def __init__(
        self,
        pods: dict[str, Sequence[Interval]],
        amounts: dict[str, int],
        parents: dict[str, str],
        grants: Sequence[tuple[int, str, int]] = (),
    ) -> None:
        self.above = {name: [name] for name in amounts}
        for chain in self.above.values():
            while chain[-1] in parents:
                chain.append(parents[chain[-1]])
        self.pods = [(name, i) for name, mine in pods.items() for i in mine]
        self.left, self.used = dict(amounts), dict.fromkeys(amounts, 0)
        self.spent = {name for name, amount in amounts.items() if not amount}
        self.charged = dict.fromkeys((i.uid for _, i in self.pods), 0)
        self.at, last = min(i.start for _, i in self.pods), max(i.end for _, i in self.pods)
        self.grant([grant for grant in grants if grant[0] <= self.at])
        for event in sorted({since for since, _, _ in grants if self.at < since < last} | {last}):
            while self.at < event:
                self.go(min((self.stop(budget, event) for budget in amounts), default=event))
                self.judge(event)
            self.grant([grant for grant in grants if grant[0] == event])

    def charges(self) -> dict[str, tuple[int, int]]:
        """Charge to and over budget by pod UID."""
        return {i.uid: (self.charged[i.uid], i.charge(i.end) - self.charged[i.uid]) for _, i in self.pods}

    def grant(self, grants: Sequence[tuple[int, str, int]]) -> None:
        for _, name, more in grants:
            self.left[name] += more
            self.spent.discard(name)

    def drawing(self, budget: str) -> list[Interval]:
        return [i for name, i in self.pods if budget in self.above[name] and not self.spent & set(self.above[name])]

    def stop(self, budget: str, until: int) -> int:
        if budget in self.spent:
            return until
        return first_exhausted(self.drawing(budget), self.at, until, self.left[budget])

    def go(self, to: int) -> None:
        for name, i in self.pods:
            part = 0 if self.spent & set(self.above[name]) else i.charge(to) - i.charge(self.at)
            self.charged[i.uid] += part
            for budget in self.above[name]:
                self.left[budget] -= part
                self.used[budget] += part
        self.at = to

    def judge(self, until: int) -> None:
        """Exhaust what is used up, or cannot carry the next millisecond; the lower budgets are asked first."""
        for budget in sorted(self.left, key=lambda b: -len(self.above[b])):
            step = sum(i.charge(self.at + 1) - i.charge(self.at) for i in self.drawing(budget))
            if self.left[budget] == 0 or (self.at < until and step > self.left[budget]):
                self.spent.add(budget)
