# SPDX-License-Identifier: Apache-2.0
"""What the ledger records, in words: the detail of an audit entry, and what a booking is for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Final

from slicekeeper.cli.output import brief
from slicekeeper.units import Instant, format_duration, format_instant

_INSTANTS: Final = frozenset({"anchorMs", "endMs", "startMs", "startedMs", "periodStartMs", "toldMs", "until"})
_LEFT_OUT: Final = frozenset({"namespaceUid", "reason"})


def detail_in_words(detail: Mapping[str, str | int]) -> str:
    """Return the detail of an audit entry: the reason, if there is one, and what was done: `a deadline (amount 2h)`."""
    reason = str(detail.get("reason") or "")
    shown = ((key, value) for key, value in detail.items() if key not in _LEFT_OUT and value)
    fields = ", ".join(f"{_words(key)} {_value(key, value)}" for key, value in shown)
    return f"{reason} ({fields})" if reason and fields else reason or fields


def _words(key: str) -> str:
    """Return the name of a field as words: `limitMs` is `limit`, `podUid` is `pod uid`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", key.removesuffix("Ms")).lower()


def _value(key: str, value: str | int) -> str:
    if isinstance(value, str):
        return value
    if key in _INSTANTS or key.endswith("At"):
        return brief(format_instant(Instant(value)))
    return format_duration(value) if key.endswith("Ms") else str(value)


def subject_in_words(subject: str, pods: Mapping[str, str]) -> str:
    """Return what a booking is for: a period, a grant, or a pod, by its name."""
    kind, _, key = subject.partition(":")
    if kind in ("period", "debt") and key.isdecimal():
        return f"{kind} {brief(format_instant(Instant(int(key))))}"
    if subject == "period:none":
        return "the whole time"
    return pods.get(subject) or subject.replace(":", " ", 1)


def names_of(uids: Iterable[str], known: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return the names of pods by UID; `known` is read only until all of them are found."""
    missing, found = set(uids), {}
    for uid, name in known if missing else ():
        if uid in missing:
            found[uid] = name
            missing.discard(uid)
            if not missing:
                break
    return found
