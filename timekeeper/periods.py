# SPDX-License-Identifier: Apache-2.0
"""Budget periods: hours, days, weeks, months and years of a time zone, as half-open intervals of instants.

A period is what a clock on the wall there shows, so a day has 23 hours when summer time begins. The periods of one
rule cover the time line without a gap or an overlap, whatever the zone did.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from slicekeeper.units import MS_PER_HOUR, MS_PER_SECOND

PeriodName = Literal["none", "hour", "day", "week", "month", "year"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@lru_cache(maxsize=4096)
def bounds(instant: int, period: PeriodName, zone: str) -> tuple[int, int] | None:
    """Return the start and end of the period around an instant (milliseconds); None where there are no periods."""
    if period == "none":
        return None
    place = ZoneInfo(zone)
    if period == "hour":
        return _hour(instant, place)
    first = _local(instant, place).date()
    if period == "day":
        after = first + timedelta(days=1)
    elif period == "week":
        first -= timedelta(days=first.weekday())
        after = first + timedelta(days=7)
    elif period == "year":
        first = first.replace(month=1, day=1)
        after = first.replace(year=first.year + 1)
    else:
        first = first.replace(day=1)
        after = (first + timedelta(days=31)).replace(day=1)
    return _midnight(first, place), _midnight(after, place)


def _local(instant: int, place: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=instant)).astimezone(place)


def _midnight(day: date, place: ZoneInfo) -> int:
    """Return the first instant of a local day; a midnight that a clock change skips is the instant of the change."""
    since = datetime(day.year, day.month, day.day, tzinfo=place).astimezone(UTC) - _EPOCH
    return (since.days * 86_400 + since.seconds) * MS_PER_SECOND


def _hour(instant: int, place: ZoneInfo) -> tuple[int, int]:
    """Return the local hour; where a clock change moves the minutes too (Lord Howe) it ends at the change."""
    shift = _minutes(instant, place)
    start = (instant + shift) // MS_PER_HOUR * MS_PER_HOUR - shift
    end = start + MS_PER_HOUR
    if _minutes(start, place) != shift:
        start = _change(start, instant, place)
    if _minutes(end - 1, place) != shift:
        end = _change(instant, end - 1, place)
    return start, end


def _minutes(instant: int, place: ZoneInfo) -> int:
    """Return by how much the zone's hours are shifted against those of UTC, in milliseconds below an hour."""
    offset = _local(instant, place).utcoffset() or timedelta()
    return (offset.days * 86_400 + offset.seconds) * MS_PER_SECOND % MS_PER_HOUR


def _change(before: int, after: int, place: ZoneInfo) -> int:
    """Return the first instant in (before, after] at which hours are shifted as they are at `after`."""
    shift = _minutes(after, place)
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (before, middle) if _minutes(middle, place) == shift else (middle, after)
    return after
