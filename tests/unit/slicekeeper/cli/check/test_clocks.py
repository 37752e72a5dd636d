# SPDX-License-Identifier: Apache-2.0
"""Nodes' clocks that are not the API server's."""

from __future__ import annotations

from typing import Any

import pytest
from support.checked_cluster import LEASES, Server, found_on


def lease(name: str, renewed: str, written: str, manager: str = "kubelet") -> dict[str, Any]:
    """Return a node's Lease as the API server keeps it: the instant of the write is in managedFields."""
    fields = {"f:holderIdentity": {}, "f:leaseDurationSeconds": {}, "f:renewTime": {}}
    entries = [
        {
            "manager": "kubectl",
            "operation": "Update",
            "time": "2026-01-01T00:00:00Z",
            "fieldsV1": {"f:metadata": {"f:labels": {}}},
        },
        {"manager": manager, "operation": "Update", "time": written, "fieldsV1": {"f:spec": fields}},
    ]
    spec = {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": renewed}
    return {"metadata": {"name": name, "namespace": "kube-node-lease", "managedFields": entries}, "spec": spec}


@pytest.mark.parametrize(
    ("renewed", "told"),
    [
        ("2026-11-20T10:00:00.734000Z", ""),
        ("2026-11-20T10:00:09.900000Z", ""),
        ("2026-11-20T09:59:51.000000Z", ""),
        ("2026-11-20T10:00:12.400000Z", "its clock is 12 s ahead of the API server's"),
        ("2026-11-20T09:55:00.000000Z", "its clock is 300 s behind the API server's"),
        ("2027-11-20T10:00:00.000000Z", "its clock is 31536000 s ahead of the API server's"),
    ],
)
def test_a_clock_that_is_not_the_api_servers_is_named(server: Server, renewed: str, told: str) -> None:
    server.install()
    server.objects[LEASES] += [
        lease("one", renewed, "2026-11-20T10:00:00Z"),
        lease("two", "2026-11-20T08:00:00.000000Z", "2026-11-20T08:00:00Z", manager="k3s"),
        {"metadata": {"name": "three"}, "spec": {"renewTime": "1999-01-01T00:00:00Z"}},
    ]
    found = found_on(server, "")
    assert [problem.startswith(f"node one: {told}") for problem, _ in found] == ([True] if told else [])
    assert all("chronyc makestep" in remedy for _, remedy in found)
