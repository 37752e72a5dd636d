# SPDX-License-Identifier: Apache-2.0
"""The one command. Parts add subcommands by entry points; an image offers those that it contains."""

from __future__ import annotations

import ast
import os
import sys
from collections.abc import Callable
from functools import cached_property
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from pathlib import Path

import click

from slicekeeper import __version__
from slicekeeper.cli.plain_text import indented
from slicekeeper.config.load import Loaded, load
from slicekeeper.config.settings import Settings
from slicekeeper.errors import SettingsError, SlicekeeperError

GROUP = "slicekeeper.commands"

EXIT_FAILED = 1
"""The request failed: refused, not found, no answer."""

EXIT_USAGE = 2
"""The command line or a setting is wrong."""


def home() -> Path:
    """Return the folder in which local mode keeps its state: `$SLICEKEEPER_HOME`, or `.slicekeeper` here."""
    return Path(os.environ.get("SLICEKEEPER_HOME", ".slicekeeper"))


def config_file(given: Path | None) -> Path | None:
    """Return the settings file: the one given, `$SLICEKEEPER_CONFIG`, /etc's, local mode's, or none."""
    named = given or (Path(os.environ["SLICEKEEPER_CONFIG"]) if os.environ.get("SLICEKEEPER_CONFIG") else None)
    if named is not None:
        return named
    usual = (Path("/etc/slicekeeper/config.yaml"), home() / "config.yaml")
    return next((file for file in usual if file.is_file()), None)


class Context:
    """The context of every subcommand: the settings, which are read on first use."""

    def __init__(self, config: Path | None) -> None:
        self.config = config
        self.kube_kubeconfig = ""
        self.kube_context = ""

    @cached_property
    def loaded(self) -> Loaded:
        """Settings and where they came from."""
        return load(config_file(self.config), os.environ)

    def begin(self) -> Settings:
        """Send the log where the settings say, and return them: the first thing that a part's process does."""
        from slicekeeper import log  # noqa: PLC0415 - other commands write none

        settings = self.loaded.settings
        log.configure(settings.log.level, settings.log.style)
        return settings


class PartGroup(click.Group):
    """A group whose commands are entry points, each imported when it is called, and none for the list of all."""

    @cached_property
    def _points(self) -> dict[str, EntryPoint]:
        # An image contains one part: a command whose package is not installed does not exist.
        return {
            point.name: point
            for point in entry_points(group=GROUP)
            if find_spec(point.module.partition(".")[0]) is not None
        }

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands that are installed, in alphabetical order."""
        return sorted({*super().list_commands(ctx), *self._points})

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the list of commands, each with the first line of its documentation."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, _first_line(self._points[name])) for name in self.list_commands(ctx)])

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return one command; one whose extra is not installed says so."""
        point = self._points.get(cmd_name)
        if point is None:
            return super().get_command(ctx, cmd_name)
        try:
            command: click.Command = point.load()
        except ModuleNotFoundError as error:
            part = point.module.partition(".")[0]
            extra = "local" if part == "simulator" else part
            remedy = f"pip install 'slicekeeper[{extra}]'"
            raise click.ClickException(f"{error.name} is not installed: {remedy}") from error
        return command


def _first_line(point: EntryPoint) -> str:
    """Return the first line of a command's documentation, read from its source: importing all parts takes a second."""
    spec = find_spec(point.module)
    source = Path(spec.origin).read_text("utf-8") if spec is not None and spec.origin is not None else ""
    functions = (node for node in ast.parse(source).body if isinstance(node, ast.FunctionDef))
    texts = [ast.get_docstring(function) or "" for function in functions if function.name == point.attr]
    return texts[0].partition("\n")[0] if texts else ""


@click.group(cls=PartGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="slicekeeper")
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Settings (YAML). Default: $SLICEKEEPER_CONFIG, /etc/slicekeeper/config.yaml, or local mode's.",
)
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> None:
    """GPU sharing with GPU-time budgets for Kubernetes."""
    ctx.obj = Context(config)


def main() -> None:
    """Run the command line."""
    run(lambda: cli(standalone_mode=True))


def run(command: Callable[[], object]) -> None:
    """Run a command; errors of ours are one line and an exit code, never a traceback."""
    try:
        command()
    except SlicekeeperError as error:
        click.echo(f"slicekeeper: {indented(str(error))}", err=True)
        sys.exit(EXIT_USAGE if isinstance(error, SettingsError) else EXIT_FAILED)
