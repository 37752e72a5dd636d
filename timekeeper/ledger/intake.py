# SPDX-License-Identifier: Apache-2.0
"""What is taken in of a pod: that it holds GPUs, and that it does no more."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from timekeeper.core import rate

ORPHAN: Final = "last-confirmed"
"""How an interval ends whose pod vanished without our finalizer's knowledge."""


@dataclass(frozen=True)
class Opening:
    """A pod that holds GPUs, as it is when first seen."""

    pod_uid: str
    pod_name: str
    namespace: str
    namespace_uid: str
    node: str
    gpus: tuple[str, ...]
    holders: str
    gpu_class: str
    shares: Mapping[str, Fraction]
    """GPUs held per millisecond before prices, by model."""
    start: int
    flags: tuple[str, ...]
    created: int | None = None
    """When the API server made the pod; None: its record does not say."""


@dataclass(frozen=True)
class Closing:
    """The end of a pod's interval."""

    pod_uid: str
    end: int
    source: str
    flags: tuple[str, ...] = ()


def row_of(opening: Opening, namespace: int, now: int) -> dict[str, Any]:
    """Return the row of a pod that is new."""
    return {
        "pod_uid": opening.pod_uid,
        "namespace_id": namespace,
        "pod_name": opening.pod_name,
        "node": opening.node,
        "gpus": ",".join(opening.gpus),
        "holders": opening.holders,
        "gpu_class": opening.gpu_class,
        "shares": rate.encode_shares(opening.shares),
        "opened_at": now,
        "created_at": opening.created,
        "closed_at": None,
        "started_at": opening.start,
        "ended_at": None,
        "end_source": "",
        "flags": ",".join(opening.flags),
        "heard_at": None,
        "models": ",".join(sorted(filter(None, opening.shares)))[:253],
        "gpus_ppm": round(sum(opening.shares.values()) * 1_000_000),
    }
