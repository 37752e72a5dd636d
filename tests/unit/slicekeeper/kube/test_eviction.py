# SPDX-License-Identifier: Apache-2.0
"""What an eviction asks for."""

from __future__ import annotations

from typing import Any
from unittest import mock

import pytest

from slicekeeper.kube.eviction import evict


@pytest.mark.parametrize(
    ("own", "of_deletion", "asked"),
    [(30, None, None), (None, None, None), (3_600, None, None), (3_601, None, 3_600), (2**63 - 1, None, 3_600),
     (30, 2**40, 3_600)],
)  # fmt: skip
def test_a_pod_gets_its_own_grace_but_at_most_an_hour(
    own: int | None, of_deletion: int | None, asked: int | None
) -> None:
    pod: dict[str, Any] = {"metadata": {"name": "a", "namespace": "team", "uid": "u"}, "spec": {}}
    if own is not None:
        pod["spec"]["terminationGracePeriodSeconds"] = own
    if of_deletion is not None:
        pod["metadata"] |= {"deletionTimestamp": "x", "deletionGracePeriodSeconds": of_deletion}
    client = mock.Mock()
    evict(client, pod)
    assert client.create.call_args.args[1]["deleteOptions"].get("gracePeriodSeconds") == asked
