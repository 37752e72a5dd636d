# SPDX-License-Identifier: Apache-2.0
"""Answers about the GPU time that was charged, held and used."""

from __future__ import annotations

from typing import Literal

from slicekeeper.wire.timekeeper import Wire


class Usage(Wire, frozen=True, kw_only=True):
    """What a namespace was charged and what its pods used in the current period."""

    namespace: str
    period_start: str | None
    charged_ms: int
    over_budget_ms: int
    workloads: int
    """Pods that held GPUs in the period."""
    used_ms: int | None
    """Reported by those pods over their whole life; None: nothing is known."""
    unknown_workloads: int
    """Pods without any report."""
    as_of: str


class UsageBucket(Wire, frozen=True, kw_only=True):
    """What one group of pods held and used in one interval, in GPU-milliseconds before rates."""

    start: str
    end: str
    group: str
    """The namespace, the pod's UID, or the GPU model (empty: not known), as `groupBy` says."""
    workloads: int
    unknown_workloads: int
    """Pods without any report."""
    allocated_ms: int
    """GPU time held, used or not."""
    used_ms: int | None
    """Reported by the pods; None: nothing is known."""
    unobserved_ms: int
    """The part of `allocatedMs` that no report covers."""


class UsageList(Wire, frozen=True, kw_only=True):
    """A page of usage, by interval and group; intervals in which no GPU was held are left out."""

    group_by: Literal["namespace", "workload", "model"]
    items: list[UsageBucket]
    as_of: str
    next_cursor: str | None = None
