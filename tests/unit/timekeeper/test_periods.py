# SPDX-License-Identifier: Apache-2.0
"""Budget periods: no gap, no overlap, right on the wall's clock, daylight saving and leap days included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicekeeper.units import MS_PER_HOUR, format_instant, parse_instant
from timekeeper.periods import PeriodName, bounds

ZONES = ["UTC", "Europe/Berlin", "America/Havana", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo",
         "Pacific/Apia", "Asia/Beirut", "Asia/Kathmandu"]  # fmt: skip
instants = st.integers(parse_instant("1995-01-01T00:00:00Z"), parse_instant("2035-01-01T00:00:00Z"))
periods = st.sampled_from(["hour", "day", "week", "month"])


@given(instants, periods, st.sampled_from(ZONES))
def test_periods_cover_the_time_line_without_gap_or_overlap(at: int, period: PeriodName, zone: str) -> None:
    found = bounds(at, period, zone)
    assert found is not None
    start, end = found
    assert start <= at < end
    assert bounds(start, period, zone) == bounds(end - 1, period, zone) == found
    after, before = bounds(end, period, zone), bounds(start - 1, period, zone)
    assert after is not None
    assert before is not None
    assert (after[0], before[1]) == (end, start)


@given(instants, st.sampled_from(["day", "week", "month"]), st.sampled_from(ZONES))
def test_a_period_begins_when_the_wall_shows_another_date(at: int, period: PeriodName, zone: str) -> None:
    found = bounds(at, period, zone)
    assert found is not None
    place = ZoneInfo(zone)
    first, last = (datetime.fromtimestamp(ms / 1000, UTC).astimezone(place) for ms in (found[0], found[0] - 1))
    assert first.date() > last.date()
    if period == "week":
        assert first.weekday() == 0 or first.date() - last.date() > timedelta(days=1)
    if period == "month":
        assert first.month != last.month


@pytest.mark.parametrize(
    ("at", "period", "zone", "start", "end"),
    [
        ("2026-03-29T12:00:00Z", "day", "Europe/Berlin", "2026-03-28T23:00:00.000Z", "2026-03-29T22:00:00.000Z"),
        ("2026-10-25T12:00:00Z", "day", "Europe/Berlin", "2026-10-24T22:00:00.000Z", "2026-10-25T23:00:00.000Z"),
        ("2028-02-29T12:00:00Z", "month", "UTC", "2028-02-01T00:00:00.000Z", "2028-03-01T00:00:00.000Z"),
        ("2026-11-21T04:10:00Z", "hour", "Asia/Kolkata", "2026-11-21T03:30:00.000Z", "2026-11-21T04:30:00.000Z"),
        ("2026-01-01T00:00:00Z", "week", "UTC", "2025-12-29T00:00:00.000Z", "2026-01-05T00:00:00.000Z"),
    ],
)
def test_known_periods(at: str, period: PeriodName, zone: str, start: str, end: str) -> None:
    found = bounds(parse_instant(at), period, zone)
    assert found is not None
    assert tuple(map(format_instant, found)) == (start, end)


def test_no_period_and_the_hours_of_a_day_with_25() -> None:
    assert bounds(0, "none", "UTC") is None
    day = bounds(parse_instant("2026-10-25T12:00:00Z"), "day", "Europe/Berlin")
    assert day is not None
    assert day[1] - day[0] == 25 * MS_PER_HOUR
