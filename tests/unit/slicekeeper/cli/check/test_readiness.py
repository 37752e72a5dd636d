# SPDX-License-Identifier: Apache-2.0
"""Why a part is not ready."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.checked_cluster import DEPLOYMENTS, OUR_PODS, Server, check


def waiting_pod(name: str, **status: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": {"app.kubernetes.io/name": "webhook"}}, "status": status}


@pytest.mark.parametrize(
    ("pods", "status", "problem", "remedy"),
    [
        (
            [waiting_pod("w-1", conditions=[
                {"type": "PodScheduled", "status": "False", "message": "pod has unbound PersistentVolumeClaims"},
            ])],
            {},
            ": pod w-1: pod has unbound PersistentVolumeClaims",
            "kubectl describe pod -n slicekeeper-system w-1",
        ),
        (
            [waiting_pod("w-1", containerStatuses=[
                {"name": "webhook", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}},
            ])],
            {},
            ": pod w-1: ImagePullBackOff: no such image",
            "kubectl describe pod -n slicekeeper-system w-1; docs/install.md#images",
        ),
        (
            [waiting_pod("w-1", containerStatuses=[{"name": "webhook", "state": {"waiting": {
                "reason": "CrashLoopBackOff", "message": "back-off"}}}])],
            {},
            "",
            "kubectl logs -n slicekeeper-system deployment/webhook",
        ),
        (
            [],
            {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": "insufficient quota to match"}]},
            ": no pod can be created: insufficient quota to match",
            "docs/install.md#platforms lists the requirements of platforms",
        ),
    ],
)  # fmt: skip
def test_why_a_part_is_not_ready_is_told(
    server: Server, pods: list[Any], status: dict[str, Any], problem: str, remedy: str
) -> None:
    server.install()
    server.objects[f"{DEPLOYMENTS}/webhook"]["status"] = status
    server.objects[OUR_PODS] += pods
    found = json.loads(check(server, "-o", "json").stdout)
    assert found == [{"problem": f"deployment webhook has no ready pod{problem}", "remedy": remedy}]
    assert server.created == [], "nobody is asked who is known to be away"
