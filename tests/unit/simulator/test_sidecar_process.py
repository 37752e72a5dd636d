# SPDX-License-Identifier: Apache-2.0
"""The sidecar as a child process: what kubelet would give its container."""

from pathlib import Path
from typing import Any

from support.manual_clock import ManualClock

from simulator.cluster import Cluster
from simulator.identities import TokenBook
from simulator.initial_objects import fill
from simulator.sidecar_process import environment, field, mount_volumes, on_host
from slicekeeper.config.settings import Settings
from slicekeeper.kube.client import PODS


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
