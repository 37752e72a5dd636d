# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper timekeeper`: serve, migrate, verify."""

from __future__ import annotations

import sys

import click
from flask import Flask

from slicekeeper import clock as clocks
from slicekeeper import log
from slicekeeper.cli.main import EXIT_FAILED, Context
from slicekeeper.cli.output import output_option, show
from slicekeeper.errors import SettingsError
from slicekeeper.serving import serve as run_server
from timekeeper.api.app import make_app
from timekeeper.store import migrate as migrations
from timekeeper.store import verify as verification
from timekeeper.store.engine import make_engine


@click.group()
def timekeeper() -> None:
    """Budgets, ledger, REST, enforcement."""


@timekeeper.command()
@click.pass_obj
def serve(context: Context) -> None:
    """Serve the REST interface and follow the cluster's pods."""
    settings = context.loaded.settings
    log.configure(settings.log.level, settings.log.style)
    engine = make_engine(settings.timekeeper.database)
    if migrations.may_migrate_at_start(engine):
        migrations.upgrade(engine)
    elif not migrations.is_current(engine):
        raise SettingsError("timekeeper.database is not migrated: run `slicekeeper timekeeper migrate` first")
    engine.dispose()

    def make() -> Flask:
        return make_app(settings, clocks.from_settings(settings.clock))

    mine = settings.timekeeper
    run_server(make, bind=mine.bind, threads=mine.threads, tls=mine.tls)


@timekeeper.command()
@click.option("--to", default="head", show_default=True, help="Revision; `base` takes everything away.")
@click.option("--down", is_flag=True, help="Go back to the revision instead of up to it.")
@click.pass_obj
def migrate(context: Context, to: str, down: bool) -> None:
    """Bring the database to the newest revision."""
    engine = make_engine(context.loaded.settings.timekeeper.database)
    reached = (migrations.downgrade if down else migrations.upgrade)(engine, to)
    click.echo(f"{engine.url.render_as_string(hide_password=True)} is at {reached or 'base'}")


@timekeeper.command()
@output_option("text", "json", "yaml")
@click.pass_obj
def verify(context: Context, output: str) -> None:
    """Rebuild balances, anchors and bookings from the records and compare. Exit 1 where anything differs."""
    settings = context.loaded.settings
    engine = make_engine(settings.timekeeper.database)
    found = verification.verify(engine, carry=settings.timekeeper.debt == "carry")
    show(found, output, lambda: "\n".join([*found.differences, found.summary]))
    if found.differences:
        sys.exit(EXIT_FAILED)
