# SPDX-License-Identifier: Apache-2.0
"""Errors of servers in the words of the command line: no request, and the option for the field of its body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

import click

from slicekeeper.units import format_duration

_REQUEST: Final = re.compile(r"(?:GET|POST|PUT|PATCH|DELETE) /\S*: ")
_FIELD: Final = re.compile(r"([A-Za-z-]+)(?=:| must be )")
_THAN: Final = re.compile(r"(?<= later than )[a-z]+\b")
_NOT_EMPTY: Final = re.compile(r"Expected `str` of length >= 1\b")
_TOO_LONG: Final = re.compile(r"Expected `str` of length <= (\d+)")
_INSTANT: Final = re.compile(r"^: (\d{4}-\d\d-\d\dT\S*Z)(?= )")
_AMOUNT: Final = re.compile(r"(-?\d+) GPU-ms")
_PARAMS: Final = {
    "amountMs": ("amount",),
    "anchor": ("anchor",),
    "creditMs": ("credit",),
    "effectiveAt": ("start",),
    "end": ("end",),
    "expiresAt": ("until",),
    "from": ("start",),
    "Idempotency-Key": ("key",),
    "model": ("model",),
    "namespace": ("namespace", "name"),
    "parent": ("parent",),
    "period": ("period",),
    "podUid": ("pod_uid",),
    "rate": ("rate",),
    "reason": ("reason",),
    "rolloverMs": ("rollover",),
    "start": ("start",),
    "status": ("status",),
    "timeZone": ("time_zone",),
    "to": ("end", "to"),
    "uid": ("uid",),
    "until": ("until",),
    "validFrom": ("start",),
    "validTo": ("until",),
}
"""By field, the parameters of commands that are sent as it."""

_UNMISTAKABLE: Final = re.compile(r"\b([a-z]+[A-Z][A-Za-z]*|Idempotency-Key)\b")


def in_words(message: str, options: Mapping[str, str], typed: Mapping[str, object]) -> str:
    """Return a server's message without its request, and with options, amounts and instants as the user writes them.

    `options` are those of the command, by field, and `typed` the values of its parameters.
    """
    text = _AMOUNT.sub(lambda found: format_duration(int(found[1])), _REQUEST.sub("", message, count=1))
    text = _NOT_EMPTY.sub("it must not be empty", _TOO_LONG.sub(r"use at most \1 characters", text))
    if (first := _FIELD.match(text)) and first[1] in options:
        said = next((typed[name] for name in _PARAMS[first[1]] if isinstance(typed.get(name), str)), None)
        rest = _INSTANT.sub(lambda found: f": {said or found[1]}", text[first.end() :], count=1)
        text = f"{options[first[1]]}{rest}"
    text = _THAN.sub(lambda found: options.get(found[0], found[0]), text)
    return _UNMISTAKABLE.sub(lambda found: options.get(found[1], found[1]), text)


def options_of(command: click.Command) -> dict[str, str]:
    """Return how the user writes the fields that a command sends."""
    there = {param.name: param for param in command.params}
    return {
        field: _written(there[found])
        for field, names in _PARAMS.items()
        if (found := next((name for name in names if name in there), None))
    }


def _written(param: click.Parameter) -> str:
    if isinstance(param, click.Argument):
        return (param.metavar or param.human_readable_name).strip("[].").upper()
    return max(param.opts, key=len)
