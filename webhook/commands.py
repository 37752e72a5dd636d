# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper webhook serve` and `slicekeeper review`."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from slicekeeper import log
from slicekeeper.cli.file_option import files_option, texts
from slicekeeper.cli.main import EXIT_FAILED, Context
from slicekeeper.cli.output import output_option
from slicekeeper.cli.plain_text import plain
from slicekeeper.config.policy import PolicyBook
from slicekeeper.config.policy_file import read_book, read_first_book
from slicekeeper.config.settings import Settings
from slicekeeper.errors import SettingsError
from slicekeeper.net.timekeeper_client import TimekeeperClient
from webhook import offline_review
from webhook.large_reviews import ForkedLock
from webhook.shared_decisions import SharedDecisions

PATIENCE_SECONDS: Final = 5.0
"""How long a stopping webhook still answers on idle connections: the API server may just be sending on one."""

if TYPE_CHECKING:
    from starlette.applications import Starlette


@click.group()
def webhook() -> None:
    """Run the admission webhook."""


@webhook.command("serve")
@click.pass_obj
def serve_webhook(context: Context) -> None:
    """Serve /mutate and /validate until SIGTERM."""
    # gunicorn: `review` needs none
    from slicekeeper.net.first_policy import wait_for_policy  # noqa: PLC0415
    from slicekeeper.net.serving.process import serve  # noqa: PLC0415

    settings = context.loaded.settings
    # Errors of address or policy file are reported once at the start, and not by each worker.
    TimekeeperClient(settings.timekeeper_client)
    log.configure(settings.log.level, settings.log.style)
    wait_for_policy(settings.policy, settings.webhook.bind, settings.webhook.tls, settings.serving)
    book, _ = read_first_book(settings.policy)
    # In memory if possible: each count is written to a file, and the root may be read-only.
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # noqa: S108
    folder = tempfile.mkdtemp(prefix="slicekeeper-webhook-metrics-", dir=memory)
    os.environ["PROMETHEUS_MULTIPROC_DIR"] = folder
    shared, turn = SharedDecisions(folder), ForkedLock()
    serve(
        lambda: _make_app(settings, shared, book, turn),
        bind=settings.webhook.bind,
        workers=settings.webhook.workers,
        tls=settings.webhook.tls,
        limits=settings.serving,
        patience=PATIENCE_SECONDS,
        child_exit=_forget_worker,
        # A hook and no `finally`, which would run in each worker that ends, too.
        on_exit=lambda _server: shutil.rmtree(folder, ignore_errors=True),
    )


def _documents(files: tuple[Path, ...]) -> Iterator[offline_review.Document]:
    """Yield the objects of all files; in a folder, files without any are named and passed over."""
    for given in files:
        for name, text in texts([given]):
            try:
                yield from offline_review.read(text, name)
            except offline_review.NoObjects as error:
                if not given.is_dir():
                    raise
                click.echo(plain(f"passed over: {error}"), err=True)


def _make_app(settings: Settings, shared: SharedDecisions, book: PolicyBook, turn: ForkedLock) -> Starlette:
    """Create a worker's application. Imported here, because metrics imported before the fork would be the parent's."""
    from webhook.app import make_app  # noqa: PLC0415

    return make_app(settings, shared, book, turn)


def _forget_worker(_server: object, worker: Any) -> None:
    """Drop the live gauges of a worker that has ended; its counts stay."""
    from prometheus_client.multiprocess import mark_process_dead  # noqa: PLC0415 - reads $PROMETHEUS_MULTIPROC_DIR

    mark_process_dead(worker.pid)  # type: ignore[no-untyped-call]


@click.command()
@files_option(
    "--filename", required=True, help="Manifests, YAML or JSON, or a folder of such files; - is standard input."
)
@click.option("-n", "--namespace", default="default", show_default=True, help="Namespace of objects that name none.")
@click.option("--over-budget", is_flag=True, help="Show the result for a namespace whose budget is spent.")
@output_option("yaml", "json", "diff")
def review(context: Context, files: tuple[Path, ...], namespace: str, over_budget: bool, output: str) -> None:
    """Print manifests as they would be admitted, or the refusal.

    Needs no server. A workload, or another object with pod templates, is shown with the pods that would be created from
    it. GpuPolicies and LimitRanges among the manifests apply to the others, as in a cluster. Exit code 1: something was
    refused.
    """
    settings = context.loaded.settings
    book = read_book(settings.policy)
    for warning in book.warnings:
        click.echo(f"warning: {warning}", err=True)
    documents = list(_documents(files))
    if not documents:
        raise SettingsError("-f: no manifest found; in a folder, only files that end in .yaml, .yml or .json are read")
    outcomes = offline_review.review(documents, namespace, settings, book, over_budget=over_budget)
    write = {"yaml": offline_review.as_yaml, "json": offline_review.as_json, "diff": offline_review.as_diff}[output]
    click.echo(write(outcomes), nl=False)
    for outcome in outcomes:
        for warning in outcome.verdict.warnings:
            click.echo(plain(f"{outcome.name}: warning: {warning}"), err=True)
        for violation in outcome.verdict.violations:
            click.echo(plain(f"{outcome.name}: refused: {violation} [{violation.code}]"), err=True)
    if not all(outcome.verdict.allowed for outcome in outcomes):
        sys.exit(EXIT_FAILED)
