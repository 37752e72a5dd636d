# SPDX-License-Identifier: Apache-2.0
"""Budget periods: hours, days, weeks, months and years of a time zone, as half-open intervals of instants.

Periods follow the zone's wall clock, so a day has 23 hours when summer time begins. The periods of one rule cover the
time line without a gap or an overlap, whatever clock changes the zone had.

Without an anchor they begin at midnight, on Monday, on the first of the month, on the first of January. With one they
begin whenever the wall clock shows the same as at that instant: the same minute, time of day, weekday, day of the
month, day of the year. A month without that day begins on its last day, a year without a leap day on 28 February;
later months have the anchor's day again. A time of day that a clock change skips moves later by as much as the clock is
put forward. Of a time that is shown twice the first counts, or the second if the anchor is the second of two.
"""

from __future__ import annotations

from calendar import monthrange
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Literal
from zoneinfo import ZoneInfo

from slicekeeper.units import MS_PER_HOUR, MS_PER_SECOND, Instant

PeriodName = Literal["none", "hour", "day", "week", "month", "year"]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MONDAY = datetime(2001, 1, 1)


@lru_cache(maxsize=4096)
def bounds(
    instant: Instant, period: PeriodName, zone: str, anchor: Instant | None = None
) -> tuple[Instant, Instant] | None:
    """Return the start and end of the period around an instant (milliseconds); None if there are no periods.

    `anchor` is an instant at which one begins, on the wall clock of the zone; None: they begin as the calendar does.
    """
    if period == "none":
        return None
    tz = ZoneInfo(zone)
    since = _MONDAY if anchor is None else _local(anchor, tz).replace(tzinfo=None)
    if period == "hour":
        into = (since.minute * 60 + since.second) * MS_PER_SECOND + since.microsecond // 1000
        return _hour(instant, tz, into)
    count = _count(_local(instant, tz).date(), period, since)
    while _begins(count, period, since, tz) > instant:
        count -= 1
    while (end := _begins(count + 1, period, since, tz)) <= instant:
        count += 1
    return _begins(count, period, since, tz), end


def _local(instant: Instant, tz: ZoneInfo) -> datetime:
    return (_EPOCH + timedelta(milliseconds=instant)).astimezone(tz)


def _count(day: date, period: PeriodName, since: datetime) -> int:
    """Return the number of the period that a local day is in, or is next to."""
    if period == "day":
        return day.toordinal()
    if period == "week":
        return (day.toordinal() - since.toordinal()) // 7
    return day.year if period == "year" else day.year * 12 + day.month - 1


def _begins(count: int, period: PeriodName, since: datetime, tz: ZoneInfo) -> Instant:
    """Return the instant at which the period of a number begins."""
    if period == "day":
        day = date.fromordinal(count)
    elif period == "week":
        day = date.fromordinal(since.toordinal() + 7 * count)
    else:
        year, month = (count, since.month) if period == "year" else (count // 12, count % 12 + 1)
        day = date(year, month, min(since.day, monthrange(year, month)[1]))
    shown = datetime.combine(day, since.time(), tz)
    # The second of two equal times has `fold`, which makes a time that is skipped earlier and not later.
    begun = max(shown.replace(fold=0).astimezone(UTC), shown.astimezone(UTC)) - _EPOCH
    return Instant((begun.days * 86_400 + begun.seconds) * MS_PER_SECOND + begun.microseconds // 1000)


def _hour(instant: Instant, tz: ZoneInfo, into: int) -> tuple[Instant, Instant]:
    """Return the hour that begins `into` a local hour; if a clock change moves the minutes too, it ends there."""
    shift = _minutes(instant, tz) - into
    start = Instant((instant + shift) // MS_PER_HOUR * MS_PER_HOUR - shift)
    shift += into
    end = Instant(start + MS_PER_HOUR)
    if _minutes(start, tz) != shift:
        start = _change(start, instant, tz)
    last = Instant(end - 1)
    if _minutes(last, tz) != shift:
        end = _change(instant, last, tz)
    return start, end


def _minutes(instant: Instant, tz: ZoneInfo) -> int:
    """Return by how much the zone's hours are shifted against those of UTC, in milliseconds below an hour."""
    offset = _local(instant, tz).utcoffset() or timedelta()
    return (offset.days * 86_400 + offset.seconds) * MS_PER_SECOND % MS_PER_HOUR


def _change(before: Instant, after: Instant, tz: ZoneInfo) -> Instant:
    """Return the first instant in (before, after] at which hours are shifted as they are at `after`."""
    shift = _minutes(after, tz)
    while after - before > 1:
        middle = Instant((before + after) // 2)
        before, after = (before, middle) if _minutes(middle, tz) == shift else (middle, after)
    return after
