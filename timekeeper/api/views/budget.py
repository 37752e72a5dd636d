# SPDX-License-Identifier: Apache-2.0
"""A namespace's, a team's or an organisation's budget, as the wire shows it."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.units import EPOCH, GpuMilliseconds, Instant, format_if_known
from slicekeeper.wire.timekeeper import Budget, Figures, KeptBy, Parent
from timekeeper.api.views.budget_state import running_period, state_at, state_name
from timekeeper.ledger.budget_object import version_of
from timekeeper.ledger.budget_rule import policy_rule
from timekeeper.ledger.standing import BudgetStanding


def budget(
    name: str,
    standing: BudgetStanding | None,
    policy: NamespacePolicy,
    now: Instant,
    reserved: GpuMilliseconds,
    *,
    uid: str,
    gone: bool,
) -> Budget:
    """Return a namespace's current budget; `reserved` is its reserved GPU time, `gone` whether it was deleted."""
    return Budget(
        uid=uid,
        gone=gone,
        namespace=name,
        source="own" if standing and standing.rule.source == "own" else "policy",
        enforcement=policy.budget.enforcement,
        **_figures(standing, policy, now, reserved),
    )


def parent(standing: BudgetStanding, now: Instant, reserved: GpuMilliseconds) -> Parent:
    """Return a team's or an organisation's current budget; `reserved` is the GPU time reserved below it."""
    account = standing.account
    return Parent(
        name=account.name,
        kind="team" if account.kind == "team" else "organisation",
        **_figures(standing, NamespacePolicy(), now, reserved),
    )


def _figures(
    standing: BudgetStanding | None, policy: NamespacePolicy, now: Instant, reserved: GpuMilliseconds
) -> dict[str, Any]:
    state = state_at(standing, policy, now)
    rule = standing.rule.rule if standing else policy_rule(policy.budget, EPOCH)
    start, end = running_period(standing, state)
    run_out = standing.run_out(now) if standing else None
    bound = standing.binding(now)[0] if standing else None
    last = standing.last_object if standing else None
    figures = Figures(
        amount_ms=rule.amount,
        period=rule.period,
        time_zone=rule.zone,
        anchor=format_if_known(rule.anchor),
        balance_ms=state.balance,
        used_ms=state.used,
        over_budget_ms=state.over,
        granted_ms=state.granted,
        withdrawn_ms=state.withdrawn,
        to_spend_ms=state.to_spend,
        state=state_name(standing, state, policy),
        period_start=format_if_known(start),
        period_end=format_if_known(end),
        run_out_at=format_if_known(run_out),
        credit_ms=rule.credit,
        rollover_ms=rule.rollover,
        status=standing.rule.status if standing else "active",
        reserved_ms=reserved,
        parent=standing.above[0].name if standing and standing.above else None,
        bound_by="" if standing is None or bound is None or bound == standing.account else bound.name,
        kept_by=None if last is None or last.released is not None else KeptBy(uid=last.uid, generation=last.generation),
        object_version=version_of(last),
    )
    return asdict(figures)
