# SPDX-License-Identifier: Apache-2.0
"""Commands against the simulated API server: `submit` reaches the cluster that kubectl would, `check` knows it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner, Result
from support.small_cluster import NAMESPACE, small_cluster

from simulator.api import ApiServer
from slicekeeper import names
from slicekeeper.cli.main import cli
from slicekeeper.kube.client import PODS, KubeClient

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\nspec: {containers: [{name: c, image: i}]}\n"


class Commands:
    """A command line, a kubeconfig whose second context names the cluster and a namespace, and the cluster."""

    def __init__(self, server: ApiServer, client: KubeClient, folder: Path) -> None:
        self.client = client
        self.kubeconfig = folder / "kubeconfig"
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "gone",
            "clusters": [
                {"name": "gone", "cluster": {"server": "http://127.0.0.1:9"}},
                {"name": "here", "cluster": {"server": server.url}},
            ],
            "users": [{"name": "jane", "user": {}}],
            "contexts": [
                {"name": name, "context": {"cluster": name, "user": "jane", "namespace": NAMESPACE}}
                for name in ("gone", "here")
            ],
        }
        self.kubeconfig.write_text(yaml.safe_dump(config))

    def __call__(self, *arguments: str, stdin: str = "", **environ: str) -> Result:
        return CliRunner().invoke(cli, arguments, input=stdin, env=environ)

    def pods(self) -> list[str]:
        return [f"{pod['metadata']['namespace']}/{pod['metadata']['name']}" for pod in self.client.list(PODS)[0]]


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    with small_cluster() as made:
        yield Commands(made.server, made.client, tmp_path)


def test_submit_reaches_the_cluster_of_the_kubeconfig_and_its_namespace(commands: Commands) -> None:
    named = {"KUBECONFIG": str(commands.kubeconfig)}
    done = commands("submit", "-f", "-", "--context", "here", stdin=POD % "a", **named)
    assert done.exit_code == 0, done.exception
    done = commands("submit", "-f", "-", "--context=here", f"--kubeconfig={commands.kubeconfig}", stdin=POD % "b")
    assert done.exit_code == 0, done.exception
    assert commands.pods() == [f"{NAMESPACE}/a", f"{NAMESPACE}/b"]
    done = commands("submit", "-f", "-", stdin=POD % "c", **named)
    assert "no answer from http://127.0.0.1:9" in str(done.exception)
    done = commands("submit", "-f", "-", stdin=POD % "c", KUBECONFIG="/nowhere")
    assert "$KUBECONFIG is '/nowhere': there is no such file" in str(done.exception)


def test_check_in_local_mode_looks_at_the_pods_and_repairs_nothing(commands: Commands) -> None:
    reached = ("--context", "here", "--kubeconfig", str(commands.kubeconfig))
    pod = yaml.safe_load(POD % "held")
    commands.client.create(PODS, {**pod, "metadata": {"name": "held", "finalizers": [names.FINALIZER]}}, NAMESPACE)
    done = commands("check", *reached)
    assert (done.exit_code, done.stdout[:22]) == (0, "nothing is unmetered; ")
    for option in ("--repair", "--break-glass"):
        done = commands("check", option, *reached)
        assert "this is local mode" in str(done.exception)
    assert commands.client.get(PODS, "held", NAMESPACE)["metadata"]["finalizers"] == [names.FINALIZER]
    limits = {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4}
    container = {"name": "c", "image": "i", "resources": {"limits": limits}}
    commands.client.create(PODS, {**pod, "metadata": {"name": "free"}, "spec": {"containers": [container]}}, NAMESPACE)
    done = commands("check", *reached)
    assert (done.exit_code, f"pod {NAMESPACE}/free uses GPUs unmetered" in done.stdout) == (1, True)
