# SPDX-License-Identifier: Apache-2.0
"""Announce each threshold of a budget that is crossed, once per period, with an event and in the audit log.

The event is on the namespace (for a team or an organisation, on each namespace under it). Its name is derived from
budget, period and threshold, so the API server refuses a second one from a controller that has crashed, or that runs
beside another. Then the ledger records the announcement; only thresholds without that record are announced.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import Final

from slicekeeper.clock import Clock
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.errors import ServiceError, Unavailable
from slicekeeper.kube import events
from slicekeeper.kube.client import KubeClient
from slicekeeper.units import GpuMilliseconds, Instant, format_duration, format_instant
from timekeeper.cluster import pod_patch
from timekeeper.core import timeline
from timekeeper.core.account import AccountId
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.threshold_crossing import crossed, period_of
from timekeeper.ledger.announced_threshold import record_announcement
from timekeeper.ledger.books import Books
from timekeeper.ledger.standing import BudgetStanding
from timekeeper.store import accounts, announced_thresholds

log = logging.getLogger(__name__)

AGAIN_MS: Final = 5_000
"""Pause before an event that could not be written is tried again (in our time)."""


def next_crossing(
    standing: BudgetStanding, state: BudgetState, percents: Iterable[int], now: Instant
) -> Instant | None:
    """Return when the running pods can cross the next threshold at the earliest; None if none is ahead."""
    limit = state.to_spend
    ahead = [p for p in percents if state.used * 100 < limit * p]
    forest = standing.tree_standing.forest
    rates = [
        max(num / den for num, den in ((claim.num, claim.den), *((n, d) for _, n, d in claim.rate_changes)))
        for key in standing.below
        for claim in forest.records[key].claims
        if claim.goes_on(now)
    ]
    if not ahead or not sum(rates) or state.over_budget:
        return None
    missing = limit * min(ahead) / 100 - state.used
    return Instant(now + max(int(missing / sum(rates)), 1))


class Thresholds:
    """When to check which budget for thresholds again. Used only by the controller's thread."""

    def __init__(self, client: KubeClient, clock: Clock, books: Books, uid_of: Callable[[str], str | None]) -> None:
        self._client = client
        self._clock = clock
        self._books = books
        self._uid_of = uid_of
        self._due: dict[AccountId, tuple[BudgetStanding, NamespacePolicy, Instant | None]] = {}
        """What each account was last checked with, and when it must be checked again although nothing changes."""

    def look(
        self,
        standings: Iterable[BudgetStanding],
        policy_of: Callable[[str], NamespacePolicy],
        of_parents: NamespacePolicy,
        now: Instant,
    ) -> Instant | None:
        """Announce crossed thresholds; return when to check again.

        Parents have the thresholds of the policy's default.
        """
        dues: list[Instant] = []
        for standing in standings:
            account = standing.account
            policy = policy_of(account.name) if account.kind == "namespace" else of_parents
            known, known_policy, due = self._due.get(account.id, (None, None, None))
            # Both are replaced when anything in them changes.
            if known is not standing or known_policy is not policy or (due is not None and due <= now):
                due = self._look_at(standing, policy, now)
                self._due[account.id] = (standing, policy, due)
            dues += [] if due is None else [due]
        return min(dues, default=None)

    def _look_at(self, standing: BudgetStanding, policy: NamespacePolicy, now: Instant) -> Instant | None:
        state, percents = standing.at(now), policy.budget.thresholds
        found = crossed(state, percents, is_open=standing.rule.rule.open)
        if found and policy.mode != "off" and not self._announce(standing, state, found, now):
            return Instant(now + AGAIN_MS)
        ahead = (
            next_crossing(standing, state, percents, now),
            timeline.next_allowance_change(
                standing.tree_standing.at(now), standing.tree_standing.forest, standing.account.id
            ),
        )
        return min((at for at in ahead if at is not None), default=None)

    def _announce(self, standing: BudgetStanding, state: BudgetState, found: list[int], now: Instant) -> bool:
        """Announce the thresholds that have not been announced yet; return whether all are."""
        account, period = standing.account, period_of(state)
        with self._books.database.reading() as session:
            news = sorted(set(found) - announced_thresholds.announced(session, account.id, period))
        if not news:
            return True
        whose = "the budget" if account.kind == "namespace" else f"the budget of {account.title}"
        for percent in news:
            note = (
                f"{percent} % of {whose} is used: {format_duration(state.used)} of {format_duration(state.to_spend)}"
                + ("" if state.period_start is None else f" since {format_instant(state.period_start)}")
            )
            name = f"gpu-budget-{account.id}-{period}-{percent}"
            try:
                for namespace in self._namespaces_of(standing):
                    events.write_on_namespace(
                        self._client,
                        self._clock,
                        namespace,
                        self._uid_of(namespace) or "",
                        name=name,
                        kind="Warning",
                        reason="BudgetThreshold",
                        action="WatchBudget",
                        note=note,
                        reporter=pod_patch.REPORTER,
                    )
            except Unavailable as error:
                log.info("threshold %d %% of %s again later: %s", percent, account.title, error)
                return False
            except ServiceError as error:  # trying again would not help, and the audit log has it
                log.warning("threshold %d %% of %s: no event: %s", percent, account.title, error)
        record_announcement(
            self._books, account, period, news, now, used=GpuMilliseconds(state.used), limit=state.to_spend
        )
        return True

    def _namespaces_of(self, standing: BudgetStanding) -> list[str]:
        """Return the namespaces on which an event is written: those under the budget that the cluster still has."""
        with self._books.database.reading() as session:
            below = accounts.by_id(session, standing.below).values()
        return [account.name for account in below if self._uid_of(account.name) == account.uid]
