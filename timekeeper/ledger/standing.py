# SPDX-License-Identifier: Apache-2.0
"""The standing of budgets at an instant, computed from what is settled."""

from __future__ import annotations

import threading
from collections import Counter

from slicekeeper.units import Instant
from timekeeper.core import hierarchy, timeline
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Forest
from timekeeper.core.budget_state import BudgetState, rule_at
from timekeeper.core.forecast import Forecast, forecast
from timekeeper.core.posting import Posting
from timekeeper.core.timeline import CHILD
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.budget_objects import AcceptedObject
from timekeeper.store.budget_rules import RuleRow


class TreeStanding:
    """The standings of budgets that depend on each other, valid until their records change."""

    def __init__(self, states: dict[AccountId, BudgetState], forest: Forest) -> None:
        self.forest = forest
        self._lock = threading.Lock()
        self._states = states
        self._due: Counter[tuple[str, str]] = Counter()
        self._due_above: list[tuple[AccountId, Posting]] = []
        """The part due in parents: the sums of what was posted below, and from which budget."""
        self.running = {c.key: c for one in forest.records.values() for c in one.claims}
        """The open claims, by UID: of running pods, and of those whose end is still ahead."""
        self.next_end = min((c.end for c in self.running.values() if c.end is not None), default=None)
        """When the first claim ends by itself: clocks differ, so an end may be ahead of ours."""
        self._forecast = Forecast({}, None)
        self._forecast_for: list[Instant] = []

    def at(self, now: Instant) -> dict[AccountId, BudgetState]:
        """Return the states at an instant, at least that at which the budgets were settled."""
        with self._lock:
            self._advance(now)
            return self._states

    def charges_due(self, now: Instant) -> tuple[dict[AccountId, BudgetState], Counter[tuple[str, str]]]:
        """Return the states, and the postings that are due but not booked yet, by pod and kind."""
        with self._lock:
            self._advance(now)
            return self._states, self._due.copy()

    def due_below(self, key: AccountId, since: Instant | None, now: Instant) -> Counter[AccountId]:
        """Return what is due of a parent's charges after an instant (None: ever), by the budget directly below."""
        with self._lock:
            self._advance(now)
            found: Counter[AccountId] = Counter()
            for parent, posting in self._due_above:
                if parent == key and posting.kind == "charge" and (since is None or posting.at > since):
                    found[AccountId(int(posting.key.removeprefix(CHILD)))] += posting.amount
            return found

    def _advance(self, now: Instant) -> None:
        if now > next(iter(self._states.values())).at:  # all have the same instant
            outcome = timeline.advance(self._states, self.forest, now)
            self._states = outcome.states
            for key, postings in outcome.postings.items():
                for posting in postings:
                    self._due[posting.key, posting.kind] += posting.amount
                self._due_above += [(key, posting) for posting in postings if posting.key.startswith(CHILD)]

    def forecast(self, now: Instant, *, known: bool = False) -> Forecast:
        """Return when nothing will be left in budgets, or above them, if the pods that run now continue.

        If `known`, only what has been forecast already: nothing if that no longer holds.
        """
        states = self.at(now)
        # Consumption is linear, so the forecast stays right until the charges' account or the period changes.
        cuts = [state.cut for state in states.values()]
        with self._lock:
            seen = self._forecast.until
            if self._forecast_for != cuts or (seen is not None and seen <= now):
                if known:
                    return Forecast({}, now)
                self._forecast, self._forecast_for = forecast(states, self.forest), cuts
            return self._forecast


class BudgetStanding:
    """The standing of a namespace, a team or an organisation, alone or under others."""

    def __init__(
        self,
        chain: list[BudgetAccount],
        tree_standing: TreeStanding,
        rules: list[RuleRow],
        last_object: AcceptedObject | None,
    ) -> None:
        self.account = chain[0]
        self.above = chain[1:]
        """Its ancestors, nearest first."""
        self.tree_standing = tree_standing
        self.rule = rules[-1]
        self.last_object = last_object
        """The object of the cluster that kept it last, whether it still does or not."""

    def at(self, now: Instant) -> BudgetState:
        """Return the state at an instant, at least that at which the namespace was settled."""
        return self.tree_standing.at(now)[self.account.id]

    def run_out(self, now: Instant, *, known: bool = False) -> Instant | None:
        """Return when the namespace will be over budget if the pods that run now continue, in others too.

        None if it will not, or if that is further ahead than a forecast looks; `known` is as for `forecast`.
        """
        return self.tree_standing.forecast(now, known=known).run_outs.get(self.account.id)

    def binding(self, now: Instant) -> tuple[BudgetAccount, BudgetState]:
        """Return the limiting budget, its own or one above: the nearest with nothing left, or with the least.

        Credit counts as left.
        """
        states, chain = self.tree_standing.at(now), [self.account, *self.above]
        state = states[self.account.id]
        if state.over_budget:
            key = self.account.id if state.barred is None else state.barred
            return next((account, states[account.id]) for account in chain if account.id == key)

        def left(account: BudgetAccount) -> int:
            rules = self.tree_standing.forest.records[account.id].rules
            return states[account.id].balance + rule_at(rules, state.at).credit

        tightest = min(chain, key=left)
        return tightest, states[tightest.id]

    @property
    def below(self) -> list[AccountId]:
        """The keys of this budget and of those below it."""
        return hierarchy.tree_of(self.tree_standing.forest).below(self.account.id)

    def running_below(self, now: Instant) -> Counter[AccountId]:
        """Return what was charged in this period and is not booked yet, by the budget directly below."""
        found = self.tree_standing.due_below(self.account.id, self.at(now).counts_since, now)
        states, forest = self.tree_standing.at(now), self.tree_standing.forest
        for key, state in states.items():
            chain = hierarchy.chain(forest.links, key, state.at)
            if self.account.id in chain[1:] and not state.over_budget:
                child = chain[chain.index(self.account.id) - 1]
                for claim in forest.records[key].claims:
                    if claim.goes_on(state.at):
                        found[child] += claim.gross(state.at) - claim.gross(max(claim.start, state.cut))
        return found

    def due(self, now: Instant) -> Instant | None:
        """Return the next instant at which the namespace's state may change by itself."""
        change = timeline.next_allowance_change(self.tree_standing.at(now), self.tree_standing.forest, self.account.id)
        looked = self.tree_standing.forecast(now)
        # What it did not see as far as it looked may happen right after that.
        run_out = looked.run_outs.get(self.account.id, looked.until)
        dues = run_out, change, self.tree_standing.next_end
        return min((instant for instant in dues if instant is not None), default=None)
