# SPDX-License-Identifier: Apache-2.0
"""Databases for tests: a file of SQLite, or a database of a real PostgreSQL that is started here on loopback.

PostgreSQL is Debian's server, run as an unprivileged user in a folder of its own and stopped by its process id.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.dialects.sqlite.pysqlite import SQLiteDialect_pysqlite
from support import debian, leftovers
from support.ports import free_port
from support.waiting import wait_for

from timekeeper.store.db import migrate
from timekeeper.store.db.engine import make_engine
from timekeeper.store.db.models import Base

KINDS = ("sqlite", "postgresql")
_USERS = ("postgres", "nobody")
_COMPILED: dict[type, Any] = {}


@event.listens_for(Engine, "engine_connect")
def _remember_statements(connection: Connection) -> None:
    """Share what SQLAlchemy compiled between engines of one kind.

    Tests make thousands of engines; to compile all statements for each is a quarter of their time. SQLAlchemy keeps
    statements by dialect, so dialects of one kind must be equal.
    """
    engine = connection.engine
    engine._compiled_cache = _COMPILED.setdefault(type(engine.dialect), engine._compiled_cache)


for _dialect in (PGDialect_psycopg, SQLiteDialect_pysqlite):
    _dialect.__eq__ = lambda self, other: type(self) is type(other)  # type: ignore[method-assign]
    _dialect.__hash__ = lambda self: hash(type(self))  # type: ignore[method-assign]


def find_server() -> Path:
    """Return PostgreSQL's folder of programs; install Debian's package if it is missing and we may."""
    found = _programs()
    if found is None:
        debian.install("postgresql")
        found = _programs()
    if found is None:
        pytest.skip("PostgreSQL's server is not installed: apt-get install postgresql")
    return found


def _programs() -> Path | None:
    places = [*Path("/usr/lib/postgresql").glob("*/bin"), *map(Path, os.environ.get("PATH", "").split(":"))]
    places = [place for place in places if (place / "initdb").exists() and (place / "postgres").exists()]
    return max(places, key=lambda p: int(p.parent.name) if p.parent.name.isdecimal() else 0, default=None)


def unprivileged() -> pwd.struct_passwd:
    """Return the user for the server, which refuses to run as root."""
    if os.geteuid() != 0:
        return pwd.getpwuid(os.geteuid())
    for name in _USERS:
        with suppress(KeyError):
            return pwd.getpwnam(name)
    pytest.skip("PostgreSQL needs an unprivileged user to run as: useradd postgres")


class Postgres:
    """One server. `start` after `stop` goes on with the same data.

    `network` is a process in whose network it listens, on every address; from here it is reached by its socket.
    """

    def __init__(
        self, folder: Path, *, durable: bool = False, follows: Postgres | None = None, network: int = 0
    ) -> None:
        self._programs = find_server()
        self.user = unprivileged()
        self._folder = folder
        self._data = folder / "data"
        os.chown(folder, self.user.pw_uid, self.user.pw_gid)
        if follows is not None:
            source = ["-h", "127.0.0.1", "-p", str(follows.port), "-U", "timekeeper"]
            self._run("pg_basebackup", "-D", str(self._data), *source, "-R", "-X", "stream", "-c", "fast", "--no-sync")
        else:
            self._initialise()
        self.port = free_port()
        self._durable = durable
        self._network = network
        self._process: subprocess.Popen[bytes] | None = None
        self._names = count()

    def _initialise(self) -> None:
        self._run("initdb", "-D", str(self._data), "-U", "timekeeper", "-A", "trust", "-E", "UTF8", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        done = subprocess.run(
            [str(self._programs / program), *arguments],
            user=self.user.pw_uid,
            group=self.user.pw_gid,
            extra_groups=[] if os.geteuid() == 0 else None,
            cwd=self._folder,
            capture_output=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()

    def start(self) -> None:
        """Start, and wait until it answers."""
        given = {
            "listen_addresses": "*" if self._network else "127.0.0.1",
            "port": str(self.port),
            "unix_socket_directories": str(self._folder) if self._network else "",
            "fsync": "on" if self._durable else "off",
            "max_connections": "100",
            "shared_buffers": "64MB",
        }
        options = [part for key, value in given.items() for part in ("-c", f"{key}={value}")]
        command = [str(self._programs / "postgres"), "-D", str(self._data), *options]
        run_as: dict[str, Any] = {}
        if self._network:  # which only root may enter
            command = [
                "nsenter",
                f"--net=/proc/{self._network}/ns/net",
                f"--setgid={self.user.pw_gid}",
                f"--setuid={self.user.pw_uid}",
                "--",
                *command,
            ]
        else:
            groups = [] if os.geteuid() == 0 else None
            run_as = {"user": self.user.pw_uid, "group": self.user.pw_gid, "extra_groups": groups}
        with (self._folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                command, stdout=log, stderr=log, cwd=self._folder, start_new_session=True, **run_as
            )
        wait_for(self._answers, "an answer of PostgreSQL", 60)

    def _answers(self) -> bool:
        assert self.runs, (self._folder / "log").read_text()
        try:
            self.execute("SELECT 1")
        except Exception:
            return False
        return True

    def execute(self, statement: str, database: str = "postgres") -> None:
        """Run one statement outside a transaction."""
        engine = create_engine(self.url(database), isolation_level="AUTOCOMMIT")
        try:
            with engine.connect() as connection:
                connection.execute(text(statement))
        finally:
            engine.dispose()

    def let_in(self, network: str, password: str) -> None:
        """Have those of a network come in with a password."""
        with (self._data / "pg_hba.conf").open("a") as file:
            file.write(f"host all timekeeper {network} scram-sha-256\n")
        self.execute(f"ALTER ROLE timekeeper PASSWORD '{password}'")
        self.execute("SELECT pg_reload_conf()")

    def wait_for_followers(self) -> None:
        """Have each commit wait, from now on, until a server that follows this one has it on its disk."""
        replicas = "SELECT count(*) FROM pg_stat_replication WHERE"
        wait_for(lambda: self.ask(f"{replicas} state = 'streaming'"), "a server that follows", 60)
        self.execute("ALTER SYSTEM SET synchronous_standby_names = '*'")
        self.execute("SELECT pg_reload_conf()")
        wait_for(lambda: self.ask(f"{replicas} sync_state = 'sync'"), "a server that follows in step", 60)

    def ask(self, query: str) -> Any:
        """Return the first value of an answer."""
        engine = create_engine(self.url("postgres"))
        try:
            with engine.connect() as connection:
                return connection.execute(text(query)).scalar()
        finally:
            engine.dispose()

    @property
    def runs(self) -> bool:
        """Whether the server's process is there."""
        return self._process is not None and self._process.poll() is None

    def stop(self, how: signal.Signals = signal.SIGINT) -> None:
        """Stop: SIGINT ends it in good order whoever is connected; SIGQUIT is a crash."""
        if self._process is not None and self.runs:
            self._process.send_signal(how)
            self._process.wait(timeout=60)

    def url(self, database: str) -> str:
        """Return a database's URL."""
        if self._network:
            return f"postgresql+psycopg://timekeeper@/{database}?host={self._folder}&port={self.port}"
        return f"postgresql+psycopg://timekeeper@127.0.0.1:{self.port}/{database}"

    def make(self, template: str = "template1", tablespace: str = "pg_default") -> str:
        """Return the name of a new database."""
        name = f"t{next(self._names)}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} TABLESPACE {tablespace}")
        return name

    @contextmanager
    def made(self, template: str = "template1") -> Iterator[str]:
        """Give the URL of a new database, and take that away at the end."""
        name = self.make(template)
        yield self.url(name)
        self.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")


