# SPDX-License-Identifier: Apache-2.0
"""What the documentation says of backup and repair, run on both databases: dump, restore, verify, explain."""

from __future__ import annotations

import json
import subprocess
from fractions import Fraction
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from sqlalchemy import text
from support.databases import Databases, find_server

from slicekeeper.cli.main import cli
from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.errors import SettingsError, Unavailable
from slicekeeper.units import format_instant
from timekeeper.ledger import movement, seal, workload
from timekeeper.ledger.account import AccountRef
from timekeeper.ledger.books import Books
from timekeeper.ledger.movement import Order
from timekeeper.ledger.workload import Closing, Opening
from timekeeper.store.db import dump, migrate
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine

T0 = 1_767_225_600_000
HOUR = 3_600_000
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="2h", period="day"))


def run(url: str, *words: str) -> Result:
    return CliRunner().invoke(cli, ["timekeeper", *words], env={"SLICEKEEPER_TIMEKEEPER_DATABASE": url})


def ok(url: str, *words: str) -> str:
    done = run(url, *words)
    assert done.exit_code == 0, done.output
    return done.stdout


def tell(books: Books, uid: str, start: int, end: int | None, now: int) -> None:
    opening = Opening(uid, uid, "team", "uid", "n", (), '{"main":1}', "standard", {"": Fraction(1)}, start, ())
    workload.apply(books, [opening], [Closing(uid, end, "finished")] if end else [], {"team": POLICY}, now)


def fill(url: str) -> None:
    """A history with a grant, a seal, a correction and a pod that runs."""
    books = Books(Database(make_engine(url)), "default", carry=False)
    tell(books, "a", T0, T0 + HOUR, T0 + HOUR)
    order = Order(HOUR, "a deadline", "k", b"", "ann", T0 + HOUR)
    movement.grant(books, AccountRef("uid", "team", POLICY), order, valid_from=T0 + HOUR, valid_to=None)
    seal.seal_due(books, 0, T0 + 25 * HOUR)
    tell(books, "late", T0, T0 + 60_000, T0 + 26 * HOUR)
    tell(books, "runs", T0 + 26 * HOUR, None, T0 + 26 * HOUR)
    books.database.close()


def test_a_dump_of_one_engine_is_restored_into_the_other_and_back(databases: Databases, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    between = f"sqlite:///{tmp_path}/between.sqlite"
    with databases.migrated() as source, databases.migrated() as target:
        fill(source)
        ok(source, "dump", str(first))
        ok(between, "migrate")
        ok(between, "restore", str(first))
        assert "no difference" in ok(between, "verify")
        ok(between, "dump", str(second))
        assert first.read_bytes() == second.read_bytes()
        ok(target, "restore", str(second))
        assert "no difference" in ok(target, "verify")
        books = Books(Database(make_engine(target)), "default", carry=False)
        tell(books, "runs", T0 + 26 * HOUR, T0 + 27 * HOUR, T0 + 27 * HOUR)
        books.database.close()
        assert "no difference" in ok(target, "verify")
        assert "restore into an empty database" in str(run(target, "restore", str(first)).exception)


def test_a_dump_that_fails_leaves_the_one_before_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    url, file = f"sqlite:///{tmp_path}/a.sqlite", tmp_path / "dump"
    ok(url, "migrate")
    fill(url)
    assert ok(url, "dump", "-").encode() == (ok(url, "dump", str(file)), file.read_bytes())[1]
    before = file.read_bytes()

    def full(*_: object) -> bytes:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(dump, "_line", full)
    assert "No space left on device" in str(run(url, "dump", str(file)).exception)
    assert "cannot be written" in str(run(url, "dump", str(tmp_path / "no" / "such")).exception)
    assert file.read_bytes() == before
    assert {path.name for path in tmp_path.iterdir() if "sqlite" not in path.name} == {"dump"}


def test_a_dump_is_restored_after_all_tables_were_taken_away(databases: Databases, tmp_path: Path) -> None:
    file = str(tmp_path / "dump")
    with databases.empty() as url:
        ok(url, "migrate")
        books = Books(Database(make_engine(url)), "default", carry=False)
        tell(books, "a", T0, T0 + HOUR, T0 + HOUR)
        books.database.close()
        ok(url, "dump", file)
        ok(url, "migrate", "--down", "--to", "base")
        assert "run `slicekeeper timekeeper migrate` first" in str(run(url, "verify").exception)
        told = str(run(url, "restore", file).exception)
        assert f"run `slicekeeper timekeeper migrate --to {migrate.head()}` first" in told
        ok(url, "migrate")
        ok(url, "restore", file)
        assert ok(url, "verify").startswith("1 namespaces, 2 transactions, 4 entries: no difference")


def test_a_database_that_is_not_this_releases_is_told_of(databases: Databases) -> None:
    with databases.empty() as url:
        for command in (("verify",), ("explain", "team"), ("dump", "-")):
            assert "timekeeper.database is at revision base" in str(run(url, *command).exception)
        ok(url, "migrate")
        assert "timekeeper.database is at revision 0" in str(run(url, "migrate", "--to", "nonsense").exception)
        engine = make_engine(url)
        with engine.begin() as connection:
            connection.execute(text("UPDATE alembic_version SET version_num = '9999'"))
        engine.dispose()
        for command in (("verify",), ("migrate",), ("serve",)):
            told = run(url, *command)
            assert isinstance(told.exception, SettingsError), told.output
            assert "at revision 9999" in str(told.exception)
            assert "a newer one migrated it" in str(told.exception)


def test_a_database_that_does_not_answer_is_told_of(tmp_path: Path) -> None:
    for url in ("postgresql://me:secret@127.0.0.1:1/x", f"sqlite:///{tmp_path}/no/such"):
        for command in (("verify",), ("serve",)):
            told = run(url, *command).exception
            assert isinstance(told, Unavailable)
            assert "timekeeper.database is" in str(told)
            assert "secret" not in str(told)


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda lines: lines[:-1], "the dump is incomplete"),
        (lambda lines: [*lines[:3], lines[3].replace(b"1", b"2"), *lines[4:]], "the dump"),
        (lambda lines: [lines[0].replace(b"00", b"99"), *lines[1:]], "the dump is of revision"),
        (lambda lines: [*lines[:2], b"{\n"], "is not JSON"),
        (lambda lines: [b"7\n", *lines[1:]], "is not a timekeeper's dump"),
        (lambda lines: lines[1:], "the dump is damaged"),
    ],
)
def test_a_dump_that_was_cut_or_changed_restores_nothing(tmp_path: Path, change: object, told: str) -> None:
    url, empty = f"sqlite:///{tmp_path}/a.sqlite", f"sqlite:///{tmp_path}/b.sqlite"
    for one in (url, empty):
        ok(one, "migrate")
    fill(url)
    ok(url, "dump", str(tmp_path / "dump"))
    lines = (tmp_path / "dump").read_bytes().splitlines(keepends=True)
    (tmp_path / "bad").write_bytes(b"".join(change(lines)))  # type: ignore[operator]
    refused = run(empty, "restore", str(tmp_path / "bad"))
    assert refused.exit_code != 0
    assert told in str(refused.exception)
    assert ok(empty, "verify").startswith("0 namespaces, 0 transactions")


