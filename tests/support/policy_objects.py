# SPDX-License-Identifier: Apache-2.0
"""GpuPolicies in the simulated API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

from simulator import kinds
from simulator.kinds import ObjectKind
from simulator.store import Store
from slicekeeper.kube.client import Object
from slicekeeper.kube.policy_watch import GPU_POLICIES

_KIND = ObjectKind("GpuPolicy", GPU_POLICIES)


@contextmanager
def policies_served() -> Iterator[None]:
    """Have the simulated API server take GpuPolicies, as one does once the CRD is installed."""
    with (
        mock.patch.dict(kinds.BY_RESOURCE, {GPU_POLICIES: _KIND}),
        mock.patch.dict(kinds.BY_PATH, {(GPU_POLICIES.prefix, GPU_POLICIES.plural): _KIND}),
    ):
        yield


def apply_policy(store: Store, name: str, *match: str, **more: Any) -> Object:
    """Create a GpuPolicy or give it another spec; the API server counts up its generation with that."""
    spec = {"match": list(match), **more}

    def change(old: Object) -> Object:
        if old["spec"] != spec:
            old["metadata"]["generation"] += 1
            old["spec"] = spec
        return old

    if store.find(GPU_POLICIES, name, "") is None:
        return store.create(GPU_POLICIES, {"metadata": {"name": name, "generation": 1}, "spec": spec}, "")
    return store.update(GPU_POLICIES, name, "", change)
