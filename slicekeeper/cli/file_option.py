# SPDX-License-Identifier: Apache-2.0
"""`-f` like kubectl's: files, folders and everything below them, `-` for standard input; it may be repeated."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import click

from slicekeeper.errors import SettingsError

_KINDS: Final = (".yaml", ".yml", ".json")


def files_option(*names: str, required: bool = False, help: str) -> Callable[[Any], Any]:  # noqa: A002 - click's name
    """Return the option; the command is given paths, for `texts`."""
    given = click.Path(path_type=Path, exists=True, allow_dash=True)
    return click.option("-f", *names, "files", multiple=True, required=required, type=given, help=help)


def texts(files: Iterable[Path]) -> Iterator[tuple[str, str]]:
    """Yield name and text of each file; in a folder, of all .yaml, .yml and .json files below it, in order.

    Raises SettingsError if one cannot be read.
    """
    for given in files:
        inside = sorted(one for one in given.rglob("*") if one.suffix in _KINDS) if given.is_dir() else [given]
        for file in inside:
            try:
                text = sys.stdin.read() if str(file) == "-" else file.read_text("utf-8")
            except (OSError, ValueError) as error:
                raise SettingsError(f"{file}: cannot be read: {error}") from error
            yield "standard input" if str(file) == "-" else str(file), text
