# SPDX-License-Identifier: Apache-2.0
"""Usage counters: what counts, what changes nothing, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicekeeper.wire.timekeeper import UsageReport
from timekeeper.core import usage_report
from timekeeper.core.usage_report import Bounds, Watermark, advance, judge, used

HOUR = 3_600_000
NOW = 1_767_225_600_000
BOUNDS = Bounds(gpus=1, start=NOW - HOUR, now=NOW)
EPOCH = (NOW - HOUR) * 1_000_000


def report(seq: int, used_ms: int | None, epoch: int = EPOCH, **more: Any) -> UsageReport:
    fields = {"monotonic_ns": seq * 600_000_000_000, **more}
    return UsageReport(
        namespace="team", pod_name="p", pod_uid="u", container="c", epoch=epoch, seq=seq, used_ms=used_ms, **fields
    )


def feed(reports: list[UsageReport], bounds: Bounds = BOUNDS) -> tuple[list[tuple[str, str]], dict[int, Watermark]]:
    marks: dict[int, Watermark] = {}
    outcomes = []
    for one in reports:
        outcome, reason, mark = judge(one, marks, bounds)
        if mark is not None:
            marks[one.epoch] = mark
        outcomes.append((outcome, reason))
    return outcomes, marks


@st.composite
def honest(draw: st.DrawFn) -> list[UsageReport]:
    """Return what sidecars that restart say of a container that uses its GPU."""
    made = []
    for number in range(draw(st.integers(1, 3))):
        total, known = 0, draw(st.booleans())
        for seq in range(1, draw(st.integers(1, 5)) + 1):
            total += draw(st.integers(0, 100_000))
            made.append(report(seq, total if known else None, EPOCH + number))
    return made


@given(honest(), st.data())
def test_loss_repeat_and_reorder_change_nothing(reports: list[UsageReport], data: st.DataObject) -> None:
    _, marks = feed(reports)
    last = {one.epoch: one for one in reports}.values()
    kept = [one for one in reports if one in last or data.draw(st.booleans())]
    shuffled = data.draw(st.permutations(kept * 2))
    outcomes, found = feed(shuffled)
    assert found == marks
    assert "refused" not in {outcome for outcome, _ in outcomes}
    known = [one.used_ms for one in last if one.used_ms is not None]
    assert used(found) == (sum(known) if known else None)


@pytest.mark.parametrize(
    ("reports", "reason"),
    [
        ([report(1, 5_000), report(2, 4_999)], usage_report.RAN_BACKWARDS),
        ([report(2, 5_000), report(1, 6_000)], usage_report.RAN_BACKWARDS),
        ([report(1, 5_000, monotonic_ns=9), report(2, 6_000, monotonic_ns=8)], usage_report.RAN_BACKWARDS),
        ([report(1, HOUR + HOUR // 50 + usage_report.SLACK_MS + 1)], usage_report.TOO_FAST),
        ([report(1, 0, monotonic_ns=0), report(2, 120_000, monotonic_ns=10**10)], usage_report.TOO_FAST),
        ([report(1, HOUR), report(1, HOUR, EPOCH + 1)], usage_report.TOO_FAST),
        ([report(1, -1)], usage_report.BAD_COUNTER),
        ([report(1, 2**63)], usage_report.BAD_COUNTER),
        ([report(0, 1)], usage_report.BAD_COUNTER),
        ([report(1, 1, monotonic_ns=-1)], usage_report.BAD_COUNTER),
        ([report(1, 1, 2**62)], usage_report.BAD_EPOCH),
        ([report(1, 1, -5)], usage_report.BAD_EPOCH),
        ([report(1, 0, EPOCH + n) for n in range(usage_report.MAX_EPOCHS + 1)], usage_report.TOO_MANY_EPOCHS),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason_and_changes_nothing(reports: list[UsageReport], reason: str) -> None:
    outcomes, marks = feed(reports)
    assert outcomes[-1] == ("refused", reason)
    assert feed(reports[:-1])[1] == marks


@pytest.mark.parametrize("ahead", [60_000, 10 * 60_000, 30 * 365 * 24 * HOUR])
def test_a_node_whose_clock_is_ahead_is_heard_like_any_other(ahead: int) -> None:
    epoch = (NOW + ahead) * 1_000_000
    outcomes, marks = feed([report(1, 100, epoch), report(2, 500, epoch)])
    assert outcomes == [("accepted", ""), ("accepted", "")]
    assert used(marks) == 500
    mark, _ = advance(None, marks[epoch], NOW)
    assert mark.observed_ms == 0, "since when it counted is not known"


def test_unknown_stays_unknown_and_never_takes_back_what_was_known() -> None:
    assert used(feed([report(1, None), report(2, None)])[1]) is None
    assert used(feed([report(1, 700), report(2, None)])[1]) == 700
    assert used(feed([report(1, None), report(2, 700)])[1]) == 700


def test_the_most_memory_is_kept_whatever_is_repeated_refused_late_or_unknown() -> None:
    told = [report(1, 10, memory_mib=512), report(2, 20, memory_mib=2_048), report(3, None, memory_mib=1_024)]
    refused = [report(4, 5, memory_mib=9_000), report(4, 30, memory_mib=-1), report(4, 30, memory_mib=2**62)]
    outcomes, marks = feed([*told, *told, *refused, report(5, 40), report(1, 5, EPOCH + 1, memory_mib=1_500)])
    assert [outcome for outcome, _ in outcomes] == ["accepted"] * 3 + ["duplicate"] * 3 + ["refused"] * 3 + [
        "accepted"
    ] * 2
    assert outcomes[7:9] == [("refused", usage_report.BAD_COUNTER)] * 2
    assert [mark.peak_memory_mib for mark in marks.values()] == [2_048, 1_500]
    assert usage_report.peak_memory(marks) == 2_048
    assert usage_report.peak_memory({}) is None
    before, mark = marks[EPOCH], marks[EPOCH]._replace(seq=6, peak_memory_mib=4_096)
    for following, at in ((None, NOW), (before, NOW), (before._replace(hour=NOW - HOUR), NOW + HOUR)):
        assert advance(following, mark, at)[0].peak_memory_mib == 4_096


def test_more_gpus_may_use_more() -> None:
    two = Bounds(gpus=2, start=NOW - HOUR, now=NOW)
    assert feed([report(1, 2 * HOUR)], two)[0] == [("accepted", "")]


def test_what_was_counted_while_nobody_could_read_it_is_believed() -> None:
    minute = 60_000
    told = [
        report(seq, used_ms, monotonic_ns=at * minute * 1_000_000)
        for seq, used_ms, at in ((1, 0, 0), (2, None, 1), (3, None, 20), (4, 20 * minute, 20))
    ]
    outcomes, marks = feed(told)
    assert {outcome for outcome, _ in outcomes} == {"accepted"}
    assert used(marks) == 20 * minute
    faster = report(4, 23 * minute, monotonic_ns=20 * minute * 1_000_000)
    assert feed([*told[:3], faster])[0][-1] == ("refused", usage_report.TOO_FAST)


def test_time_in_which_a_counter_could_not_be_read_is_observed_only_if_it_was_short() -> None:
    for silent_s, observed_ms in ((60, 80_000), (600, 20_000)):
        silent = [(second, None) for second in range(40, 10 + silent_s, 30)]
        instants = [(0, 0), (10, 5_000), *silent, (10 + silent_s, 20_000), (20 + silent_s, 20_000)]
        mark: Watermark | None = None
        for seq, (second, used_ms) in enumerate(instants, 1):
            one = report(seq, used_ms, EPOCH, monotonic_ns=second * 1_000_000_000)
            outcome, _, new = judge(one, {} if mark is None else {EPOCH: mark}, BOUNDS)
            assert (outcome, new is not None) == ("accepted", True)
            assert new is not None
            mark, _ = advance(mark, new, EPOCH // 1_000_000 + second * 1000)
        assert mark is not None
        assert mark.observed_ms == observed_ms
