# SPDX-License-Identifier: Apache-2.0
"""Manifests as they are submitted: in the file's order, with what is wrong named, and with the webhook's warnings."""

from typing import Any

import pytest
from support.manual_clock import ManualClock
from support.small_cluster import api_served

from simulator.api import Api, Call
from simulator.cluster import Cluster
from simulator.initial_objects import fill
from simulator.submit import create, documents
from slicekeeper.config.settings import Settings
from slicekeeper.errors import SettingsError

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
