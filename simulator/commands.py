# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper local` and `slicekeeper submit`."""

from __future__ import annotations

import logging
import shlex
import signal
import sys
import threading
import time
from pathlib import Path
from typing import Final, TextIO

import click

from simulator import closing_report, story
from simulator import submit as submitting
from simulator.initial_objects import MODELS
from simulator.local import Interrupted, LocalCluster, Options
from simulator.narrator import Narrator
from slicekeeper import threads
from slicekeeper.cli import local_home
from slicekeeper.cli.connection import cluster, cluster_options, kubeconfig_of
from slicekeeper.cli.main import EXIT_FAILED, Context
from slicekeeper.cli.output import output_option, show, table
from slicekeeper.cli.plain_text import plain
from slicekeeper.kube import kubeconfig
from slicekeeper.units import format_instant

PROGRESS_SECONDS: Final = 2.0
"""How often `submit` says how far it is."""


def examples_folder() -> Path:
    """Return the examples: beside this package in a wheel, in the checkout otherwise."""
    packed = Path(__file__).with_name("examples")
    return packed if packed.is_dir() else Path(__file__).parent.parent / "manifests" / "examples"


@click.command()
@click.option("--nodes", type=click.IntRange(1, 100), default=2, show_default=True, help="Nodes of the cluster.")
@click.option("--gpus", type=click.IntRange(1, 16), help="GPUs of each node.  [default: 2, or 3 with --mig]")
@click.option("--model", type=click.Choice(list(MODELS)), default="A100", show_default=True, help="Their model.")
@click.option("--mig", default="", help="MIG slices of each node's first GPU, for example 3g.20gb+4g.20gb.")
@click.option(
    "--speed",
    type=click.FloatRange(1, 3600),
    default=60.0,
    show_default=True,
    help="Seconds of cluster time per real second.",
)
@click.option(
    "--examples",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of manifests, and a story.yaml that says what to submit when.  [default: the release's own]",
)
@click.option("--once", is_flag=True, help="Exit when the story is complete: print a table, check the ledger.")
@click.option(
    "-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True, help="Output format."
)
def local(
    nodes: int, gpus: int | None, model: str, mig: str, speed: float, examples: Path | None, once: bool, output: str
) -> None:
    """Run Slicekeeper on this machine, with a simulated cluster.

    Webhook, timekeeper and scheduler are the real ones. Submits example manifests and shows what happens to them; stays
    up until Ctrl-C. State is kept in $SLICEKEEPER_HOME (default: .slicekeeper here), where the other commands find it.
    """
    folder = examples or examples_folder()
    plot = story.read(folder)
    gpus = gpus or (3 if mig else 2)  # the story needs two whole ones on each of two nodes
    options = Options(nodes, gpus, model, mig, speed, folder / plot.policy if plot.policy else None)
    printer = Printer(to_stderr=output == "json")
    interrupted = threads.stop_on_signals(numbers=(signal.SIGINT, signal.SIGTERM, signal.SIGHUP))
    try:
        with LocalCluster(
            local_home.home(), options, lambda line: printer.line("", "start", line), interrupted
        ) as made:
            try:
                _play(made, folder, plot, printer, once=once, output=output)
            finally:
                printer.line("", "stop", "all parts")
    except Interrupted:
        sys.exit(EXIT_FAILED if once else 0)  # a cluster that stays up ends by being stopped


class Printer:
    """Prints lines of many threads whole."""

    def __init__(self, *, to_stderr: bool) -> None:
        self._lock = threading.Lock()
        self._to_stderr = to_stderr

    def line(self, instant: str, verb: str, text: str) -> None:
        """Print one line; without a verb it is a heading."""
        with self._lock:
            said = plain(text)  # events and reasons come from anybody
            click.echo(f"{instant:<8}  {verb:<10} {said}" if verb else f"\n── {said}", err=self._to_stderr)


def _play(cluster: LocalCluster, folder: Path, plot: story.Story, printer: Printer, *, once: bool, output: str) -> None:
    logging.basicConfig(
        filename=cluster.home / "logs" / "cluster.log", format="%(asctime)s %(levelname)-7s %(name)s: %(message)s"
    )

    def tell(verb: str, text: str) -> None:
        printer.line(format_instant(cluster.cluster.clock.now_ms())[11:19], verb, text)

    narrator = Narrator(cluster, tell)
    narrator.start()
    teller = story.Teller(cluster, folder, tell)
    try:
        end = "The story is complete"
        try:
            teller.play(plot)
        except story.StoryFailed as failed:
            if once:
                raise
            end = f"The story ends here: {failed}"
        if once:
            tell("", f"{end}: everything is deleted, and the ledger is checked")
            closing_report.drain(cluster)
        else:
            tell("", end)
            click.echo(_next_commands(cluster))
            cluster.interrupted.wait()
            cluster.go_on()
    finally:
        narrator.stop()
    _finish(cluster, teller, output)


def _finish(cluster: LocalCluster, teller: story.Teller, output: str) -> None:
    rows = closing_report.rows(cluster, teller.outcomes)
    click.echo()
    show(rows, output, lambda: closing_report.show(rows))
    wrong = closing_report.check(cluster)
    if wrong:
        raise story.StoryFailed("the ledger's check failed: " + "; ".join(wrong))
    click.echo(f"\nThe ledger agrees with the cluster: {len(rows)} rows, every pod closed, sums equal.", err=True)


def _next_commands(cluster: LocalCluster) -> str:
    settings, token = cluster.settings, cluster.home / "operator.token"
    config = cluster.home / local_home.SETTINGS
    named = local_home.is_elsewhere() or bool(Context(None).comes_before_local_mode())
    command = " ".join([_program(), *(("--config", _short(config)) if named else ())])
    budgets = f"{settings.timekeeper_client.url}/api/v1/budgets"
    return f"""
The cluster stays up until Ctrl-C:
  timekeeper  {settings.timekeeper_client.url}/api/v1/openapi.json
  cluster     {settings.kubernetes.server}
  logs        {cluster.home / "logs"}
  policy      {cluster.home / "policy.yaml"} (changes take effect at once)

Try from another terminal, in this folder:
  {command} pods
  {command} nodes
  {command} budget list
  {command} budget grant trial 1h
  {command} submit -n mine --create-namespace -f {_short(examples_folder() / "mnist-case.yaml")}
  curl -s -H "Authorization: Bearer $(cat {_short(token)})" {budgets}
"""


def _program() -> str:
    """Return the command as it is typed in the current folder: a virtual environment's need not be on the PATH."""
    own = Path(sys.executable).with_name("slicekeeper")
    return _short(own) if sys.prefix != sys.base_prefix and own.exists() else "slicekeeper"


def _short(path: Path) -> str:
    """Return a path for a shell, from the current folder if it is below that."""
    here = Path.cwd()
    return shlex.quote(str(path.relative_to(here) if path.is_relative_to(here) else path))


@click.command()
@click.option(
    "-f",
    "--filename",
    "file",
    type=click.File("r", "utf-8"),
    required=True,
    help="Manifests (YAML or JSON; several documents, Lists); - reads standard input.",
)
@click.option(
    "-n",
    "--namespace",
    default="",
    help="Namespace for objects that name none. Default: that of the kubeconfig's context.",
)
@click.option("--create-namespace", is_flag=True, help="Create the namespace if it is missing.")
@cluster_options
@output_option("table", "json")
def submit(context: Context, file: TextIO, namespace: str, create_namespace: bool, output: str) -> None:
    """Create objects in the cluster, and say which were admitted.

    Exit code 0: all were admitted; 1: one was refused.
    """
    try:
        text = file.read()
    except UnicodeDecodeError as error:
        raise click.ClickException(f"-f {file.name}: not UTF-8: {error}") from error
    client = cluster(context)
    manifests = list(submitting.documents(text, file.name))
    if not manifests:
        raise click.ClickException(f"-f {file.name}: no object in it")
    if create_namespace and namespace:
        submitting.create_namespace(client, namespace)
    used = kubeconfig_of(context)
    usual = kubeconfig.namespace(used, context.kube_context) if used and not namespace else "default"
    outcomes: list[submitting.SubmitOutcome] = []
    report_at = time.monotonic() + PROGRESS_SECONDS
    for manifest in manifests:
        outcomes.append(submitting.create(client, manifest, namespace, file.name, usual))
        for warning in outcomes[-1].warnings:
            click.echo(f"Warning: {plain(warning)}", err=True)
        if time.monotonic() > report_at:
            report_at = time.monotonic() + PROGRESS_SECONDS
            click.echo(f"{len(outcomes)} of {len(manifests)} submitted …", err=True)
    rows = [(o.kind, o.namespace or "-", o.name, _decision(o)) for o in outcomes]
    show(outcomes, output, lambda: table(("KIND", "NAMESPACE", "NAME", "DECISION"), rows))
    if not all(outcome.admitted for outcome in outcomes):
        sys.exit(EXIT_FAILED)


def _decision(outcome: submitting.SubmitOutcome) -> str:
    if not outcome.admitted:
        return f"refused: {outcome.message}"
    return f"admitted with class {outcome.priority_class}" if outcome.priority_class else "admitted"
