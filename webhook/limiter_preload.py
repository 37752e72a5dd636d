# SPDX-License-Identifier: Apache-2.0
"""Which containers load the limiter, and the variables that make them do so.

A user's own `LD_PRELOAD` is left alone, since Kubernetes would refuse a second `kubectl apply` of a pod whose value was
changed. Such a container gets a variable that tells the node agent to load the limiter by `/etc/ld.so.preload` alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from slicekeeper import names
from slicekeeper.kube.objects import EnvVar
from webhook.review_inputs import Case, ClusterContext

PRELOAD: Final = "LD_PRELOAD"
BESIDE_OWN: Final = EnvVar(names.LIMITER_VARIABLE, names.LIBRARY_PATH)
_OWN: Final = EnvVar(PRELOAD, names.LIBRARY_PATH)


def is_wanted(case: Case, cluster: ClusterContext) -> bool:
    """Whether the pods' shares get the limiter: an observed namespace is not limited."""
    return cluster.webhook.injection == "limiter" and case.policy.mode == "enforce"


def variables(env: Sequence[EnvVar]) -> list[EnvVar]:
    """Return what a container's `env` lacks; a value with our library in it is one that an earlier release wrote."""
    own = [entry for entry in env if entry.name == PRELOAD]
    if not own:
        return [_OWN]
    if BESIDE_OWN in env or any(_loads_ours(entry.value) for entry in own):
        return []
    return [BESIDE_OWN]


def _loads_ours(value: str) -> bool:
    return names.LIBRARY_PATH in value.replace(" ", ":").split(":")
