# SPDX-License-Identifier: Apache-2.0
"""What local mode leaves in a folder counts only while it runs, and never before what a user names."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest
import yaml
from click.testing import CliRunner, Result
from support.answering_server import AnsweringServer

from slicekeeper.cli.main import cli

EMPTY = b'{"items": [], "asOf": "2026-01-01T00:00:00Z", "nextCursor": null}'


class Folder:
    """A folder in which local mode has run, a user's home, and the servers that a command might ask."""

    def __init__(self, root: Path) -> None:
        self.local, self.cluster, self.other = (AnsweringServer(EMPTY) for _ in range(3))
        self.home = root / ".slicekeeper"
        self.home.mkdir()
        self.config = self.home / "config.yaml"
        local = {"kubernetes": {"server": self.local.url}, "timekeeperClient": {"url": self.local.url}}
        self.config.write_text(yaml.safe_dump(local))
        self.lock: IO[str] | None = (self.home / "lock").open("w")
        fcntl.flock(self.lock, fcntl.LOCK_EX)
        self.kubeconfig = self.kubeconfig_at(root / "kubeconfig")
        self.settings = root / "settings.yaml"
        self.settings.write_text(yaml.safe_dump({"timekeeperClient": {"url": self.other.url}}))
        self.environ: dict[str, str | None] = {}

    def kubeconfig_at(self, file: Path) -> Path:
        file.parent.mkdir(exist_ok=True)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "prod",
            "clusters": [{"name": "prod", "cluster": {"server": self.cluster.url}}],
            "users": [{"name": "jane", "user": {"token": "janes"}}],
            "contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "jane", "namespace": "team"}}],
        }
        file.write_text(yaml.safe_dump(config))
        return file

    def end_local_mode(self) -> None:
        """Have it end as when it is killed: the kernel lets go of the lock, and every file stays."""
        if self.lock is not None:
            self.lock.close()
            self.lock = None

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments, env=self.environ)

    def asked(self) -> list[str]:
        """Return who was asked since the last time."""
        servers = {"local": self.local, "cluster": self.cluster, "other": self.other}
        found = [name for name, server in servers.items() if server.asked]
        for server in servers.values():
            server.asked.clear()
        return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Folder]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    made = Folder(tmp_path)
    yield made
    made.end_local_mode()
    for server in (made.local, made.cluster, made.other):
        server.close()


def test_local_mode_is_used_without_a_word_if_there_is_nothing_else(folder: Folder) -> None:
    for command in (("budget", "list"), ("nodes",)):
        done = folder.run(*command)
        assert (done.exit_code, done.stderr, folder.asked()) == (0, "", ["local"])


