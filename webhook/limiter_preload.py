# SPDX-License-Identifier: Apache-2.0
"""Which containers load the limiter, and the variable that makes the dynamic linker do so."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from slicekeeper import names
from webhook.json_patch import PatchBuilder
from webhook.review_inputs import Case, ClusterContext

PRELOAD: Final = "LD_PRELOAD"


def is_wanted(case: Case, cluster: ClusterContext) -> bool:
    """Whether the pods' shares get the limiter: an observed namespace is not limited."""
    return cluster.webhook.injection == "limiter" and case.policy.mode == "enforce"


def variables(patch: PatchBuilder, env: Sequence[Mapping[str, Any]], pointer: str) -> list[Mapping[str, Any]]:
    """Return what a container's `env` lacks; if it preloads a library of its own, put ours before that instead.

    `pointer` is where `env` is in the pod.
    """
    # The last of several entries is the one that counts; another injector may have put its library first.
    last = max((index for index, entry in enumerate(env) if entry.get("name") == PRELOAD), default=-1)
    if last < 0:
        return [{"name": PRELOAD, "value": names.LIBRARY_PATH}]
    own = env[last].get("value") or ""
    if names.LIBRARY_PATH not in own.replace(" ", ":").split(":"):
        value = f"{names.LIBRARY_PATH}:{own}" if own else names.LIBRARY_PATH
        patch.member(env[last], f"{pointer}/{last}", "value", value)
    return []
