# SPDX-License-Identifier: Apache-2.0
"""How samples of whole GPUs are added up: without a loss or a double count, and nothing is made up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nodeagent.seat_files import SeatFiles
from nodeagent.seat_store import Seat
from nodeagent.whole_gpu_usage import LONGEST_US, WholeGpus

STEP = 200_000
"""Microseconds from sample to sample."""

SEAT = Seat(id="w", nonce="1", uid="u", container="c", gpus=("GPU-0", "GPU-1"), core=100)
FRACTION = Seat(id="f", nonce="1", uid="v", container="c", gpus=("GPU-0",), core=50)


class Bench:
    """One agent's counting, over samples that the test makes."""

    def __init__(self, source: Any, folder: Path) -> None:
        self.source, self.folder, self.at = source, folder, 10_000_000
        source.busy = {"GPU-0": [(self.at, 100)], "GPU-1": [(self.at, 100)]}
        self.agent()
        (folder / "run/seats" / SEAT.name).mkdir()

    def agent(self) -> None:
        files = SeatFiles(self.folder / "cdi", self.folder / "run", "slicekeeper.io/seat", self.source)
        self.whole = WholeGpus(self.source, files, now_ns=lambda: self.at)

    def sample(self, *percents: int, step: int = STEP) -> None:
        self.at += step
        for told, percent in zip(self.source.busy.values(), percents, strict=True):
            told.append((self.at, percent))

    def used_us(self) -> list[int]:
        return [count.busy_ns // 1000 for count in self.whole.count([FRACTION, SEAT])]


@pytest.fixture
def bench(made: Any, tmp_path: Path) -> Bench:
    return Bench(made(2), tmp_path)


def test_samples_are_added_up_from_the_first_look_on(bench: Bench) -> None:
    assert bench.used_us() == [0, 0], "what was before is of another holder"
    bench.sample(100, 0)
    bench.sample(50, 1)
    assert bench.used_us() == [300_000, 2_000]
    assert bench.used_us() == [300_000, 2_000], "no sample counts twice"
    [first, _] = bench.whole.count([SEAT])
    assert (first.seat, first.gpu, first.wall_ns, first.memory) == (SEAT.name, "GPU-0", 400_000_000, 1 << 30)


def test_the_next_agent_counts_on_with_what_the_driver_has_kept(bench: Bench) -> None:
    bench.used_us()
    bench.sample(100, 100)
    lives = {count.life for count in bench.whole.count([SEAT])}
    for _ in range(20):
        bench.sample(100, 0)
    bench.agent()
    assert bench.used_us() == [21 * STEP, STEP]
    assert {count.life for count in bench.whole.count([SEAT])} == lives


def test_what_the_driver_has_lost_is_left_out(bench: Bench) -> None:
    bench.used_us()
    bench.sample(100, 100, step=LONGEST_US + 1)
    bench.sample(100, 100)
    assert bench.used_us() == [STEP, STEP]


def test_a_clock_that_is_set_back_or_forward_costs_what_was_used_meanwhile_and_no_more(bench: Bench) -> None:
    bench.used_us()
    bench.sample(100, 100)
    hour = 3_600_000_000
    for step in (3 * hour, -hour, -hour):
        [before, _] = bench.whole.count([SEAT])
        for told in bench.source.busy.values():
            del told[: -3 if step < 0 else None]  # the driver keeps the last ones
        bench.sample(100, 0, step=step)
        bench.sample(100, 0)
        assert bench.used_us()[1] == STEP
        for told in bench.source.busy.values():
            del told[:-2]
        bench.used_us()
        bench.sample(50, 0)
        [after, _] = bench.whole.count([SEAT])
        assert STEP * 500 <= after.busy_ns - before.busy_ns <= STEP * 1500
        assert after.wall_ns >= before.wall_ns + STEP * 1000
        assert after.life == before.life


def test_a_reboot_or_a_damaged_record_begins_a_new_counter(bench: Bench) -> None:
    bench.used_us()
    bench.sample(100, 100)
    before = bench.whole.count([SEAT])[0].life
    record = bench.folder / "run/seats" / SEAT.name / "counted.json"
    record.write_text(record.read_text()[:-5])
    bench.agent()
    assert bench.used_us() == [0, 0]
    assert bench.whole.count([SEAT])[0].life != before


def test_what_a_driver_does_not_tell_is_not_counted(bench: Bench) -> None:
    del bench.source.busy["GPU-1"]
    assert [count.gpu for count in bench.whole.count([SEAT])] == ["GPU-0"]
    bench.source.busy.clear()
    assert bench.whole.count([SEAT]) == []


def test_a_folder_that_is_gone_stops_nothing(bench: Bench) -> None:
    (bench.folder / "run/seats" / SEAT.name).rmdir()
    assert bench.used_us() == [0, 0]
    bench.sample(100, 100)
    assert bench.used_us() == [STEP, STEP]
    assert bench.whole.count([FRACTION]) == []