@contextmanager
def postgres(
    *, durable: bool = False, follows: Postgres | None = None, network: int = 0, folder: Path | None = None
) -> Iterator[Postgres]:
    """Run a server of its own, or one that follows another; its files lie in `folder`, or are gone afterwards."""
    with leftovers.folder("postgres") as own:
        server = Postgres(folder or own, durable=durable, follows=follows, network=network)
        server.start()
        try:
            yield server
        finally:
            server.stop()


class Databases:
    """Makes databases of one kind, empty or migrated."""

    def __init__(self, kind: str, folder: Path, server: Postgres | None) -> None:
        self.kind = kind
        self._folder = folder
        self._server = server
        self._names = count()
        with self.empty() as url:
            engine = make_engine(url)
            migrate.upgrade(engine)
            engine.dispose()
            self._template = folder / "template.sqlite"
            if server is None:
                shutil.copy(url.removeprefix("sqlite:///"), self._template)
            else:
                server.execute(f"CREATE DATABASE migrated TEMPLATE {url.rpartition('/')[2]}")

    def execute(self, statement: str, url: str) -> None:
        """Run a statement on a server's database."""
        assert self._server is not None
        self._server.execute(statement, url.rpartition("/")[2])

    @contextmanager
    def empty(self) -> Iterator[str]:
        """Give the URL of an empty database, and take that away at the end."""
        with self._made("template1") as url:
            yield url

    @contextmanager
    def migrated(self) -> Iterator[str]:
        """Give the URL of a database with all tables, and take that away at the end."""
        with self._made("migrated") as url:
            if self._server is None:
                shutil.copy(self._template, url.removeprefix("sqlite:///"))
            yield url

    @contextmanager
    def _made(self, template: str) -> Iterator[str]:
        if self._server is None:
            file = self._folder / f"t{next(self._names)}.sqlite"
            yield f"sqlite:///{file}"
            for suffix in ("", "-wal", "-shm"):
                Path(f"{file}{suffix}").unlink(missing_ok=True)
        else:
            with self._server.made(template) as url:
                yield url


@pytest.fixture(scope="module")
def server() -> Iterator[Postgres]:
    """Give a server that the tests of one file share, to make databases on."""
    with postgres() as running:
        yield running


@pytest.fixture(scope="session", params=KINDS)
def databases(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Databases]:
    """Give databases of either kind."""
    folder = tmp_path_factory.mktemp("databases")
    if request.param == "sqlite":
        yield Databases("sqlite", folder, None)
    else:
        with postgres() as server:
            yield Databases("postgresql", folder, server)


@pytest.fixture(scope="session")
def _kept_url(databases: Databases) -> Iterator[str]:
    with databases.migrated() as url:
        yield url


@pytest.fixture
def database_url(databases: Databases, _kept_url: str) -> Iterator[str]:
    """Give one migrated database. A server's is emptied after use: making one costs more than most tests."""
    if databases.kind == "sqlite":
        with databases.migrated() as url:
            yield url
        return
    yield _kept_url
    tables = ", ".join(table.name for table in Base.metadata.sorted_tables)
    databases.execute(f"TRUNCATE {tables} RESTART IDENTITY", _kept_url)