def test_postgresqls_own_dump_verifies(databases: Databases, tmp_path: Path) -> None:
    if databases.kind != "postgresql":
        pytest.skip("of PostgreSQL alone")
    with databases.migrated() as source, databases.empty() as target:
        fill(source)
        programs, plain = find_server(), [url.replace("+psycopg", "") for url in (source, target)]
        copy = str(tmp_path / "copy.dump")
        subprocess.run([programs / "pg_dump", "-Fc", "-f", copy, plain[0]], check=True, capture_output=True)
        subprocess.run([programs / "pg_restore", "-d", plain[1], copy], check=True, capture_output=True)
        assert "no difference" in ok(target, "verify")


def test_a_balance_is_explained_booking_by_booking(databases: Databases) -> None:
    with databases.migrated() as url:
        fill(url)
        lines = json.loads(ok(url, "explain", "team", "--at", format_instant(T0 + 27 * HOUR), "-o", "json"))
        minute = 60_000
        assert [(one["kind"], one["amount_ms"]) for one in lines] == [
            ("sealed", HOUR),
            ("charge", -minute),
            ("expiry", HOUR),
            ("expiry", minute - HOUR),
            ("allowance", 2 * HOUR),
            ("charge", -HOUR),
        ]
        assert lines[-1]["balance_ms"] == 2 * HOUR
        assert "pod runs (runs) runs" in lines[-1]["cause"]
        assert "correction, effective 2026-01-02T02:00:00" in next(e["cause"] for e in lines if "late" in e["cause"])
        before = json.loads(ok(url, "explain", "team", "--at", format_instant(T0 + HOUR), "-o", "json"))
        assert [(one["kind"], one["amount_ms"]) for one in before] == [
            ("allowance", 2 * HOUR),
            ("charge", -minute),
            ("charge", -HOUR),
            ("grant", HOUR),
        ]
        assert before[-1]["balance_ms"] == 2 * HOUR - minute
        assert "grant 1 by ann: a deadline" in before[-1]["cause"]
        assert "POD" not in ok(url, "explain", "team")
        assert run(url, "explain", "nobody").exit_code != 0
        assert run(url, "explain", "team", "--at", "noon").exit_code != 0