@pytest.mark.parametrize("by", ["folder", "SLICEKEEPER_HOME"])
def test_what_an_ended_local_mode_has_left_is_not_used(
    folder: Folder, by: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.end_local_mode()
    if by == "SLICEKEEPER_HOME":
        folder.environ["SLICEKEEPER_HOME"] = str(folder.home)
        monkeypatch.chdir("/")
    for command in (("budget", "list"), ("nodes",)):
        done = folder.run(*command)
        assert (done.exit_code, folder.asked()) == (1, [])
        told = str(done.exception)
        assert "no cluster is configured" in told
        assert "the local mode in " in told
        assert told.endswith(" has ended")
    folder.environ["KUBECONFIG"] = str(folder.kubeconfig)
    for command in (("budget", "list"), ("nodes",)):
        done = folder.run(*command)
        assert (done.exit_code, done.stderr, folder.asked()) == (0, "", ["cluster"])
    folder.environ["KUBECONFIG"] = ""
    folder.kubeconfig_at(Path(".kube/config") if by == "folder" else folder.home.parent / ".kube/config")
    assert (folder.run("nodes").exit_code, folder.asked()) == (0, ["cluster"])


@pytest.mark.parametrize(
    ("named", "asked"),
    [
        ("$KUBECONFIG", "cluster"),
        ("--kubeconfig", "cluster"),
        ("--context", "cluster"),
        ("$SLICEKEEPER_CONFIG", "other"),
        ("--config", "other"),
        ("$SLICEKEEPER_TIMEKEEPER_CLIENT_URL", "other"),
        ("$SLICEKEEPER_KUBERNETES_SERVER", "other"),
    ],
)
def test_what_a_user_names_comes_before_local_mode_and_is_told(folder: Folder, named: str, asked: str) -> None:
    values = {
        "KUBECONFIG": str(folder.kubeconfig),
        "SLICEKEEPER_CONFIG": str(folder.settings),
        "SLICEKEEPER_TIMEKEEPER_CLIENT_URL": folder.other.url,
        "SLICEKEEPER_KUBERNETES_SERVER": folder.other.url,
    }
    options = {"--kubeconfig": str(folder.kubeconfig), "--context": "prod", "--config": str(folder.settings)}
    arguments = ["budget", "list"]
    if named.startswith("$"):
        folder.environ[named[1:]] = values[named[1:]]
    elif named == "--config":
        arguments = [named, options[named], *arguments]
    else:
        folder.kubeconfig_at(folder.home.parent / ".kube/config")
        arguments += [named, options[named]]
    done = folder.run(*arguments)
    assert (done.exit_code, folder.asked()) == (0, [asked]), done.exception
    (told,) = done.stderr.splitlines()
    assert told.startswith(f"slicekeeper: using {named}")
    assert told.endswith(f", not the local mode in {folder.home}; for that, set SLICEKEEPER_CONFIG={folder.config}")


def test_local_mode_can_be_named_although_a_cluster_is_configured(folder: Folder) -> None:
    folder.environ |= {"KUBECONFIG": str(folder.kubeconfig), "SLICEKEEPER_CONFIG": str(folder.config)}
    for command in (("budget", "list"), ("nodes",)):
        done = folder.run(*command)
        assert (done.exit_code, done.stderr, folder.asked()) == (0, "", ["local"])


def test_local_mode_comes_before_the_usual_kubeconfig_and_that_is_told(folder: Folder) -> None:
    folder.kubeconfig_at(folder.home.parent / ".kube/config")
    done = folder.run("budget", "list")
    assert (done.exit_code, folder.asked()) == (0, ["local"])
    told = f"using the local mode in {folder.home}, not ~/.kube/config; for that, set KUBECONFIG=~/.kube/config"
    assert done.stderr.splitlines() == [f"slicekeeper: {told}"]
    done = folder.run("budget", "get")
    assert (done.exit_code, folder.asked()) == (2, []), "the namespace of a context of another cluster is not meant"
    assert "give a NAMESPACE" in done.output


def test_completion_prints_nothing_beside_what_it_completes(folder: Folder) -> None:
    folder.kubeconfig_at(folder.home.parent / ".kube/config")
    folder.environ |= {
        "_SLICEKEEPER_COMPLETE": "bash_complete",
        "COMP_WORDS": "slicekeeper budget statement ",
        "COMP_CWORD": "3",
    }
    done = CliRunner().invoke(cli, env=folder.environ, prog_name="slicekeeper")
    assert (done.stderr, folder.asked()) == ("", ["local"])


def test_a_kubeconfig_that_is_missing_is_blamed_itself(folder: Folder) -> None:
    folder.end_local_mode()
    folder.kubeconfig_at(folder.home.parent / ".kube/config")
    folder.environ["KUBECONFIG"] = "/nowhere/config"
    for command in (("budget", "list"), ("nodes",), ("budget", "get")):
        done = folder.run(*command)
        assert (done.exit_code, folder.asked()) == (1, [])
        assert str(done.exception).startswith("$KUBECONFIG is '/nowhere/config': there is no such file; name another")
        assert "~/.kube/config" not in str(done.exception)
    done = folder.run("nodes", "--kubeconfig", "/nowhere/else")
    assert str(done.exception).startswith("kubeconfig is '/nowhere/else': there is no such file")
