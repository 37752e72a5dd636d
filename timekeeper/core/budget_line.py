# SPDX-License-Identifier: Apache-2.0
"""The allowances of one budget along the time line: when they start, are drawn on, expire and are exhausted. Pure.

`timekeeper.core.timeline` advances one or more of them together, and decides in which of them a pod's time counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from slicekeeper.units import NO_TIME, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_record import Debt, GrantRecord, Records, Rule, Withdrawal
from timekeeper.core.budget_state import Allowance, BudgetState, period_allowance, rule_at
from timekeeper.core.posting import Posting, PostingKind

_SCALE: Final = 2**40
"""Parts of a GPU-millisecond in which estimates are kept: integers are far cheaper than fractions."""


def _scaled(claim: Claim, at: Instant) -> int:
    """Return a pod's rate in parts of a GPU-millisecond (`_SCALE`) per millisecond, rounded up."""
    num, den = claim.rate(at)
    return -(-num * _SCALE // den)


def carried_at(debts: Sequence[Debt], at: Instant) -> bool:
    """Return whether time over budget is owed from an instant on."""
    return next((debt.carry for debt in reversed(debts) if debt.since <= at), False)


class BudgetLine:
    """One budget that is advanced along the time line.

    A window is an interval in which the allowances do not change. Within it only the sum of the rates is tracked, in
    integer parts of a GPU-millisecond, rounded up; the pods' rounded charges are added up only when that sum approaches
    the rest of the allowances, and when the window closes. So the end of an interval is cheap, however many pods run.
    """

    def __init__(self, key: AccountId, state: BudgetState, records: Records, at: Instant) -> None:
        self.key = key
        self.state = state = state.copy()
        state.at = at  # earlier than the state's own if nothing concerns the budget until then
        self.rule = rule_at(records.rules, state.at)
        self.parent: BudgetLine | None = None
        self.chain: tuple[BudgetLine, ...] = (self,)
        """This line and those above it."""
        self.active: dict[str, Claim] = {}
        """The budget's own running pods."""
        self.running = 0
        """Running pods of this budget and of the budgets below it."""
        self.counting: tuple[BudgetLine, ...] = (self,)
        """The lines in which its own pods' time counts."""
        self.postings: list[Posting] = []
        self.rules: dict[Instant, Rule] = {}
        for rule in records.rules:
            if rule.since > state.at:
                at_once = self.rules.get(rule.since)
                reset = at_once is not None and at_once.used == "reset"  # it applies whatever rule follows at once
                self.rules[rule.since] = replace(rule, used="reset") if reset else rule
        self.movements: dict[Instant, list[GrantRecord | Withdrawal]] = {}
        for grant in records.grants:
            if grant.since > state.at:
                self.movements.setdefault(grant.since, []).append(grant)
        for withdrawal in records.withdrawals:
            if withdrawal.at > state.at:
                self.movements.setdefault(withdrawal.at, []).append(withdrawal)
        self._carry = carried_at(records.debts, state.at)
        self._counted: dict[str, Claim] = {}
        self._rates: dict[str, int] = {}
        self._rate = 0
        self._open_window()

    def find_chain(self) -> tuple[BudgetLine, ...]:
        """Return the chain that follows from the parents."""
        found = [self]
        while found[-1].parent is not None:
            found.append(found[-1].parent)
        return tuple(found)

    # The window

    def _open_window(self) -> None:
        self._from = self.state.at
        self._entered: dict[str, Instant] = {}
        """When pods entered or last changed their rate, for those that did so in this window."""
        self._base = {key: claim.gross(self._from) for key, claim in self._counted.items()}
        """Each counted pod's cumulative charge when it entered, or when the window opened."""
        self._ended = 0
        """What the pods that have left were charged in this window."""
        self._estimate = 0
        """The sum of the counted pods' rates over time, in parts of a GPU-millisecond."""
        self._before_change: dict[str, int] = {}
        """Each pod's part of the estimate at its earlier rates."""
        self._ahead = (self._from, self._estimate)
        """The instant for which `crossing` last computed the estimate, and that estimate."""
        self._available = self.state.balance + self.rule.credit
        self._crosses: tuple[Instant, Instant] | None = None
        """What `crossing` found last: from when on the rest is spent, and what it returned."""

    def enter(self, claim: Claim) -> None:
        """Count a pod's time from now on."""
        at, key = self.state.at, claim.key
        self._counted[key] = claim
        self._base[key] = claim.gross(at)
        self._entered[key] = at
        self._rates[key] = _scaled(claim, at)
        self._rate += self._rates[key]
        self._crosses = None

    def leave(self, claim: Claim) -> None:
        """Stop counting a pod's time."""
        at, key = self.state.at, claim.key
        del self._counted[key]
        rate, entered = self._rates.pop(key), self._entered.pop(key, self._from)
        self._rate -= rate
        self._estimate -= rate * (at - entered) + self._before_change.pop(key, 0)
        self._ended += claim.gross(at) - self._base.pop(key)
        self._crosses = None

    def change_rate(self, claim: Claim) -> None:
        """Apply a pod's new rate from now on."""
        key, at, rate = claim.key, self.state.at, _scaled(claim, self.state.at)
        before = self._rates[key]
        since = self._entered.get(key, self._from)
        self._before_change[key] = self._before_change.get(key, 0) + before * (at - since)
        self._entered[key] = at
        self._rate += rate - before
        self._rates[key] = rate
        self._crosses = None

    def _spent(self, at: Instant) -> int:
        base = self._base
        return self._ended + sum(claim.gross(at) - base[key] for key, claim in self._counted.items())

    def close_window(self) -> None:
        """Draw what was spent in this window from the allowances, and open the next window."""
        state, spent = self.state, self._spent(self.state.at)
        if state.over_budget:
            state.over = GpuMilliseconds(state.over + spent)
            if self._carry and state.exhausted:
                state.debt = GpuMilliseconds(state.debt + spent)
        else:
            state.used = GpuMilliseconds(state.used + spent)
            self.state.draw(spent)
        self._open_window()

    def _repay(self, amount: int) -> None:
        """Pay debt from the allowances, and record how much the period has paid."""
        period = self.state.period
        before = period.left
        self.state.draw(amount)
        period.repaid = GpuMilliseconds(period.repaid + before - period.left)

    # Time

    @property
    def idle(self) -> bool:
        """Return whether nothing happens at the end of the period."""
        state = self.state
        owed = state.debt or state.overdrawn or self.rule.rollover
        if state.period.expires is None or self.running or owed or state.period.booked:
            return False
        if not self.rule.amount and state.period.left:  # the rollover expires then
            return False
        return not (state.exhausted and self.rule.amount)  # otherwise the next period restores it at its start

    def skip_idle_periods(self, to: Instant) -> None:
        """Skip periods in which nothing can happen, up to the one just before an instant.

        So a year of idle hours costs one step. A period that begins at the instant itself may follow another rule.
        """
        state, end = self.state, self.state.period.expires
        if end is None or end >= to:
            return
        start, allowance = period_allowance(self.rule, Instant(to - 1))
        if start is not None:
            state.period_start, state.period = start, allowance
            state.cut = start
            self._count_afresh(start)
            self._open_window()

    def crossing(self, to: Instant) -> Instant | None:
        """Return when nothing is left, or the start of the first millisecond that would exceed the rest.

        None if that does not happen until `to`.
        """
        if not self._counted or self.state.over_budget:
            return None
        before = self.state.at
        if self._crosses is not None and self._crosses[0] > before:
            return self._crosses[1] if self._crosses[0] <= to else None
        estimate = self._estimate + self._rate * (to - before)
        self._ahead = (to, estimate)
        if self._at_most(estimate) < self._available or self._spent(to) < self._available:
            return None
        after = to
        while after - before > 1:
            middle = Instant((before + after) // 2)
            before, after = (before, middle) if self._spent(middle) >= self._available else (middle, after)
        found = after if self._spent(after) == self._available else before
        self._crosses = after, found
        return found

    def go(self, to: Instant) -> None:
        """Advance to an instant before which only the balance changes by itself."""
        if self._counted and not self.state.over_budget:
            known, estimate = self._ahead
            self._estimate = estimate if known == to else self._estimate + self._rate * (to - self.state.at)
        self.state.at = to

    def used_up(self) -> bool:
        """Return whether pods have spent everything that was left."""
        return self._may_cross() and self._spent(self.state.at) >= self._available

    def exceeds(self) -> bool:
        """Return whether the millisecond that begins now exceeds the rest: then the budget is over at this instant."""
        return self._may_cross() and self._spent(Instant(self.state.at + 1)) > self._available

    def _may_cross(self) -> bool:
        if not self._counted or self.state.over_budget:
            return False
        return self._at_most(self._estimate + self._rate) >= self._available

    def _at_most(self, estimate: int) -> int:
        """Return the most that can have been spent, rounding included."""
        return self._ended + estimate // _SCALE + 1 + len(self._counted)

    # What happens at an instant

    def owe(self, carry: bool) -> None:
        """Set whether time over budget is owed or forgiven from now on; earlier debt remains."""
        self.close_window()
        self._carry = carry

    def expire_grants(self) -> None:
        """Remove the grants that end now."""
        self._remove([grant for grant in self.state.grants if grant.expires == self.state.at])

    def _remove(self, grants: Sequence[Allowance]) -> None:
        for grant in grants:
            self._expire(grant)
            self.state.grants.remove(grant)

    def adjust(self, rule: Rule) -> bool:
        """Apply a rule to the current period; return whether more may be spent than before.

        What the period has used counts in full, however often its amount was lowered in the meantime.
        """
        before, period = self.rule, self.state.period
        self.rule = rule
        change = rule.amount - before.amount
        period.amount = GpuMilliseconds(period.amount + change)
        period.left = GpuMilliseconds(period.left + change)
        if rule.calendar != before.calendar:
            self._follow_calendar()
        if period.booked and change:
            self._post("adjustment", period.key, change)
        owed_again = max(0, min(-period.left, period.repaid))
        period.left = GpuMilliseconds(period.left + owed_again)
        period.repaid = GpuMilliseconds(period.repaid - owed_again)
        self.state.overdrawn = GpuMilliseconds(self.state.overdrawn + owed_again)
        return change > 0 or self._opened(before)

    def _follow_calendar(self) -> None:
        """End the current period, and what expires with it, when the rule's calendar does.

        A period that is not booked is not known yet.
        """
        start, named = period_allowance(self.rule, self.state.at)
        period = self.state.period
        for allowance in (period, *(grant for grant in self.state.grants if grant.with_period)):
            allowance.expires = named.expires
        if not period.booked:
            period.key, self.state.period_start = named.key, start

    def renew(self, rule: Rule | None, *, over: bool) -> bool:
        """Begin a period after the old one is `over` or abandoned; return whether more may be spent than before."""
        state, old, before = self.state, self.state.period, self.rule
        self.rule = rule or before
        self._expire(old)
        self._remove([grant for grant in state.grants if grant.with_period])
        start, state.period = period_allowance(self.rule, state.at)
        state.period_start = start if over or start is None else state.at
        if state.period_start != start and self.rule.calendar == before.calendar:
            state.period.key = f"period:{state.at}"  # distinct from that of the period that it cuts off
        kept = max(0, min(old.left, before.rollover)) if over else 0
        state.period.amount = GpuMilliseconds(state.period.amount + kept)
        state.period.left = GpuMilliseconds(state.period.left + kept)
        self._count_afresh(state.at)
        return state.period.amount > 0 or self._opened(before)

    def _count_afresh(self, since: Instant) -> None:
        """Start counting the usage and the total of a period."""
        state = self.state
        state.used = state.over = state.withdrawn = NO_TIME
        state.granted = GpuMilliseconds(sum(allowance.left for allowance in state.grants))
        state.counts_since = since

    def _opened(self, before: Rule) -> bool:
        return self.rule.credit > before.credit or (self.rule.open and not before.open)

    def grant(self, grant: GrantRecord) -> None:
        """Add a grant, or a refund for a charge of this budget or of one below it."""
        refund = grant.kind == "refund"
        until = self.state.period.expires if refund else grant.until
        self.state.grants.append(
            Allowance(
                grant.key, grant.amount, grant.amount, until, booked=True, priority=grant.priority, with_period=refund
            )
        )
        self.state.granted = GpuMilliseconds(self.state.granted + grant.amount)
        self._post(grant.kind, grant.key, grant.amount)

    def withdraw(self, withdrawal: Withdrawal) -> None:
        """Withdraw GPU time."""
        self.book_period()
        self.state.draw(withdrawal.amount)
        self.state.withdrawn = GpuMilliseconds(self.state.withdrawn + withdrawal.amount)
        self._post(withdrawal.kind, withdrawal.key, withdrawal.amount)

    def judge(self, *, raised: bool) -> bool:
        """Pay debt, and return whether nothing is left of this budget."""
        state = self.state
        if raised and state.overdrawn:
            self.book_period()
            owed, state.overdrawn = state.overdrawn, NO_TIME
            self._repay(owed)
        if raised and state.debt:
            self.book_period()
            paid = min(state.debt, max(state.balance, 0))
            state.debt = GpuMilliseconds(state.debt - paid)
            self._repay(paid)
            self._post("debt", f"debt:{state.at}", paid)
        self._open_window()
        may_spend = self.rule.open and state.balance + self.rule.credit > 0
        return not may_spend or (state.exhausted and not raised)

    def book_period(self) -> None:
        """Book the period's allowance, because it may now be drawn on."""
        allowance = self.state.period
        if not allowance.booked:
            allowance.booked = True
            self._post("allowance", allowance.key, allowance.amount)

    def _expire(self, allowance: Allowance) -> None:
        if allowance.booked:
            self._post("expiry", allowance.key, allowance.left)

    def _post(self, kind: PostingKind, key: str, amount: int) -> None:
        if amount:
            self.postings.append(Posting(self.state.at, kind, key, self.state.at, GpuMilliseconds(amount)))
