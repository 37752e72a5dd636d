# SPDX-License-Identifier: Apache-2.0
"""Budget periods: no gap, no overlap, right on the wall's clock, daylight saving and leap days included."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slicekeeper.units import MS_PER_HOUR, format_instant, parse_instant
from timekeeper.core.period import PeriodName, bounds

ZONES = ["UTC", "Europe/Berlin", "America/Havana", "Asia/Kolkata", "Australia/Lord_Howe", "America/Sao_Paulo",
         "Pacific/Apia", "Asia/Beirut", "Asia/Kathmandu"]  # fmt: skip
HALF_A_DAY = 12 * MS_PER_HOUR
instants_from, instants_until = parse_instant("1995-01-01T00:00:00Z"), parse_instant("2035-01-01T00:00:00Z")
instants = st.integers(instants_from, instants_until)
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


@lru_cache
def clock_changes(zone: str) -> list[int]:
    """Return the instants at which a zone's clock is put forward or back, to a minute."""
    found = []
    for before in range(instants_from, instants_until, HALF_A_DAY):
        if offset(before, zone) != offset(before + HALF_A_DAY, zone):
            low, high = before, before + HALF_A_DAY
            while high - low > 60_000:
                middle = (low + high) // 120_000 * 60_000
                low, high = (middle, high) if offset(middle, zone) == offset(before, zone) else (low, middle)
            found.append(high)
    return found


def offset(at: int, zone: str) -> int:
    """Return what a zone's clock shows more than UTC's, in milliseconds."""
    shown = datetime.fromtimestamp(at // 1000, ZoneInfo(zone)).utcoffset()
    assert shown is not None
    return shown // timedelta(milliseconds=1)


@st.composite
def near_clock_changes(draw: st.DrawFn) -> tuple[str, int, int]:
    """Return a zone, an anchor, and an instant; each is often within hours of a change of the zone's clock."""
    zone = draw(st.sampled_from(["Europe/Berlin", "America/Havana", "Australia/Lord_Howe", "Asia/Beirut"]))
    quarters = st.integers(-4, 6).map(lambda number: number * MS_PER_HOUR // 4)
    near = st.builds(int.__add__, st.sampled_from(clock_changes(zone)), quarters)
    return zone, draw(near | near | instants), draw(near | near | instants)


def day_begins(date: int, anchor: int, zone: str) -> int:
    """Return when a day begins, by what the clock shows: `date` counts days from 1970.

    Of two instants that show the time of the anchor the second counts if the anchor is the second of two itself. If
    none shows it, the clock was put forward: the day begins later by as much.
    """
    midnight, wall = date * 2 * HALF_A_DAY, anchor + offset(anchor, zone)
    wanted = midnight + wall % (2 * HALF_A_DAY)
    offsets = sorted({offset(wanted + hours * MS_PER_HOUR, zone) for hours in (-26, 26)})
    shown = [wanted - one for one in reversed(offsets) if offset(wanted - one, zone) == one]
    if not shown:
        return wanted - offsets[0]
    twice = offset(anchor, zone) != offset(anchor - 3 * MS_PER_HOUR, zone) and any(
        anchor - by + offset(anchor - by, zone) == wall for by in (MS_PER_HOUR // 2, MS_PER_HOUR)
    )
    return shown[-1] if twice else shown[0]


@settings(max_examples=300)
@given(near_clock_changes())
def test_a_day_begins_at_the_time_of_its_anchor_whatever_the_clock_does(drawn: tuple[str, int, int]) -> None:
    zone, anchor, at = drawn
    found, today = bounds(at, "day", zone, anchor), (at + offset(at, zone)) // (2 * HALF_A_DAY)
    begins = sorted(day_begins(date, anchor, zone) for date in range(today - 3, today + 4))
    assert found == (max(b for b in begins if b <= at), min(b for b in begins if b > at))


@given(near_clock_changes(), periods)
def test_a_period_begins_at_its_anchor(drawn: tuple[str, int, int], period: PeriodName) -> None:
    zone, anchor, _ = drawn
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
        # At the second half past two of a day: later than what a clock change skips, too, and the second again.
        ("2026-10-25T01:30:00Z", "2027-03-28T12:00:00Z", "day", "Europe/Berlin", "2027-03-28T01:30",
         "2027-03-29T00:30"),
        ("2026-10-25T01:30:00Z", "2026-10-25T01:00:00Z", "day", "Europe/Berlin", "2026-10-24T00:30",
         "2026-10-25T01:30"),
        ("2026-10-25T01:30:00Z", "2032-10-31T01:00:00Z", "day", "Europe/Berlin", "2032-10-30T00:30",
         "2032-10-31T01:30"),
        ("2027-10-31T01:30:00Z", "2032-03-28T00:45:00Z", "week", "Europe/Berlin", "2032-03-21T01:30",
         "2032-03-28T01:30"),
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
