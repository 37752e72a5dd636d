# SPDX-License-Identifier: Apache-2.0
"""The state of a budget and its allowances at an instant, and the rule that is in force. Pure.

`timekeeper.core.budget_line` advances it along the time line.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from slicekeeper.units import NO_TIME, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Rule
from timekeeper.core.period import bounds


class Allowance(msgspec.Struct):
    """GPU time for a period, or of a grant, and the rest of it. A period's is booked when the first pod may use it.

    The rest of a period's allowance is negative if the amount was lowered below what the period has used.
    """

    key: str
    amount: GpuMilliseconds
    left: GpuMilliseconds
    expires: Instant | None
    booked: bool
    priority: int = 0
    repaid: GpuMilliseconds = NO_TIME
    """Debt that the period has paid; it is owed again if the amount is lowered below it."""
    with_period: bool = False
    """Whether it expires with the period in which it began, whenever that ends: a refund does."""


class BudgetState(msgspec.Struct):
    """The state of a budget at `at`, after everything that happens at that instant."""

    at: Instant
    period_start: Instant | None
    """Start of the current period; None if there is none, or if there was none when its usage began to count."""
    period: Allowance
    grants: list[Allowance]
    exhausted: bool
    """Whether nothing is left of this budget itself."""
    since: Instant
    """When `over_budget` last changed."""
    cut: Instant
    """When the charges' account or the period last changed: no posting goes across it."""
    debt: GpuMilliseconds = NO_TIME
    used: GpuMilliseconds = NO_TIME
    """Charged to the budget in this period."""
    over: GpuMilliseconds = NO_TIME
    """Metered over budget in this period; for a parent, the time for which its own budget had no room."""
    granted: GpuMilliseconds = NO_TIME
    """Grants of this period: those that began in it, and the rest of earlier ones at its start."""
    withdrawn: GpuMilliseconds = NO_TIME
    """Taken out by hand in this period: by adjustments, and by transfers to other budgets."""
    overdrawn: GpuMilliseconds = NO_TIME
    """Drawn beyond all allowances: on credit, or by a withdrawal that is no longer covered because of a late record."""
    barred: AccountId | None = None
    """The nearest budget above that has nothing left although this one has."""
    counts_since: Instant | None = None
    """The instant after which `used`, `over`, `granted` and `withdrawn` count; None: always."""

    @property
    def balance(self) -> GpuMilliseconds:
        """What is left; below zero: owed."""
        return GpuMilliseconds(self.period.left + sum(allowance.left for allowance in self.grants) - self.overdrawn)

    @property
    def to_spend(self) -> GpuMilliseconds:
        """What there is to spend in this period: what was used of it, and what is left.

        That is its amount, rollover and grants, less what was withdrawn, has expired, or has paid debts.
        """
        return GpuMilliseconds(self.used + self.balance)

    @property
    def over_budget(self) -> bool:
        """Whether nothing may be charged: nothing is left of this budget, or of one above it."""
        return self.exhausted or self.barred is not None

    def draw(self, amount: int) -> None:
        """Draw an amount from the allowances: by priority, then the one that expires first, and finally on credit.

        Grants that are used up leave the state.
        """
        for allowance in sorted(
            [self.period, *self.grants], key=lambda b: (b.priority, b.expires is None, b.expires or 0)
        ):
            part = max(0, min(allowance.left, amount))
            allowance.left = GpuMilliseconds(allowance.left - part)
            amount -= part
        self.overdrawn = GpuMilliseconds(self.overdrawn + amount)
        self.grants = [allowance for allowance in self.grants if allowance.left]

    def copy(self) -> BudgetState:
        """Return a copy that can be changed independently."""
        return msgspec.structs.replace(
            self, period=msgspec.structs.replace(self.period), grants=[msgspec.structs.replace(b) for b in self.grants]
        )


def rule_at(rules: Sequence[Rule], at: Instant) -> Rule:
    """Return the rule in force at an instant."""
    return next((rule for rule in reversed(rules) if rule.since <= at), rules[0])


def period_allowance(rule: Rule, at: Instant) -> tuple[Instant | None, Allowance]:
    """Return the start and the allowance of the period around an instant."""
    start, end = bounds(at, *rule.calendar) or (None, None)
    key = f"period:{'none' if start is None else start}"
    return start, Allowance(key, rule.amount, rule.amount, end, booked=False)
