# SPDX-License-Identifier: Apache-2.0
from datetime import UTC, datetime, timedelta
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicekeeper.units import (
    format_duration,
    format_instant,
    format_seconds,
    parse_duration,
    parse_instant,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (50, 50), ("50", 50), ("1k", 1000), ("5e1", 50), ("500m", Fraction(1, 2)), ("2Gi", 2 << 30),
        ("0.5", Fraction(1, 2)), ("-3", -3), ("+3", 3), (1.5, Fraction(3, 2)), ("1E", 10**18), ("1Ki", 1024),
        ("1n", Fraction(1, 10**9)), ("2E2", 200), (".5", Fraction(1, 2)), ("1.", 1),
    ],
)  # fmt: skip
def test_quantities_as_kubernetes_writes_them(text: object, value: object) -> None:
    assert parse_quantity(text) == value


@pytest.mark.parametrize(
    "text",
    [True, None, [], {}, "", " 5", "5 ", "1e999", "five", "1KiB", "١", ".", "+", "0x10", float("nan"), "9" * 41],
)
def test_what_is_no_quantity(text: object) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        parse_quantity(text)


@given(st.integers(0, 10**13))
def test_durations_round_trip(ms: int) -> None:
    text = format_duration(ms)
    if "." not in text:
        assert parse_duration(text) == ms


@pytest.mark.parametrize("text", ["", "20", "h", "1.5h", "-1h", "1h 30m", "1s1h"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0s"), (1, "0.001s"), (61_000, "1m1s"), (3_600_000, "1h"), (-5_400_000, "-1h30m")]
)
def test_durations_are_written_for_people(ms: int, text: str) -> None:
    assert format_duration(ms) == text


@given(st.integers(0, 4_102_444_800_000))
def test_instants_round_trip(ms: int) -> None:
    assert parse_instant(format_instant(ms)) == ms
    assert parse_instant(format_seconds(ms)) == ms // 1000 * 1000


@given(st.datetimes(datetime(1971, 1, 1), datetime(2100, 1, 1)), st.integers(-14 * 60, 14 * 60))
def test_instants_of_any_zone(moment: datetime, minutes: int) -> None:
    from datetime import timezone

    zoned = moment.replace(tzinfo=timezone(timedelta(minutes=minutes)))
    exact = (zoned - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)
    assert parse_instant(zoned.isoformat(timespec="microseconds")) == exact


@pytest.mark.parametrize(
    "text",
    [
        "", "2026-01-01", "2026-01-01T00:00:00", "2026-13-01T00:00:00Z", "2026-01-01T00:00:00.Z", "now",
        "9999-12-31T23:59:59-00:01", "0001-01-01T00:00:00+00:01",
    ],
)  # fmt: skip
def test_what_is_no_instant(text: str) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - the library's own message for a thirteenth month
        parse_instant(text)
