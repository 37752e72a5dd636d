# SPDX-License-Identifier: Apache-2.0
"""Decisions about namespaces, in the form of the wire."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import msgspec

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Settings
from slicekeeper.units import GpuMilliseconds, Instant, format_if_known, format_instant
from slicekeeper.wire.timekeeper import NO_GPUS, ClusterGpus, Decision
from timekeeper.api.views.budget_state import state_name, state_reason
from timekeeper.ledger.standing import BudgetStanding

STALE_MS = 60_000
"""How long a decision may be believed after `asOf`."""


def decision(
    standing: BudgetStanding,
    policy: NamespacePolicy,
    settings: Settings,
    now: Instant,
    reserved: GpuMilliseconds,
    run_out: Instant | None = None,
) -> Decision:
    """Return the decision about a namespace; `reserved` is its reserved GPU time."""
    state = standing.at(now)
    name = state_name(standing, state, policy)
    if state.over_budget and not policy.reserves:
        chosen = policy.over_budget_class or settings.classes.over_budget.name
    else:
        chosen = policy.in_budget_class or settings.classes.in_budget.name
    bound, binding = standing.binding(now)
    return Decision(
        namespace=standing.account.name,
        state=name,
        balance_ms=binding.balance,
        used_ms=state.used,
        over_budget_ms=state.over,
        reserved_ms=reserved,
        enforcement=policy.budget.enforcement,
        priority_class_name=chosen,
        as_of=format_instant(now),
        since=format_instant(state.since),
        stale_after=format_instant(Instant(now + STALE_MS)),
        run_out_at=format_if_known(run_out),
        reason=state_reason(name, standing, state, policy, bound),
        bound_by=bound.name if bound != standing.account else "",
    )


def decisions_tag(decisions: Sequence[Decision], gpus: ClusterGpus = NO_GPUS) -> str:
    """Return the entity tag of decisions: it changes when one is decided otherwise, not with each millisecond spent."""
    digest = hashlib.sha256(msgspec.json.encode(gpus))
    for one in decisions:
        parts = (
            one.namespace,
            one.state,
            one.since,
            one.priority_class_name,
            one.enforcement,
            one.run_out_at or "",
            one.bound_by,
        )
        digest.update("\0".join(parts).encode() + b"\n")
    return f'W/"{digest.hexdigest()[:32]}"'
