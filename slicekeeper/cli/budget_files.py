# SPDX-License-Identifier: Apache-2.0
"""Read budgets from files in the format of `slicekeeper budget get -o yaml`: one document, several, or a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import yaml

from slicekeeper.cli.file_option import texts
from slicekeeper.cli.output import gathered
from slicekeeper.errors import SettingsError
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.units import parse_duration
from slicekeeper.wire.timekeeper import Budget

_RULE: Final = ("amountMs", "period", "timeZone", "creditMs", "rolloverMs", "anchor")
_AMOUNTS: Final = {"amount": "amountMs", "credit": "creditMs", "rollover": "rolloverMs"}
"""Shorter for people: `amount: 25h`."""

_SHOWN: Final = frozenset(field.encode_name for field in msgspec.structs.fields(Budget)) - {*_RULE, "namespace"}
"""Fields of `get` other than the rule."""

_SET_ELSEWHERE: Final = {
    "status": "`slicekeeper budget status` sets it",
    "parent": "`slicekeeper budget move` sets it",
    "enforcement": "the policy sets it (budget.enforcement)",
}
"""How those of them are set that are not figures."""


@dataclass(frozen=True)
class _Wanted:
    """A document, where it is from, and the fields of its rule, as the wire has them."""

    source: str
    document: Mapping[str, object]
    rule: dict[str, object]


def changes(client: TimekeeperClient, files: Iterable[Path]) -> list[tuple[str, dict[str, object]]]:
    """Return by namespace the differences from the budgets in files; everything is read before anything is changed.

    Raises SettingsError if a file does not hold budgets.
    """
    wanted: dict[str, _Wanted] = {}
    for source, document in _documents(files):
        name, one = _read(source, document)
        if name in wanted:
            raise SettingsError(f"{source}: namespace {name} is in {wanted[name].source} too; keep one of the two")
        wanted[name] = one
    if not wanted:
        raise SettingsError("-f: no budget found; in a folder, only files that end in .yaml, .yml or .json are read")
    compared = ((name, _missing(client.budget(Budget, name), one)) for name, one in wanted.items())
    return [(name, missing) for name, missing in gathered(compared, "budgets compared") if missing]


def _missing(there: Budget, wanted: _Wanted) -> dict[str, object]:
    """Return the part of a rule that differs from a budget.

    Raises SettingsError if something else does that is not a figure: it would have no effect.
    """
    shown: dict[str, Any] = msgspec.to_builtins(there)
    for key, how in _SET_ELSEWHERE.items():
        if key in wanted.document and wanted.document[key] != shown[key]:
            raise SettingsError(
                f"{wanted.source}: {key} of namespace {there.namespace} is {wanted.document[key]!r}, but a file cannot "
                f"change it from {shown[key]!r}: {how}; leave it out"
            )
    return {key: value for key, value in wanted.rule.items() if shown.get(key) != value}


def _documents(files: Iterable[Path]) -> Iterator[tuple[str, object]]:
    for source, text in texts(files):
        try:
            whole = list(yaml.safe_load_all(text))
        except (ValueError, yaml.YAMLError) as error:
            raise SettingsError(f"{source}: cannot be read: {' '.join(str(error).split())}") from error
        for document in whole:
            for one in document if isinstance(document, list) else [document]:
                if one is not None:
                    yield source, one


def _read(source: str, document: object) -> tuple[str, _Wanted]:
    """Return a namespace, and what its document asks for. Figures are read only in what `get` has written: not at all.

    Raises SettingsError if a field has no effect, or is there twice.
    """
    if isinstance(document, dict) and "kind" in document and "apiVersion" in document:
        raise SettingsError(f"{source}: kind is {document['kind']}, an object of the cluster: use kubectl apply -f")
    if not isinstance(document, dict) or not isinstance(document.get("namespace"), str):
        raise SettingsError(
            f"{source}: a budget is a map that names its namespace; for example "
            "{namespace: vision, amount: 25h, period: month}"
        )
    rule: dict[str, object] = {}
    exported = "uid" in document
    for key, value in document.items():
        if key in _AMOUNTS:
            if _AMOUNTS[key] in document:
                raise SettingsError(f"{source}: both {key} and {_AMOUNTS[key]} are set; keep one of the two")
            try:
                rule[_AMOUNTS[key]] = parse_duration(str(value))
            except ValueError as error:
                raise SettingsError(f"{source}: {key} is {value!r}; for example 25h, 90m or 1h30m") from error
        elif key in _RULE:
            rule[key] = value
        elif key not in _SHOWN and key != "namespace":
            raise SettingsError(f"{source}: unknown key {key}; use {', '.join((*_AMOUNTS, *_RULE))}")
        elif key not in (*_SET_ELSEWHERE, "namespace") and not exported:
            raise SettingsError(f"{source}: {key} is only shown, and cannot be set; leave it out")
    if not rule:
        raise SettingsError(f"{source}: nothing is set for namespace {document['namespace']}; for example amount: 25h")
    return document["namespace"], _Wanted(source, document, rule)
