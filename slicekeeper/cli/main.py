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
from typing import Final

import click

from slicekeeper import __version__
from slicekeeper.cli import local_home
from slicekeeper.cli.plain_text import indented
from slicekeeper.config.load import Loaded, load
from slicekeeper.config.settings import Settings
from slicekeeper.errors import SettingsError, SlicekeeperError

GROUP = "slicekeeper.commands"

EXIT_FAILED = 1
"""The request failed: refused, not found, no answer."""

EXIT_USAGE = 2
"""The command line or a setting is wrong."""


_OF_ALL: Final = Path("/etc/slicekeeper/config.yaml")

_SERVERS: Final = ("SLICEKEEPER_KUBERNETES_SERVER", "SLICEKEEPER_TIMEKEEPER_CLIENT_URL", "KUBECONFIG")
"""Variables that name a cluster or a timekeeper."""


class Context:
    """The context of every subcommand: the settings, which are read on first use."""

    def __init__(self, config: Path | None) -> None:
        self.config = config
        self.kube_kubeconfig = ""
        self.kube_context = ""

    @cached_property
    def loaded(self) -> Loaded:
        """Settings and where they came from. If local mode runs here and there is a choice, say what is used."""
        file, named = self._file(), self.comes_before_local_mode()
        local = local_home.settings_file()
        if local is not None and named:
            if file is None or not _same(file, local):
                _say(f"using {named}, not the local mode in {local.parent}; for that, set SLICEKEEPER_CONFIG={local}")
        elif local is not None:
            file = local
            if other := _usual_cluster():
                _say(f"using the local mode in {local.parent}, not {other}")
        return load(file, os.environ)

    def _file(self) -> Path | None:
        """Return the settings file that is named, or that of /etc."""
        variable = os.environ.get("SLICEKEEPER_CONFIG")
        return self.config or (Path(variable) if variable else _OF_ALL if _exists(_OF_ALL) else None)

    def comes_before_local_mode(self) -> str:
        """Return which option, variable or file names what a command uses; empty if nothing does."""
        options = {"context": self.kube_context, "kubeconfig": self.kube_kubeconfig, "config": self.config}
        named = [f"--{option} {value}" for option, value in options.items() if value]
        named += [f"${name}" for name in ("SLICEKEEPER_CONFIG", *_SERVERS) if os.environ.get(name)]
        return (named or [str(self._file() or "")])[0]

    def begin(self) -> Settings:
        """Send the log where the settings say, and return them: the first thing that a part's process does."""
        from slicekeeper import log  # noqa: PLC0415 - other commands write none

        settings = self.loaded.settings
        log.configure(settings.log.level, settings.log.style)
        return settings


def _exists(file: Path) -> bool:
    """Whether a file exists; one that we may not look for does, so that the error names it."""
    try:
        file.stat()
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def _usual_cluster() -> str:
    """Return the cluster of a command for which nothing is named, and how to name it; empty if there is none."""
    from slicekeeper.kube import kubeconfig  # noqa: PLC0415 - only needed beside local mode

    if kubeconfig.named(os.environ):
        return f"{kubeconfig.USUAL}; for that, set KUBECONFIG={kubeconfig.USUAL}"
    pod = os.environ.get("KUBERNETES_SERVICE_HOST")
    return f"the cluster of this pod; for that, set SLICEKEEPER_CONFIG={os.devnull}" if pod else ""


def _same(one: Path, other: Path) -> bool:
    return os.path.realpath(one) == os.path.realpath(other)


def _say(text: str) -> None:
    click.echo(f"slicekeeper: {indented(text)}", err=True)


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
    help="Settings (YAML). Default: $SLICEKEEPER_CONFIG, /etc/slicekeeper/config.yaml, or local mode's while it runs.",
)
@click.pass_context
def cli(ctx: click.Context, config: Path | None) -> None:
    """GPU sharing with GPU-time budgets for Kubernetes."""
    ctx.obj = Context(config)


def main() -> None:
    """Run the command line."""
    run(lambda: cli(standalone_mode=True))


def run(command: Callable[[], object]) -> None:
    """Run a command; errors of ours, and of files, are one line and an exit code, never a traceback."""
    try:
        command()
    except SlicekeeperError as error:
        _say(str(error))
        sys.exit(EXIT_USAGE if isinstance(error, SettingsError) else EXIT_FAILED)
    except OSError as error:
        if error.filename is None:
            raise
        _say(f"{os.fsdecode(error.filename)}: {error.strerror}")
        sys.exit(EXIT_FAILED)
