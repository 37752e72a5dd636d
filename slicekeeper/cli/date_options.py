# SPDX-License-Identifier: Apache-2.0
"""Read the instants of options and arguments: RFC 3339, or a plain date, which begins in the budget's time zone.

`output` has how instants are shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

import click

from slicekeeper.units import parse_instant

HELP: Final = "RFC 3339, or a date of the budget's time zone: 2026-11-01, today, yesterday, tomorrow."
_DATE: Final = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
_DAYS: Final = {"yesterday": -1, "today": 0, "tomorrow": 1}


def instant_of(text: str, zone: Callable[[], str]) -> str:
    """Return an instant in RFC 3339; `zone` is asked for the time zone's name if a plain date needs one.

    Raises UsageError for anything else.
    """
    if text in _DAYS:
        place = ZoneInfo(zone())
        return _begins(datetime.now(place).date() + timedelta(days=_DAYS[text]), place)
    try:
        if _DATE.fullmatch(text):
            return _begins(date.fromisoformat(text), ZoneInfo(zone()))
        parse_instant(text)
    except ValueError as error:
        raise click.UsageError(f"{text!r} is not an instant; use {HELP}") from error
    return text


def _begins(day: date, zone: ZoneInfo) -> str:
    """Return the first instant of a day, also of one on which the clock skips midnight."""
    begin = datetime(day.year, day.month, day.day, tzinfo=zone)
    return datetime.fromtimestamp(begin.timestamp(), zone).isoformat()
