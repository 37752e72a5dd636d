# SPDX-License-Identifier: Apache-2.0
"""Units, all exact: Kubernetes quantities, instants in milliseconds, GPU-milliseconds, MiB.

No function takes or returns a float: charges are integer arithmetic from the manifest to the ledger. Instants are
integer milliseconds since the Unix epoch, UTC; intervals are half-open.
"""

import re
from datetime import UTC, datetime
from fractions import Fraction
from typing import Final, NewType

Instant = NewType("Instant", int)
"""Milliseconds since the Unix epoch, UTC. Arithmetic gives a plain int: the code says when it is an instant again."""

GpuMilliseconds = NewType("GpuMilliseconds", int)
"""An amount of GPU time, the unit of budgets and of the ledger. Sums and differences give a plain int too."""

NO_TIME: Final = GpuMilliseconds(0)

EPOCH: Final = Instant(0)
"""The start of what has always been in force."""

MIB_PER_BLOCK: Final = 256
"""`vcuda-memory` counts blocks of this many MiB."""

CORES_PER_GPU: Final = 100
"""`vcuda-core` counts percent: this many are one GPU."""

MS_PER_SECOND: Final = 1_000
MS_PER_MINUTE: Final = 60_000
MS_PER_HOUR: Final = 3_600_000
MS_PER_DAY: Final = 86_400_000

_QUANTITY = re.compile(
    r"([+-]?)(?=\.?\d)(\d{0,40})(?:\.(\d{0,40}))?(?:[eE]([+-]?\d{1,2})|([numkMGTPE]|[KMGTPE]i)?)", re.ASCII
)
_SUFFIX: Final[dict[str, Fraction]] = {
    "": Fraction(1),
    "n": Fraction(1, 10**9),
    "u": Fraction(1, 10**6),
    "m": Fraction(1, 10**3),
    "k": Fraction(10**3),
    **{letter: Fraction(1000 ** (power + 2)) for power, letter in enumerate("MGTPE")},
    **{f"{letter}i": Fraction(1024 ** (power + 1)) for power, letter in enumerate("KMGTPE")},
}

_DURATION = re.compile(r"(?:(\d+)d)?(?:(\d+)h)?(?:(\d+)m)?(?:(\d+)s)?(?:(\d+)ms)?", re.ASCII)
_DURATION_MS: Final = (MS_PER_DAY, MS_PER_HOUR, MS_PER_MINUTE, MS_PER_SECOND, 1)
_INSTANT = re.compile(r"(\d{4}-\d\d-\d\d)[Tt](\d\d:\d\d:\d\d)(?:\.(\d+))?([Zz]|[+-]\d\d:\d\d)", re.ASCII)
_FIRST, _LAST = (edge.replace(tzinfo=UTC) - datetime(1970, 1, 1, tzinfo=UTC) for edge in (datetime.min, datetime.max))


def parse_quantity(value: object) -> Fraction:
    """Return a Kubernetes quantity (`50`, `"50"`, `"1k"`, `"5e1"`, `"500m"`, `"2Gi"`) as an exact fraction.

    Raises ValueError for anything that Kubernetes would refuse, such as a boolean.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        raise ValueError("not a quantity")
    text = str(value)
    if len(text) <= 40 and text.isascii() and text.isdigit():  # nearly all of them
        return Fraction(int(text))
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError("not a quantity")
    sign, whole, decimals, exponent, suffix = match.groups()
    number = Fraction(int(whole + (decimals or "")), 10 ** len(decimals or ""))
    number *= Fraction(10) ** int(exponent) if exponent else _SUFFIX[suffix or ""]
    return -number if sign == "-" else number


def whole_quantity(value: object) -> int | None:
    """Return a Kubernetes quantity as an int; None if it is no quantity, or not a whole number."""
    if type(value) is str and len(value) <= 40 and value.isascii() and value.isdigit():  # as the API server sends it
        return int(value)
    try:
        amount = parse_quantity(value)
    except ValueError:
        return None
    return amount.numerator if amount.denominator == 1 else None


def is_zero(quantity: object) -> bool:
    """Whether a quantity is 0, however it is written."""
    return whole_quantity(quantity) == 0


def parse_duration(value: str) -> int:
    """Return a duration or an amount of GPU time (`20h`, `1h30m`, `90s`, `250ms`, `2d`) in milliseconds.

    Raises ValueError for anything else, also for a bare number: hours read as seconds are wrong by a factor of 3,600.
    """
    match = _DURATION.fullmatch(value.strip())
    if match is None or not match[0]:
        raise ValueError("not a duration")
    return sum(int(group) * ms for group, ms in zip(match.groups(), _DURATION_MS, strict=True) if group)


def format_duration(ms: int) -> str:
    """Return milliseconds as text for people: `1h30m`, `12.345s`, `-4m2s`, `0s`."""
    sign, ms = ("-", -ms) if ms < 0 else ("", ms)
    hours, ms = divmod(ms, MS_PER_HOUR)
    minutes, ms = divmod(ms, MS_PER_MINUTE)
    seconds, ms = divmod(ms, MS_PER_SECOND)
    text = (f"{hours}h" if hours else "") + (f"{minutes}m" if minutes else "")
    if ms:
        return f"{sign}{text}{seconds}.{ms:03}s"
    if seconds or not text:
        return f"{sign}{text}{seconds}s"
    return sign + text


def parse_instant(value: str) -> Instant:
    """Return an RFC 3339 instant as milliseconds since the epoch, truncated (not rounded) to the millisecond.

    Raises ValueError if the text is not RFC 3339, has no zone, or lies outside the years 1 to 9999 in UTC.
    """
    match = _INSTANT.fullmatch(value)
    if match is None:
        raise ValueError(f"not an RFC 3339 instant with a zone: {value!r}")
    date, time, decimals, zone = match.groups()
    moment = datetime.fromisoformat(f"{date}T{time}{'+00:00' if zone in 'Zz' else zone}")
    whole = moment - datetime(1970, 1, 1, tzinfo=UTC)
    if not _FIRST <= whole <= _LAST:  # `format_instant` could not show it
        raise ValueError(f"not within the years 1 to 9999 in UTC: {value!r}")
    return Instant((whole.days * 86_400 + whole.seconds) * MS_PER_SECOND + int((decimals or "0")[:3].ljust(3, "0")))


def as_instant(value: object) -> Instant | None:
    """Return what `parse_instant` does for a value from JSON of unknown shape; None if it is no such text."""
    try:
        return parse_instant(value) if isinstance(value, str) else None
    except ValueError:
        return None


def format_instant(ms: Instant) -> str:
    """Return milliseconds since the epoch as RFC 3339 in UTC with exactly three decimals."""
    seconds, rest = divmod(ms, MS_PER_SECOND)
    return f"{datetime.fromtimestamp(seconds, UTC):%Y-%m-%dT%H:%M:%S}.{rest:03}Z"


def format_micro_time(ms: Instant) -> str:
    """Return an instant as Kubernetes' `MicroTime`, which must have exactly six decimals."""
    return f"{format_instant(ms)[:-1]}000Z"


def format_if_known(ms: Instant | None) -> str | None:
    """Return an instant as `format_instant` does; None stays None."""
    return None if ms is None else format_instant(ms)


def format_seconds(ms: int) -> str:
    """Return milliseconds since the epoch as kubelet writes instants: RFC 3339, whole seconds, UTC."""
    return f"{datetime.fromtimestamp(ms // MS_PER_SECOND, UTC):%Y-%m-%dT%H:%M:%SZ}"
