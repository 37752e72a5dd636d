# SPDX-License-Identifier: Apache-2.0
"""Rights that the parts need and do not have."""

from __future__ import annotations

import json

import pytest
from support.checked_cluster import Server, check, problems, with_registry

from slicekeeper.cli.check.rights import ALWAYS


@pytest.mark.parametrize(
    ("old", "new", "right", "component"),
    [
        (
            "  mode: enforce",
            "  mode: enforce\n      budget: {enforcement: hard}",
            ("timekeeper", "create", "pods/eviction"),
            "components.hardBudgets=true",
        ),
        (
            "  mode: enforce",
            "  mode: enforce\n      audit: evict",
            ("nodeagent", "create", "pods/eviction"),
            "components.auditEvictions=true",
        ),
        (
            "    webhook:\n",
            "    timekeeper: {weight: quota}\n    webhook:\n",
            ("timekeeper", "list", "resourcequotas"),
            "components.quotaWeight=true",
        ),
    ],
)
def test_rights_that_a_policy_needs_are_missed(
    server: Server, old: str, new: str, right: tuple[str, str, str], component: str
) -> None:
    def change(text: str) -> str:
        text = with_registry(text)
        assert old in text
        if "weight" in new:
            return text.replace("    timekeeper:\n", "    timekeeper:\n      weight: quota\n", 1)
        return text.replace(old, new, 1)

    server.install_manifests(change)
    assert problems(check(server, "-o", "json")) == []
    server.refused.add(right)
    [found] = json.loads(check(server, "-o", "json").stdout)
    assert "and the {} may not {} {}".format(*right) in found["problem"]
    assert component in found["remedy"]


def test_rights_that_the_parts_always_need_are_missed(server: Server) -> None:
    server.install()
    for lost in (ALWAYS, ALWAYS[:1]):
        server.refused = {(right.account, right.verb, right.resource) for right in lost}
        found = json.loads(check(server, "-o", "json").stdout)
        wanted = [f"the {right}: its role or its binding is missing or was changed" for right in lost]
        assert [one["problem"] for one in found] == wanted
        assert all("kubectl apply" in one["remedy"] for one in found)
