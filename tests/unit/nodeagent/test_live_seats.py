# SPDX-License-Identifier: Apache-2.0
"""What an agent answers at /seats, from samples of the arbiter's counters."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from nodeagent.arbiter_client import ArbiterGpu, ArbiterSeat, Telemetry
from nodeagent.container_usage import of_arbiter
from nodeagent.live_seats import OLD_SECONDS, SAMPLES, LiveSeats
from nodeagent.seat_store import Seat, SeatStore
from slicekeeper import names
from slicekeeper.wire.live_seats import NodeSeats, SeatUse

SECOND = 1_000_000_000
MIB = 1 << 20


class Node:
    """A node's seats and its arbiter's samples, one a second."""

    def __init__(self, folder: Path) -> None:
        self.store = SeatStore(folder)
        self.now, self.pid = 100.0, 1
        self.live = LiveSeats(self.store, now=lambda: self.now)
        half = Seat(
            id="a",
            nonce="1",
            namespace="team",
            pod="p",
            uid="u",
            container="train",
            gpus=("GPU-0",),
            core=50,
            memory_mib=2048,
            limit=70,
            background=True,
        )
        self.store.put(half)
        self.store.put(Seat(id="s", nonce="1", namespace="team", pod="p", uid="u", container=names.SIDECAR))

    def take(self, seconds: float, busy: float, granted: float) -> None:
        wall, busy_ns, granted_ns = (int(value * SECOND) for value in (seconds, busy, granted))
        seat = ArbiterSeat(
            "a-1",
            gpu=0,
            core=50,
            limit=70,
            memory_limit=2048 * MIB,
            vclass="background",
            wall_ns=wall,
            busy_ns=busy_ns,
            granted_ns=granted_ns,
            memory=300 * MIB,
            memory_overhead=12 * MIB,
        )
        self.now += 1
        told = Telemetry(pid=self.pid, now_ns=wall, gpus=[ArbiterGpu(0, "GPU-0")], seats=[seat])
        self.live.take(of_arbiter(told))

    def train(self) -> SeatUse:
        [seat] = self.live.seats().seats
        return seat

    def shares(self) -> tuple[float | None, float | None, int | None]:
        seat = self.train()
        return seat.given_percent, seat.used_percent, seat.memory_mib


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def test_shares_are_those_of_the_last_seconds(node: Node) -> None:
    assert node.shares() == (None, None, None)
    node.take(0, 0, 0)
    assert node.shares() == (None, None, 312), "one sample has no share"
    for second in range(1, 4):
        node.take(second, second * 0.25, second * 0.5)
    assert node.shares() == (50, 25, 312)
    for second in range(4, 4 + SAMPLES):
        node.take(second, 0.75, 1.5)
    assert node.shares()[:2] == (0, 0)


def test_who_holds_what_is_told_whether_it_is_counted_or_not(node: Node) -> None:
    seat = node.train()
    assert (seat.namespace, seat.pod, seat.uid, seat.container, seat.gpu) == ("team", "p", "u", "train", "GPU-0")
    assert (seat.vclass, seat.asked_percent, seat.limit_percent, seat.memory_limit_mib) == ("background", 50, 70, 2048)
    node.store.put(
        Seat(id="w", nonce="1", namespace="team", pod="w", uid="w", container="c", gpus=("GPU-1",), core=100)
    )
    whole = node.live.seats().seats[-1]
    assert (whole.asked_percent, whole.limit_percent, whole.used_percent, whole.memory_limit_mib) == (100, 100, None, 0)


def test_nothing_is_known_without_an_arbiter_or_of_long_ago(node: Node) -> None:
    for second in (0, 1):
        node.take(second, 0, 0)
    node.live.take([])
    assert node.shares() == (None, None, None)
    for second in (2, 3):
        node.take(second, 0, 0)
    assert node.shares()[:2] == (0, 0)
    node.now += OLD_SECONDS
    assert node.shares() == (None, None, None)


def test_another_arbiters_counters_are_not_compared_with_the_last_ones(node: Node) -> None:
    node.take(10, 5, 5)
    node.pid = 2
    node.take(11, 5, 6)
    assert node.shares()[:2] == (None, None)
    node.take(12, 5.5, 6)
    assert node.shares()[:2] == (0, 50)


def test_it_answers_requests(node: Node) -> None:
    told: list[str] = []
    [body] = node.live({}, lambda status, _headers: told.append(status))
    assert told == ["200 OK"]
    assert msgspec.json.decode(body, type=NodeSeats).seats[0].pod == "p"
