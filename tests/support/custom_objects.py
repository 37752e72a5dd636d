# SPDX-License-Identifier: Apache-2.0
"""Objects of our own kinds in the simulated API server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

from simulator import kinds
from simulator.kinds import ObjectKind
from simulator.store import Store
from slicekeeper import names
from slicekeeper.kube import changed_by
from slicekeeper.kube.client import Object, Resource
from slicekeeper.kube.policy_watch import GPU_POLICIES


@contextmanager
def kinds_served(*found: ObjectKind) -> Iterator[None]:
    """Have the simulated API server take some kinds, as one does once the CRDs are installed."""
    with (
        mock.patch.dict(kinds.BY_RESOURCE, {kind.resource: kind for kind in found}),
        mock.patch.dict(kinds.BY_PATH, {(kind.resource.prefix, kind.resource.plural): kind for kind in found}),
    ):
        yield


policies_served = partial(kinds_served, ObjectKind("GpuPolicy", GPU_POLICIES))


def apply(store: Store, resource: Resource, namespace: str, name: str, spec: Object, by: str = "") -> Object:
    """Create an object, or replace its spec, upon which the API server increases its generation.

    `by` is the user that the webhook records; empty: the webhook is down.
    """

    def change(old: Object) -> Object:
        if old["spec"] != spec:
            old["metadata"]["generation"] += 1
            old["spec"] = spec
            note = changed_by.value(old["metadata"]["generation"], by)
            if note is not None:
                old["metadata"].setdefault("annotations", {})[names.CHANGED_BY] = note
        return old

    if store.find(resource, name, namespace) is None:
        new = change({"metadata": {"name": name, "generation": 0}, "spec": None})
        return store.create(resource, new, namespace)
    return store.update(resource, name, namespace, change)


def apply_policy(store: Store, name: str, *match: str, **more: Any) -> Object:
    """Create a GpuPolicy, or give it another spec."""
    return apply(store, GPU_POLICIES, "", name, {"match": [*match], **more})
