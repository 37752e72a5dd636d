# SPDX-License-Identifier: Apache-2.0
"""How commands reach the timekeeper: by its own URL, or by way of the API server that kubectl would speak to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from support.answering_server import AnsweringServer

from slicekeeper import names
from slicekeeper.cli.main import cli

EMPTY = b'{"items": [], "asOf": "2026-01-01T00:00:00Z", "nextCursor": null}'


class Commands:
    """The command line of a user whose kubeconfig has two contexts."""

    def __init__(self, folder: Path) -> None:
        self.own, self.cluster, self.second = (AnsweringServer(EMPTY) for _ in range(3))
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "first",
            "clusters": [
                {"name": name, "cluster": {"server": server.url}}
                for name, server in (("first", self.cluster), ("second", self.second))
            ],
            "users": [{"name": "jane", "user": {"token": "janes"}}],
            "contexts": [
                {"name": name, "context": {"cluster": name, "user": "jane", "namespace": f"of-{name}"}}
                for name in ("first", "second")
            ],
        }
        self.kubeconfig = folder / "kubeconfig"
        self.kubeconfig.write_text(yaml.safe_dump(config))
        self.environ: dict[str, str | None] = {
            "SLICEKEEPER_HOME": str(folder),
            "HOME": str(folder),
            "KUBECONFIG": str(self.kubeconfig),
            "SLICEKEEPER_TIMEKEEPER_CLIENT_URL": None,
        }

    def run(self, *arguments: str) -> Result:
        return CliRunner().invoke(cli, arguments, env=self.environ)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    commands = Commands(tmp_path)
    yield commands
    for server in (commands.own, commands.cluster, commands.second):
        server.close()


def test_without_a_url_the_api_server_of_the_kubeconfig_is_asked_as_its_user(commands: Commands) -> None:
    for group in ("budget", "parent"):
        assert commands.run(group, "list").exit_code == 0
    root = f"/apis/{names.API}"
    assert commands.cluster.asked == [(f"{root}/budgets", "Bearer janes"), (f"{root}/parents", "Bearer janes")]
    assert commands.run("budget", "list", "--context", "second").exit_code == 0
    assert commands.second.asked == [(f"{root}/budgets", "Bearer janes")]


def test_a_url_of_the_settings_comes_before_the_kubeconfig_and_a_named_context_before_both(commands: Commands) -> None:
    commands.environ["SLICEKEEPER_TIMEKEEPER_CLIENT_URL"] = commands.own.url
    assert commands.run("budget", "list").exit_code == 0
    assert (commands.own.asked, commands.cluster.asked) == ([("/api/v1/budgets", "")], [])
    assert commands.run("budget", "list", "--context=first").exit_code == 0
    assert len(commands.cluster.asked) == 1


@pytest.mark.parametrize(
    ("status", "answer", "told"),
    [
        (404, b"404 page not found\n", "the API server does not offer the timekeeper"),
        (503, b"service unavailable\n", "kubectl get apiservice v1.timekeeper.slicekeeper.io"),
        (503, json.dumps({"kind": "Status", "reason": "ServiceUnavailable"}).encode(), "does not reach"),
        (404, b'{"code": "account-unknown", "detail": "there is none"}', "there is none"),
        (503, b'{"code": "storage-full", "detail": "the disk is full"}', "the disk is full"),
        (403, b'{"reason": "Forbidden", "message": "jane may not"}', "jane may not"),
    ],
)
def test_what_an_api_server_says_by_itself_is_told_in_plainer_words(
    commands: Commands, status: int, answer: bytes, told: str
) -> None:
    commands.cluster.status, commands.cluster.answer = status, answer
    done = commands.run("budget", "list")
    assert told in str(done.exception)
