# SPDX-License-Identifier: Apache-2.0
"""Budget periods: no gap, no overlap, right on the wall's clock, daylight saving and leap days included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicekeeper.units import MS_PER_HOUR, format_instant, parse_instant
from timekeeper.core.period import PeriodName, bounds

ZONES = ["UTC", "Europe/Berlin", "America/Havana", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo",
         "Pacific/Apia", "Asia/Beirut", "Asia/Kathmandu"]  # fmt: skip
instants = st.integers(parse_instant("1995-01-01T00:00:00Z"), parse_instant("2035-01-01T00:00:00Z"))
periods = st.sampled_from(["hour", "day", "week", "month", "year"])
anchors = st.none() | instants


@given(instants, periods, st.sampled_from(ZONES), anchors)
def test_periods_cover_the_time_line_without_gap_or_overlap(
    at: int, period: PeriodName, zone: str, anchor: int | None
) -> None:
    found = bounds(at, period, zone, anchor)
    assert found is not None
    start, end = found
    assert start <= at < end
    assert bounds(start, period, zone, anchor) == bounds(end - 1, period, zone, anchor) == found
    after, before = bounds(end, period, zone, anchor), bounds(start - 1, period, zone, anchor)
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


@given(instants, periods, st.sampled_from(["UTC", "Asia/Kolkata", "Asia/Tokyo"]))
def test_a_period_begins_at_its_anchor_where_no_clock_changes(anchor: int, period: PeriodName, zone: str) -> None:
    found = bounds(anchor, period, zone, anchor)
    assert found is not None
    assert found[0] == anchor


@pytest.mark.parametrize(
    ("anchor", "at", "period", "zone", "start", "end"),
    [
        # On the 31st: the last day of a month that lacks it, and the 31st again afterwards.
        ("2026-01-31T00:00:00Z", "2026-02-15T00:00:00Z", "month", "UTC", "2026-01-31", "2026-02-28"),
        ("2026-01-31T00:00:00Z", "2026-03-01T00:00:00Z", "month", "UTC", "2026-02-28", "2026-03-31"),
        ("2026-01-31T00:00:00Z", "2028-02-29T00:00:00Z", "month", "UTC", "2028-02-29", "2028-03-31"),
        ("2026-01-31T00:00:00Z", "2026-04-30T00:00:00Z", "month", "UTC", "2026-04-30", "2026-05-31"),
        # On a leap day.
        ("2024-02-29T00:00:00Z", "2026-06-01T00:00:00Z", "year", "UTC", "2026-02-28", "2027-02-28"),
        ("2024-02-29T00:00:00Z", "2028-02-28T12:00:00Z", "year", "UTC", "2027-02-28", "2028-02-29"),
        ("2026-04-01T00:00:00Z", "2026-03-31T23:00:00Z", "year", "UTC", "2025-04-01", "2026-04-01"),
        ("2026-01-07T00:00:00Z", "2026-01-13T00:00:00Z", "week", "UTC", "2026-01-07", "2026-01-14"),
        # At six in the morning there; 23 hours when summer time begins in between.
        ("2026-01-01T05:00:00Z", "2026-03-29T03:30:00Z", "day", "Europe/Berlin", "2026-03-28T05:00",
         "2026-03-29T04:00"),
        # At half past two, which a clock change skips, and which it shows twice.
        ("2026-01-01T01:30:00Z", "2026-03-29T00:50:00Z", "day", "Europe/Berlin", "2026-03-28T01:30",
         "2026-03-29T01:30"),
        ("2026-01-01T01:30:00Z", "2026-10-25T00:50:00Z", "day", "Europe/Berlin", "2026-10-25T00:30",
         "2026-10-26T01:30"),
        ("2026-01-01T00:45:00Z", "2026-06-01T10:50:00Z", "hour", "UTC", "2026-06-01T10:45", "2026-06-01T11:45"),
    ],
)  # fmt: skip
def test_anchored_periods(anchor: str, at: str, period: PeriodName, zone: str, start: str, end: str) -> None:
    found = bounds(parse_instant(at), period, zone, parse_instant(anchor))
    assert found is not None
    assert [format_instant(instant)[: len(start)] for instant in found] == [start, end]
    assert all(instant % 60_000 == 0 for instant in found)


def test_no_period_and_the_hours_of_a_day_with_25() -> None:
    assert bounds(0, "none", "UTC") is None
    day = bounds(parse_instant("2026-10-25T12:00:00Z"), "day", "Europe/Berlin")
    assert day is not None
    assert day[1] - day[0] == 25 * MS_PER_HOUR
