# SPDX-License-Identifier: Apache-2.0
"""Read budgets from files in the format of `slicekeeper budget get -o yaml`: one document, several, or a list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
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
"""Fields of `get` other than the rule: they describe a past state, and are not read."""


def changes(client: TimekeeperClient, files: Iterable[Path]) -> list[tuple[str, dict[str, object]]]:
    """Return by namespace the differences from the budgets in files; everything is read before anything is changed.

    Raises SettingsError if a file does not hold budgets.
    """
    wanted: dict[str, tuple[str, dict[str, object]]] = {}
    for source, document in _documents(files):
        name, rule = _rule(source, document)
        if name in wanted:
            raise SettingsError(f"{source}: namespace {name} is in {wanted[name][0]} too; keep one of the two")
        wanted[name] = source, rule
    if not wanted:
        raise SettingsError("-f: no budget found; in a folder, only files that end in .yaml, .yml or .json are read")
    compared = ((name, _missing(client.budget(Budget, name), rule)) for name, (_, rule) in wanted.items())
    return [(name, missing) for name, missing in gathered(compared, "budgets compared") if missing]


def _missing(there: Budget, rule: dict[str, object]) -> dict[str, object]:
    shown: dict[str, Any] = msgspec.to_builtins(there)
    return {key: value for key, value in rule.items() if shown.get(key) != value}


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


def _rule(source: str, document: object) -> tuple[str, dict[str, object]]:
    """Return a namespace and the fields of its rule, as the wire has them; what only `get` shows is ignored."""
    if isinstance(document, dict) and "kind" in document and "apiVersion" in document:
        raise SettingsError(f"{source}: kind is {document['kind']}, an object of the cluster: use kubectl apply -f")
    if not isinstance(document, dict) or not isinstance(document.get("namespace"), str):
        raise SettingsError(
            f"{source}: a budget is a map that names its namespace; for example "
            "{namespace: vision, amount: 25h, period: month}"
        )
    rule: dict[str, object] = {}
    for key, value in document.items():
        if key in _AMOUNTS:
            try:
                rule[_AMOUNTS[key]] = parse_duration(str(value))
            except ValueError as error:
                raise SettingsError(f"{source}: {key} is {value!r}; for example 25h, 90m or 1h30m") from error
        elif key in _RULE:
            rule[key] = value
        elif key not in _SHOWN and key != "namespace":
            raise SettingsError(f"{source}: unknown key {key}; use {', '.join((*_AMOUNTS, *_RULE))}")
    if not rule:
        raise SettingsError(f"{source}: nothing is set for namespace {document['namespace']}; for example amount: 25h")
    return document["namespace"], rule
