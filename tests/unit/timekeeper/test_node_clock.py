# SPDX-License-Identifier: Apache-2.0
"""A charge is right within seconds whatever the clock of the pod's node does: a model of a node whose clock is set."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import Any
from unittest import mock

from hypothesis import assume, example, given
from hypothesis import strategies as st

from slicekeeper.clock import NODE_CLOCK_MS
from slicekeeper.errors import Unavailable
from slicekeeper.units import Instant, format_instant, format_seconds
from timekeeper.cluster import node_clock
from timekeeper.cluster.node_clock import NodeClocks
from timekeeper.core import interval

T0 = 1_767_225_600_000
SECOND, MINUTE, DAY = 1_000, 60_000, 86_400_000
BOUND_MS = 12_000
"""What docs/timekeeper.md promises: 10 s that may be a slow write, and the parts of seconds that are not written."""


@dataclass(frozen=True)
class Node:
    """A node: when its clock was set, by how much it was ahead after that, and when it renews its Lease."""

    set_at: tuple[int, ...]
    ahead: tuple[int, ...]
    phase: int = 0
    slow: int = 0
    """How long the API server takes for a renewal."""

    def clock(self, at: int) -> int:
        index = bisect_right(self.set_at, at)
        return at + (self.ahead[index - 1] if index else 0)

    def renewal(self, at: int) -> int:
        """Return when the last renewal was sent that the API server has taken by an instant."""
        return (at - self.slow - self.phase) // 10_000 * 10_000 + self.phase

    def next_renewal(self, at: int) -> int:
        """Return when the first renewal is sent that the API server takes at an instant or later."""
        return self.renewal(at + 9_999)

    def lease(self, at: int) -> dict[str, Any]:
        sent = self.renewal(at)
        taken = {"time": format_seconds(sent + self.slow), "fieldsV1": {"f:spec": {"f:renewTime": {}}}}
        return {"metadata": {"managedFields": [taken]}, "spec": {"renewTime": format_instant(self.clock(sent))}}


def charged(node: Node, start: int, end: int, late: int) -> tuple[int, set[int]]:
    """Return when a pod ended according to the timekeeper, and by how much the clock was ahead at the two renewals."""
    now = seen = end + late + SECOND
    finished = interval.End(node.clock(end) // SECOND * SECOND, "finished")
    reported = (end + late) // SECOND * SECOND
    client = mock.Mock(get=lambda *_: node.lease(now))
    clocks, ahead = NodeClocks(client), None
    pod = {"metadata": {"uid": "u"}, "spec": {"nodeName": "n"}}
    with mock.patch.object(node_clock, "time", mock.Mock(monotonic=lambda: now / SECOND)):
        while interval.is_doubtful(finished, reported):
            try:
                ahead = clocks.ahead(pod, reported)
                break
            except Unavailable:
                now += SECOND
    found = interval.credible(finished.at, start, seen, reported, ahead)
    return found, {node.clock(at) - at for at in (node.renewal(seen), node.next_renewal(reported + SECOND))}


sizes = st.one_of(
    st.integers(-20 * SECOND, 20 * SECOND), st.integers(-20 * MINUTE, 20 * MINUTE), st.integers(-9 * DAY, 9 * DAY)
)


@st.composite
def nodes(draw: st.DrawFn) -> Node:
    """Return a node whose clock is set at any time, often around the end of its pod at T0, and often set back again."""
    near = st.integers(-60 * SECOND, 60 * SECOND)
    steps = draw(st.lists(near | st.integers(-DAY, DAY), max_size=4, unique=True).map(sorted))
    ahead = [draw(sizes | st.just(0)) for _ in steps]
    return Node(
        tuple(T0 + step for step in steps), tuple(ahead), draw(st.integers(0, 9_999)), draw(st.integers(0, 9_999))
    )


@given(nodes(), st.integers(0, DAY), st.integers(0, 999), st.integers(0, 10 * SECOND))
@example(Node((T0 - DAY,), (-3_600_000,)), DAY, 0, 2_000)  # set back before
@example(Node((T0 - 3_000,), (-3_600_000,), 5_000), DAY, 0, 2_000)  # since the last renewal before the end
@example(Node((T0 - 3_000, T0 + 3_000), (-3_600_000, 0), 6_000), DAY, 0, 2_000)  # and right again before the next
@example(Node((T0 + 1_000,), (-3_600_000,)), DAY, 0, 2_000)  # between end and report
@example(Node((T0 - DAY,), (-11_500,)), 0, 999, 0)
@example(Node((T0 - DAY,), (20_000,), 0, 9_999), DAY, 0, 0)
def test_an_end_is_right_within_seconds_whatever_the_nodes_clock_does(
    node: Node, held: int, part: int, late: int
) -> None:
    end = T0 + part
    found, shown = charged(node, end - held, end, late)
    off = node.clock(end) - end
    assume(abs(off) <= NODE_CLOCK_MS or off in shown)  # not set twice between two renewals, which would show no trace
    assert abs(found - end) <= BOUND_MS


@given(nodes(), st.integers(0, DAY), st.integers(0, 999), st.integers(0, DAY))
def test_an_end_that_is_reported_late_is_wrong_by_no_more_than_it_was_late(
    node: Node, held: int, part: int, late: int
) -> None:
    end = T0 + part
    found, shown = charged(node, end - held, end, late)
    off = node.clock(end) - end
    assume(abs(off) <= NODE_CLOCK_MS or off in shown)
    assert -BOUND_MS <= found - end <= max(late, 0) + BOUND_MS
    if not off and not any(shown):
        assert found in (end // SECOND * SECOND, end - held), "kubelet's own, if the clock is right"


def test_what_a_lease_showed_stays_until_the_end_is_booked() -> None:
    node, now = Node((T0 - DAY, T0 + 20 * SECOND), (-3_600_000, 0)), T0 + 12 * SECOND
    clocks = NodeClocks(mock.Mock(get=lambda *_: node.lease(now)))
    pod = {"metadata": {"uid": "u"}, "spec": {"nodeName": "n"}}
    with mock.patch.object(node_clock, "time", mock.Mock(monotonic=lambda: now / SECOND)):
        assert clocks.ahead(pod, Instant(T0)) == (-3_600_000, -3_600_000)
        now = T0 + 60 * SECOND  # the database was away meanwhile, and the clock was set right
        assert clocks.ahead(pod, Instant(T0)) == (-3_600_000, -3_600_000)
        clocks.forget("u")
        assert clocks.ahead(pod, Instant(T0)) == (0, 0)
