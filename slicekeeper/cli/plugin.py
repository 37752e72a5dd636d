# SPDX-License-Identifier: Apache-2.0
"""`kubectl gpubudget`: the commands of `slicekeeper budget` as a kubectl plugin, and their completion.

kubectl finds both programs on PATH: `kubectl-gpubudget`, and `kubectl_complete-gpubudget` when a shell completes.
"""

from __future__ import annotations

import sys
from typing import Final

import click
from click.shell_completion import ShellComplete

from slicekeeper.cli.budget import budget
from slicekeeper.cli.main import Context, run

NAME: Final = "kubectl gpubudget"
_NO_FILES: Final = ":4"
"""Tells cobra, kubectl's library, to offer no files as well."""


def main() -> None:
    """Run a command of the plugin."""
    run(lambda: budget.main(prog_name=NAME, obj=Context(None), help_option_names=["-h", "--help"]))


def complete() -> None:
    """Print possible completions of the command line, whose last word is being typed."""
    *words, incomplete = sys.argv[1:] or [""]
    found = ShellComplete(budget, {"obj": Context(None)}, NAME, "").get_completions(words, incomplete)
    for item in found:
        click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(_NO_FILES)
