# SPDX-License-Identifier: Apache-2.0
"""A pod as the controller tells the books of it when it is bound."""

from __future__ import annotations

from fractions import Fraction

from timekeeper.ledger.workload import Opening


def opening(uid: str, start: int, share: Fraction | int = 1, namespace: str = "team", *, model: str = "") -> Opening:
    """Return the opening of a pod that holds `share` of a GPU; names and UIDs follow from `uid` and `namespace`."""
    return Opening(
        pod_uid=uid,
        pod_name=uid,
        namespace=namespace,
        namespace_uid=f"uid-{namespace}",
        node="n",
        gpus=("GPU-1",),
        holders='{"main":1}',
        gpu_class="standard",
        shares={model: Fraction(share)},
        start=start,
        flags=(),
    )
