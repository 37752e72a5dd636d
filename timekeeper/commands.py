# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper timekeeper`: serve, migrate, verify, explain, dump, restore."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import click
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from slicekeeper import clock as clocks
from slicekeeper.cli.main import EXIT_FAILED, Context
from slicekeeper.cli.output import output_option, show, show_each
from slicekeeper.errors import SettingsError, Unavailable
from slicekeeper.net.first_policy import wait_for_policy
from slicekeeper.net.serving.process import serve as run_server
from slicekeeper.net.serving.wsgi import WsgiBridge
from slicekeeper.net.tls import ClientCas
from slicekeeper.units import format_duration, parse_instant
from timekeeper.api.app import MAX_BODY_BYTES, make_app
from timekeeper.ledger import explain as explaining
from timekeeper.ledger import verify as verification
from timekeeper.store.db import dump as dumping
from timekeeper.store.db.engine import is_sqlite, make_engine
from timekeeper.store.db.migrate import check, downgrade, upgrade


@contextmanager
def _engine(context: Context, *, of_any_revision: bool = False) -> Iterator[Engine]:
    """Open the database of the settings, and close it.

    Raises SettingsError if it has not this release's revision, Unavailable if it does not answer.
    """
    engine = make_engine(context.loaded.settings.timekeeper.database)
    try:
        if not of_any_revision:
            check(engine)
        yield engine
    except SQLAlchemyError as error:
        where = engine.url.render_as_string(hide_password=True)
        raise Unavailable(f"timekeeper.database is {where}: {getattr(error, 'orig', None) or error}") from error
    finally:
        engine.dispose()


@click.group()
def timekeeper() -> None:
    """Run the timekeeper; verify, explain and copy its ledger."""


@timekeeper.command()
@click.pass_obj
def serve(context: Context) -> None:
    """Serve the REST interface and follow the cluster's pods."""
    settings = context.begin()
    mine = settings.timekeeper
    wait_for_policy(settings.policy, mine.bind, mine.tls, settings.serving)
    with _engine(context, of_any_revision=True) as engine:
        if is_sqlite(engine):  # the embedded default, which has one process
            upgrade(engine)
        check(engine)

    clients = ClientCas() if mine.tls.certificate_file else None

    def make() -> WsgiBridge:
        app = make_app(settings, clocks.from_settings(settings.clock), clients)
        return WsgiBridge(app, threads=mine.threads, max_body_bytes=MAX_BODY_BYTES)

    run_server(make, bind=mine.bind, tls=mine.tls, clients=clients, limits=settings.serving)


@timekeeper.command()
@click.option("--to", default="head", show_default=True, help="Revision; `base` drops everything.")
@click.option("--down", is_flag=True, help="Downgrade to the revision instead of upgrading.")
@click.pass_obj
def migrate(context: Context, to: str, down: bool) -> None:
    """Bring the database to the newest revision."""
    with _engine(context, of_any_revision=True) as engine:
        try:
            reached = (downgrade if down else upgrade)(engine, to)
        except RuntimeError as error:  # with which a revision says what would be lost
            raise SettingsError(f"timekeeper.database stays as it is: {error}") from error
    click.echo(f"{engine.url.render_as_string(hide_password=True)} is at {reached or 'base'}")


@timekeeper.command()
@output_option("text", "json", "yaml")
def verify(context: Context, output: str) -> None:
    """Verify the ledger: compare all bookings with the records.

    Balances, anchors and bookings are computed again. Exit code 1: something differs.
    """
    settings = context.loaded.settings
    with _engine(context) as engine:
        found = verification.verify(engine, carry=settings.timekeeper.debt == "carry")
    show(found, output, lambda: "\n".join([*found.differences, found.summary]))
    if found.differences:
        sys.exit(EXIT_FAILED)


@timekeeper.command()
@click.argument("namespace")
@click.option("--at", default="", help="Instant, RFC 3339. Without it: now.")
@click.option("--parent", is_flag=True, help="NAMESPACE is the name of a team or an organisation.")
@click.option("--uid", default="", help="UID of the namespace, if several had the name. Default: the newest.")
@output_option("table", "json", "yaml")
def explain(context: Context, namespace: str, at: str, parent: bool, uid: str, output: str) -> None:
    """Explain a namespace's balance, booking by booking.

    Each is shown with the record that caused it.
    """
    settings = context.loaded.settings
    try:
        instant = parse_instant(at) if at else clocks.from_settings(settings.clock).now_ms()
    except ValueError as error:
        raise click.BadParameter(
            f"{at!r} is not RFC 3339; for example 2026-11-30T12:00:00Z", param_hint="--at"
        ) from error
    mine = settings.timekeeper
    head = ("AT", "TRANSACTION", "KIND", "GPU-TIME", "BALANCE", "CAUSE")
    with _engine(context) as engine:
        lines = explaining.explain(
            engine, mine.cluster, namespace, instant, carry=mine.debt == "carry", parent=parent, uid=uid
        )
        show_each(
            lines,
            output,
            head,
            lambda e: (
                e.at,
                e.transaction or "-",
                e.kind,
                format_duration(e.amount_ms),
                format_duration(e.balance_ms),
                e.cause,
            ),
        )


@timekeeper.command()
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@click.pass_obj
def dump(context: Context, file: Path) -> None:
    """Write a snapshot of the database to FILE.

    Either database engine can be filled with it. `-` is standard output.
    """
    with _engine(context, of_any_revision=True) as engine, _whole(file) as out:
        rows = dumping.dump(engine, out)
    click.echo(f"{rows} rows", err=True)


@contextmanager
def _whole(file: Path) -> Iterator[BinaryIO]:
    """Open a file to write, which replaces an existing one once it is complete and on the disk."""
    if str(file) == "-":
        yield sys.stdout.buffer
        return
    if file.exists() and not file.is_file():  # a device, a pipe
        with file.open("wb") as out:
            yield out
        return
    part = file.with_name(f"{file.name}.part")
    try:
        with part.open("wb") as out:
            yield out
            out.flush()
            os.fsync(out.fileno())
        part.replace(file)
    except OSError as error:
        raise SettingsError(f"{file} cannot be written: {error.strerror}") from error
    finally:
        part.unlink(missing_ok=True)


@timekeeper.command()
@click.argument("file", type=click.File("rb"))
@click.pass_obj
def restore(context: Context, file: BinaryIO) -> None:
    """Fill an empty, migrated database from FILE.

    It is filled completely or not at all. `-` is standard input.
    """
    with _engine(context, of_any_revision=True) as engine:
        rows = dumping.restore(engine, file)
    click.echo(f"{rows} rows", err=True)
