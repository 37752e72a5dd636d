# SPDX-License-Identifier: Apache-2.0
"""Manifests, stories, and the sidecar's surroundings on a node."""

from pathlib import Path
from typing import Any

import pytest
from support.small_cluster import api_served

from simulator.api import Api, Call
from simulator.cluster import Cluster, TokenBook
from simulator.commands import examples_folder
from simulator.initial_objects import fill, node
from simulator.sidecar_process import environment, field, mount_volumes, on_host
from simulator.story import read
from simulator.submit import create, documents
from slicekeeper.clock import ManualClock
from slicekeeper.config.settings import Resources, Settings
from slicekeeper.errors import SettingsError
from slicekeeper.kube.client import PODS

POD = "apiVersion: v1\nkind: Pod\nmetadata: {name: %s}\n"


def test_documents_and_lists_come_in_the_files_order() -> None:
    text = POD % "a" + "---\n---\n" + POD % "b" + "---\nkind: List\nitems:\n- {apiVersion: v1, kind: Namespace}\n"
    assert [(d["kind"], (d.get("metadata") or {}).get("name")) for d in documents(text, "f")] == [
        ("Pod", "a"),
        ("Pod", "b"),
        ("Namespace", None),
    ]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("a: [", "not valid YAML"),
        ("a: 2026-13-01", "not valid YAML"),
        ("just text", "not an object"),
        ("apiVersion: v1\nkind: Secret\n", "kind is 'Secret' of 'v1'"),
    ],
)
def test_what_is_no_manifest_of_ours_is_named(text: str, what: str) -> None:
    with pytest.raises(SettingsError, match=what):
        list(documents(text, "f"))


def test_the_examples_are_a_story_whose_files_are_all_there() -> None:
    folder = examples_folder()
    story = read(folder)
    told = {step.submit for step in story.steps} | {story.policy, "story.yaml", ""}
    assert {path.name for path in folder.glob("*.yaml")} == told - {""}
    for name in told - {"", story.policy, "story.yaml"}:
        assert list(documents((folder / name).read_text(), name))


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("steps:\n- {submitt: a.yaml}\n", "did you mean"),
        ("steps:\n- {submit: absent.yaml}\n", r"absent\.yaml is not in"),
        ("steps:\n- {expect: maybe}\n", "expect"),
    ],
)
def test_a_story_with_a_mistake_names_it(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "story.yaml").write_text(text)
    with pytest.raises(SettingsError, match=what):
        read(tmp_path)


def test_a_folder_without_a_story_is_submitted_in_order(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match=r"no \*\.yaml"):
        read(tmp_path)
    for name in ("b.yaml", "a.yaml"):
        (tmp_path / name).write_text(POD % "x")
    assert [step.submit for step in read(tmp_path).steps] == ["a.yaml", "b.yaml"]


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="one of T4, L4"):
        node("n", 1, "A1000", Resources())


def sidecar_pod() -> dict[str, Any]:
    return {
        "metadata": {"name": "p", "namespace": "default", "uid": "u", "annotations": {"a/b.c": "x"}},
        "spec": {
            "nodeName": "n",
            "volumes": [
                {
                    "name": "token",
                    "projected": {
                        "sources": [
                            {
                                "serviceAccountToken": {
                                    "audience": "timekeeper",
                                    "path": "token",
                                    "expirationSeconds": 3600,
                                }
                            }
                        ]
                    },
                },
                {"name": "spool", "emptyDir": {}},
            ],
        },
    }


def test_a_sidecar_gets_its_volumes_token_and_environment(tmp_path: Path) -> None:
    cluster = Cluster(ManualClock(0))
    fill(cluster.store, Settings(), 1, 1, "T4")
    pod = sidecar_pod()
    made = cluster.store.create(PODS, pod, "default")
    pod["metadata"]["uid"] = made["metadata"]["uid"]
    container = {
        "env": [
            {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
            {"name": "TOKEN_FILE", "value": "/var/run/secrets/slicekeeper/token"},
            {"name": "PLAIN", "value": "/var/runner"},
            {"name": "EMPTY"},
        ],
        "volumeMounts": [
            {"name": "token", "mountPath": "/var/run/secrets/slicekeeper"},
            {"name": "spool", "mountPath": "/var/spool/slicekeeper"},
        ],
    }
    mounted = mount_volumes(pod, container, tmp_path, cluster.tokens)
    env = environment(pod, container, mounted)
    assert env["NAME"] == "p"
    assert env["PLAIN"] == "/var/runner"
    assert env["EMPTY"] == ""
    assert env["SLICEKEEPER_SIDECAR_SPOOL_DIR"] == str(tmp_path / "volumes" / "spool")
    token = Path(env["TOKEN_FILE"]).read_text()
    assert cluster.tokens.review({"token": token, "audiences": ["timekeeper"]})["authenticated"]
    assert not TokenBook(cluster.store).review({"token": token, "audiences": ["timekeeper"]})["authenticated"]
    assert not any(key.startswith("SLICEKEEPER_HOME") for key in env)


def test_fields_are_resolved_as_kubelet_does() -> None:
    pod = sidecar_pod()
    assert field(pod, "metadata.annotations['a/b.c']") == "x"
    assert field(pod, "metadata.labels['none']") == ""
    assert field(pod, "spec.nodeName") == "n"
    assert on_host("/a/b/c", {"/a": "/x", "/a/b": "/y"}) == "/y/c"


def test_warnings_reach_who_submits() -> None:
    class Warner(Api):
        def answer(self, method: str, call: Call) -> tuple[int, Any, list[str]]:
            code, body, _ = super().answer(method, call)
            return code, body, ['say "when", please', "twice\\thrice"]

    cluster = Cluster(ManualClock(0))
    fill(cluster.store, Settings(), 1, 1, "T4")
    manifest = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": [{"name": "c"}]}}
    with api_served(Warner(cluster)) as (_, client):
        outcome = create(client, manifest, "", "f")
    assert outcome.warnings == ('say "when", please', "twice\\thrice")
    assert (outcome.namespace, outcome.admitted) == ("default", True)
