# SPDX-License-Identifier: Apache-2.0
"""Record on a GpuBudget, ClusterGpuBudget or GpuPolicy who changed its spec, for the ledger's audit log.

The API server increments an object's generation after this review if the spec differs. Nothing else of an object is
touched. A policy of the API server (`slicekeeper-budget-writers`) refuses a forged annotation.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from slicekeeper import names
from slicekeeper.kube import changed_by
from slicekeeper.untyped_json import as_map
from slicekeeper.wire.json_patch import JsonPatch, escape
from webhook.json_patch import PatchBuilder

KINDS: Final = ("GpuBudget", "ClusterGpuBudget", "GpuPolicy")

_ANNOTATIONS: Final = "/metadata/annotations"


def note_writer(obj: Mapping[str, Any], old: Mapping[str, Any], user: str) -> JsonPatch:
    """Return the patch that names `user` if the spec is new; `old` is empty for a new object.

    If an update without a new spec omits the name, as `kubectl replace` does, it is restored.
    """
    generation = as_map(old.get("metadata")).get("generation") if old else 0
    if not isinstance(generation, int):
        return []
    annotations = as_map(obj.get("metadata")).get("annotations")
    found, claim = as_map(annotations).get(names.CHANGED_BY), changed_by.value(generation + 1, user)
    if not old or obj.get("spec") != old.get("spec"):
        wanted = claim
    elif found in (None, claim):  # omitted; or recorded before, and then another webhook restored the old spec
        wanted = as_map(as_map(old.get("metadata")).get("annotations")).get(names.CHANGED_BY)
    else:
        return []
    patch = PatchBuilder()
    if wanted is not None:
        patch.members(annotations, _ANNOTATIONS, {names.CHANGED_BY: wanted})
    elif found is not None and found == claim:
        patch.remove(f"{_ANNOTATIONS}/{escape(names.CHANGED_BY)}")
    return patch.operations
