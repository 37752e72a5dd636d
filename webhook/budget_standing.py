# SPDX-License-Identifier: Apache-2.0
"""The standing of a namespace's budget, from the timekeeper's last decisions, however old these are.

If the timekeeper has not answered for `staleSeconds`, the decisions are stale. A namespace that was over budget then
stays so, or whoever can stop the timekeeper would have a budget; what any other namespace has left is unknown, and its
policy decides. Every change of a standing (a flip, becoming stale, the timekeeper's return) is remembered for
`flipGraceSeconds`: a pod may be mutated before it and validated after it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.wire.timekeeper import NO_GPUS, ClusterGpus, Decision

NEVER: Final = -(1 << 62)
"""An instant before all others, in nanoseconds of the monotonic clock."""


@dataclass(frozen=True)
class Standing:
    """The state of a namespace's budget, as far as this process knows."""

    over_budget: bool = False
    unknown: bool = False
    """The timekeeper has not answered for too long: `over_budget` follows the policy's stale mode."""
    stale: bool = False
    """The timekeeper has not answered for too long, but the namespace was over budget before, and stays so."""
    hard: bool = False
    """The budget is enforced hard: over it, no new pod is admitted."""
    settled: bool = True
    """No change of state in the grace period: only one state is valid."""
    stopped: str = ""
    """`suspended` or `closed` if the budget is that."""
    stopped_above: str = ""
    """The team or organisation whose budget is; empty: the namespace's own."""
    reason: str = ""
    """Why the budget is in this state, in the timekeeper's words."""


IN_BUDGET: Final = Standing()


@dataclass(frozen=True)
class CachedDecisions:
    """All that a review needs, replaced as a whole."""

    fetched_ns: int = NEVER
    """When the last answer was requested."""
    returned_ns: int = NEVER
    """When the timekeeper last answered again after the decisions had been stale."""
    decisions: dict[str, Decision] = field(default_factory=dict)
    flipped_ns: dict[str, int] = field(default_factory=dict)
    """When a namespace's standing last changed; namespaces that flipped long ago are dropped."""
    gpus: ClusterGpus = NO_GPUS


def standing(
    known: CachedDecisions,
    namespace: str,
    policy: NamespacePolicy,
    now_ns: int,
    *,
    stale_ns: int,
    grace_ns: int,
    changed_ns: int,
) -> Standing:
    """Return a namespace's budget state now. A namespace without a decision is in budget.

    All times are nanoseconds of the monotonic clock: `stale_ns` and `grace_ns` are durations, and at `changed_ns` a
    decision changed in any worker.
    """
    grace = now_ns - grace_ns
    stale = now_ns - known.fetched_ns > stale_ns
    decision = known.decisions.get(namespace)
    if stale and (decision is None or not decision.over_budget):
        settled = known.fetched_ns + stale_ns < grace
        return Standing(over_budget=policy.stale == "over-budget", unknown=True, settled=settled)
    settled = (
        known.flipped_ns.get(namespace, NEVER) < grace and known.returned_ns < grace and changed_ns <= known.fetched_ns
    )
    if decision is None:
        return Standing(settled=settled)
    stopped = decision.state if decision.state in ("suspended", "closed") else ""
    return Standing(
        over_budget=decision.over_budget,
        hard=decision.enforcement == "hard",
        settled=settled,
        stopped=stopped,
        stopped_above=decision.bound_by if stopped else "",
        reason=decision.reason,
        stale=stale,
    )
