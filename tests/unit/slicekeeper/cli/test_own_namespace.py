# SPDX-License-Identifier: Apache-2.0
"""What a user sees who has rights in one namespace: its pods, whatever the command would show of the cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from support.small_cluster import NAMESPACE, SmallCluster, small_cluster

from simulator.api_errors import ApiError
from slicekeeper import names
from slicekeeper.cli.main import cli
from slicekeeper.kube.client import NAMESPACES, PODS
from slicekeeper.net.timekeeper_client import TimekeeperClient


@pytest.fixture
def researcher(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[SmallCluster]:
    """A cluster in which the kubeconfig's user has the role `edit` in its context's namespace."""
    with small_cluster() as made:
        made.pod("mine", annotations={names.gpu_annotation("c"): "n0-0"}, nodeName="n0")
        made.client.create(NAMESPACES, {"metadata": {"name": "other"}})
        pod = {key: made.get("mine")["metadata"][key] for key in ("labels", "annotations")}
        made.client.create(PODS, {"metadata": {**pod, "name": "theirs"}, "spec": made.get("mine")["spec"]}, "other")
        answer = made.api.answer

        def checked(method: str, call: Any) -> Any:
            if call.resource.plural in ("nodes", "pods") and call.namespace != NAMESPACE:
                raise ApiError(403, "Forbidden", f"{call.resource.plural} is forbidden at the cluster scope")
            return answer(method, call)

        monkeypatch.setattr(made.api, "answer", checked)
        monkeypatch.setattr(TimekeeperClient, "workloads", lambda *_: [])
        context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": NAMESPACE}}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "c",
            "clusters": [{"name": "c", "cluster": {"server": made.server.url}}],
            "users": [{"name": "u", "user": {}}],
            "contexts": [context],
        }
        (tmp_path / "kubeconfig").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "kubeconfig"))
        yield made


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli, list(arguments))


def test_pods_without_a_namespace_are_those_of_the_context(researcher: SmallCluster) -> None:
    done = run("pods")
    assert done.exit_code == 0, done.output
    assert "mine" in done.stdout
    assert "theirs" not in done.stdout
    assert "only namespace team-a: you may not list the pods of all namespaces" in done.stderr


@pytest.mark.parametrize("command", [["nodes"], ["nodes", "-o", "wide"], ["top"], ["top", "--once"]])
def test_tables_of_the_cluster_show_the_pods_of_the_context(researcher: SmallCluster, command: list[str]) -> None:
    done = run(*command)
    assert done.exit_code == 0, done.output
    assert "mine" in done.stdout
    assert "n0-0" in done.stdout
    assert "theirs" not in done.stdout
    assert "These are the pods of namespace team-a with their GPUs" in done.stderr


@pytest.mark.parametrize("command", [["nodes", "-o", "json"], ["top", "-o", "yaml"], ["pods", "-n", "other"]])
def test_what_a_program_reads_or_a_user_names_is_refused(researcher: SmallCluster, command: list[str]) -> None:
    done = run(*command)
    assert done.exit_code != 0
    assert "forbidden" in f"{done.output}{done.exception}"


def test_explain_takes_the_namespace_of_the_context(researcher: SmallCluster) -> None:
    done = run("explain", "mine")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Pod team-a/mine has its place since ")
