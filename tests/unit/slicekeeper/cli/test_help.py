# SPDX-License-Identifier: Apache-2.0
"""Every command's summary can be read whole in the list of commands, on a terminal of 80 columns."""

from __future__ import annotations

import re
from collections.abc import Iterator

import click
import pytest

from slicekeeper.cli.main import cli


def groups(command: click.Command, path: str) -> Iterator[tuple[str, click.Group]]:
    """Yield a group and all groups below it, each with the words that call it."""
    if isinstance(command, click.Group):
        yield path, command
        context = click.Context(command)
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from groups(below, f"{path} {name}")


ALL = dict(groups(cli, "slicekeeper"))


@pytest.mark.parametrize("path", ALL)
def test_each_summary_is_one_whole_line(path: str) -> None:
    context = click.Context(ALL[path], terminal_width=80)
    _, _, listed = ALL[path].get_help(context).partition("\nCommands:\n")
    names = ALL[path].list_commands(context)
    assert len(listed.splitlines()) == len(names), listed
    lines = dict(line.split(maxsplit=1) for line in listed.splitlines())
    assert list(lines) == names
    for name in names:
        assert len(f"  {name}  {lines[name]}") <= 80
        assert "..." not in lines[name], name
        assert re.search(r"\b(them|its|it)\b", " ".join(lines[name].split()[:4])) is None, f"{name}: of what?"


@pytest.mark.parametrize("path", ALL)
def test_each_command_has_a_summary(path: str) -> None:
    context = click.Context(ALL[path])
    for name in ALL[path].list_commands(context):
        command = ALL[path].get_command(context, name)
        assert command is not None
        assert (command.help or "").partition("\n")[0].endswith("."), f"{path} {name}"
