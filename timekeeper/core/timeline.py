# SPDX-License-Identifier: Apache-2.0
"""The time line of budgets: the charges of pods, and their accounts, at every instant. A pure function of records.

Records are claims (pods), rules (budget amount per period) and grants; the result is the state at an instant and the
postings that the ledger must contain up to it. `advance` from any earlier state gives the same result as from the
beginning, so callers keep states as checkpoints and continue from one.

A claim's cumulative charge is `round_half_up(rate × milliseconds)`, and a part of it is a difference of two such
values: cutting a claim anywhere does not change the sum. A budget is exhausted from the instant at which nothing is
left, or at the start of the first millisecond whose charge would exceed the rest. It stays exhausted until an allowance
begins: a grant, a new period, a raised amount. Charges of exhausted time go to the over-budget account.

Budgets form trees, and those that depend on each other are advanced together. A pod's time is charged to its
namespace's budget and to all above it, or to none: if one of them is exhausted, it is over budget in the namespace and
in the lowest budget that is exhausted. If several budgets cannot pay for a millisecond, the lower ones are checked
first. A budget above has one posting per budget below and instant, the sum of what was posted there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

from slicekeeper.units import EPOCH, NO_TIME, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_line import BudgetLine
from timekeeper.core.budget_record import Forest, Link, Records, Withdrawal
from timekeeper.core.budget_state import BudgetState, period_allowance
from timekeeper.core.hierarchy import chain, parents_at
from timekeeper.core.posting import Posting, PostingKind

CHILD = "child:"
"""Prefix of the key of the budget below, in the subject of a posting that sums up its charges."""


@dataclass(frozen=True, slots=True)
class TimelineOutcome:
    """The states at the requested instant, and the postings and checkpoints since the previous states."""

    states: dict[AccountId, BudgetState]
    postings: dict[AccountId, list[Posting]]
    checkpoints: list[dict[AccountId, BudgetState]]


def begin(records: Records, at: Instant, linked: Iterable[Instant] = ()) -> BudgetState:
    """Return a budget's state before anything has happened: at its opening, just before its first record, or at `at`.

    `linked` are the instants at which it was put below another budget, or another one below it. A period that ends just
    before the first record has no rollover: the budget did not exist.
    """
    later = [rule.since for rule in records.rules[1:]]
    moved = [*(g.since for g in records.grants), *(w.at for w in records.withdrawals)]
    firsts = [*(c.start for c in records.claims), *moved, *later, *linked]
    known = at if records.opened is None else min(at, records.opened)
    at = min([known, *(Instant(first - 1) for first in firsts)])
    rule = records.rules[0]
    start, allowance = period_allowance(rule, at)
    if at < known and allowance.expires == at + 1:
        allowance.left = NO_TIME
    return BudgetState(
        at=at,
        period_start=start,
        period=allowance,
        grants=[],
        exhausted=rule.amount + rule.credit == 0 or not rule.open,
        since=at if start is None else start,
        cut=at,
    )


def begin_all(forest: Forest, at: Instant) -> dict[AccountId, BudgetState]:
    """Return the initial states of all budgets: each just before its own first record or link.

    So a budget's beginning is the same whatever others it is settled with.
    """
    linked: dict[AccountId, list[Instant]] = {}
    for link in forest.links:
        for key in (link.child, link.parent):
            if key is not None:
                linked.setdefault(key, []).append(link.since)
    return {key: begin(records, at, linked.get(key, ())) for key, records in forest.records.items()}


def advance(
    states: Mapping[AccountId, BudgetState], forest: Forest, until: Instant, *, every: int = 0, settled: Instant = EPOCH
) -> TimelineOutcome:
    """Return the outcome at `until` from earlier states, which are not changed.

    The states have the same instant, except for budgets that begin later. All records that differ from those used for
    `states` must begin after that instant. Checkpoints of the budgets that have begun are taken after each `every`
    boundaries (0: none) before `settled`.
    """
    run = Run(states, forest)
    checkpoints: list[dict[AccountId, BudgetState]] = []
    passed = 0
    while (boundary := run.next_boundary(until)) is not None:
        run.move(boundary)
        run.apply()
        passed += 1
        if every and passed >= every and boundary < settled:
            run.complete()
            begun = [key for key, state in states.items() if state.at <= boundary]
            checkpoints.append({key: run.lines[key].state.copy() for key in begun})
            passed = 0
    run.move(until)
    run.complete()
    return TimelineOutcome({key: line.state for key, line in run.lines.items()}, run.postings(), checkpoints)


def next_allowance_change(
    states: Mapping[AccountId, BudgetState], forest: Forest, key: AccountId, *, periods: bool = True
) -> Instant | None:
    """Return the next instant at which an allowance of a budget, or of one above it, begins or ends by itself.

    Without `periods`, ends of periods do not count.
    """
    instants: list[Instant] = []
    at = states[key].at
    for one in chain(forest.links, key, at):
        records, state = forest.records[one], states[one]
        instants += [r.since for r in records.rules]
        instants += [g.since for g in records.grants] + [w.at for w in records.withdrawals]
        allowances = [*state.grants, *([state.period] if periods else [])]
        instants += [allowance.expires for allowance in allowances if allowance.expires is not None]
    return min((instant for instant in instants if instant > at), default=None)


class Run:
    """Budgets on their way along the time line: `next_boundary`, `move` there, `apply` what happens there, repeat."""

    def __init__(self, states: Mapping[AccountId, BudgetState], forest: Forest) -> None:
        self.at = min(state.at for state in states.values())
        self.moves = 0
        """How often all budgets were advanced: what the run has cost so far."""
        self.lines = {key: BudgetLine(key, state, forest.records[key], self.at) for key, state in states.items()}
        # What happens later than now, by its instant; `apply` looks it up.
        self._links: dict[Instant, list[Link]] = {}
        self._starts: dict[Instant, list[tuple[BudgetLine, Claim]]] = {}
        self._ends: dict[Instant, list[tuple[BudgetLine, Claim]]] = {}
        self._rate_changes: dict[Instant, list[tuple[BudgetLine, Claim]]] = {}
        """Claims whose rate changes then."""
        self._debts: dict[Instant, list[tuple[BudgetLine, bool]]] = {}
        self._sums: dict[tuple[AccountId, AccountId, PostingKind, Instant], tuple[Instant, int]] = {}
        """Start and amount of postings in budgets above: by budget, the one below it, kind and instant."""
        for link in forest.links:
            if link.since > self.at:
                self._links.setdefault(link.since, []).append(link)
        for child, parent in parents_at(forest.links, self.at).items():
            if child in self.lines:
                self.lines[child].parent = self.lines[parent]
        self._sort()
        for key, line in self.lines.items():
            line.counting = self._counting(line)
            self._take_in(line, forest.records[key].claims)
            for debt in forest.records[key].debts:
                if debt.since > self.at:
                    self._debts.setdefault(debt.since, []).append((line, debt.carry))
        own = [instant for line in self.lines.values() for instant in (*line.rules, *line.movements)]
        known = {*self._starts, *self._ends, *self._rate_changes, *self._links, *self._debts, *own}
        self._instants = sorted(known, reverse=True)
        """The instants of all records, the next one last. Ends of periods and grants are found on the way."""

    def _take_in(self, line: BudgetLine, claims: Iterable[Claim]) -> None:
        """Start the claims that run now, and note when the others start, change their rate and end."""
        for claim in claims:
            if claim.end is not None and (claim.end <= claim.start or claim.end <= self.at):
                continue
            if claim.start <= self.at:
                self._start(line, claim)
            else:
                self._starts.setdefault(claim.start, []).append((line, claim))
            if claim.end is not None:
                self._ends.setdefault(claim.end, []).append((line, claim))
            for change, _, _ in claim.rate_changes:
                if change > self.at:
                    self._rate_changes.setdefault(change, []).append((line, claim))

    def _sort(self) -> None:
        """Sort the budgets for the check whether a millisecond is too much: lower ones are checked first."""
        for line in self.lines.values():
            line.chain = line.find_chain()
        self._order = sorted(self.lines.values(), key=lambda line: (-len(line.chain), line.key))
        self._below: dict[AccountId, list[BudgetLine]] = {key: [] for key in self.lines}
        """Each line and all below it."""
        for line in self._order:
            for one in line.chain:
                self._below[one.key].append(line)

    def postings(self) -> dict[AccountId, list[Posting]]:
        """Return the postings of all budgets."""
        found = {key: line.postings for key, line in self.lines.items()}
        for (key, child, kind, at), (start, amount) in self._sums.items():
            found[key].append(Posting(at, kind, f"{CHILD}{child}", start, GpuMilliseconds(amount)))
        return found

    # Time

    @property
    def next_record(self) -> Instant | None:
        """The next instant of a record; None if there is none. Ends of periods and grants are not records."""
        return next((instant for instant in reversed(self._instants) if instant > self.at), None)

    def next_boundary(self, until: Instant) -> Instant | None:
        """Return the next instant, up to `until`, at which anything changes; None if there is none."""
        while self._instants and self._instants[-1] <= self.at:
            self._instants.pop()
        known = self._instants[-1] if self._instants else None
        # The period of a budget that nothing draws on ends without a trace. Such periods are skipped together, up to
        # what happens next elsewhere: so a budget by the hour that was unused for years takes one step.
        idle: list[BudgetLine] = []
        for line in self._order:
            end = line.state.period.expires
            if end is not None and line.idle:
                idle.append(line)
            elif end is not None and (known is None or end < known):
                known = end
            for allowance in line.state.grants:
                if allowance.expires is not None and (known is None or allowance.expires < known):
                    known = allowance.expires
        found = known
        for line in idle:
            line.skip_idle_periods(until if known is None else min(known, until))
            end = line.state.period.expires
            if end is not None:
                found = end if found is None else min(found, end)
        return found if found is not None and found <= until else None

    def move(self, to: Instant) -> None:
        """Advance to an instant before which only balances change by themselves."""
        while to > self.at:
            crossings = [at for line in self._order if (at := line.crossing(to)) is not None]
            if not crossings:
                break
            self._go(min(crossings))
            # Lower budgets first: each that is used up takes its pods' time out of those above, which may not be then.
            for line in [line for line in self._order if line.used_up()]:
                self._set_exhausted(line, exhausted=True)
            for line in self._order if self.at < to else ():
                if line.exceeds():
                    self._set_exhausted(line, exhausted=True)
        self._go(to)

    def _go(self, to: Instant) -> None:
        for line in self._order:
            line.go(to)
        self.at = to
        self.moves += 1

    def complete(self) -> None:
        """Bring the states to this instant: draw balances, mark budgets as over if the next millisecond exceeds them.

        So everything that is settled later is after this instant.
        """
        for line in self._order:
            line.close_window()
        for line in self._order:
            if line.exceeds():
                self._set_exhausted(line, exhausted=True)

    # What happens at an instant

    def apply(self) -> None:
        """Apply everything that happens at this instant.

        Ends come first and starts last, because intervals are half-open: a pod that ends here does not use what begins
        here, and one that starts here does.
        """
        at = self.at
        for line, claim in self._ends.get(at, ()):
            self._end(line, claim)
        for line, carry in self._debts.get(at, ()):
            line.owe(carry)
        self._change_rates(at)
        for link in self._links.get(at, ()):
            self._relink(link)
        self._allow(at)
        for line, claim in self._starts.get(at, ()):
            self._start(line, claim)
        for line in self._order:
            if line.running:
                line.book_period()

    def _start(self, line: BudgetLine, claim: Claim) -> None:
        line.active[claim.key] = claim
        for one in line.chain:
            one.running += 1
        for one in line.counting:
            one.enter(claim)

    def _end(self, line: BudgetLine, claim: Claim) -> None:
        del line.active[claim.key]
        for one in line.chain:
            one.running -= 1
        for one in line.counting:
            one.leave(claim)
        self._post_charge(line, claim)

    def _change_rates(self, at: Instant) -> None:
        """Apply new rates from now on; earlier time is posted at the old rates."""
        changed = [(line, claim) for line, claim in self._rate_changes.get(at, ()) if claim.key in line.active]
        for line in {line.key: line for line, _ in changed}.values():
            self._cut(line)
        for line, claim in changed:
            for one in line.counting:
                one.change_rate(claim)

    def _allow(self, at: Instant) -> None:
        """Start and end allowances, all those of this instant before anything is evaluated."""
        due = {line.key: line for line in self._order if self._allowance_changes(line, at)}
        # A refund is for a charge that the budgets above paid too, so they get it back as well.
        for line in list(due.values()):
            if any(movement.kind == "refund" for movement in line.movements.get(at, ())):
                due |= {one.key: one for one in line.chain}
        raised = {key: self._renew(line, at) for key, line in due.items()}
        movements = [(line, movement) for line in due.values() for movement in line.movements.get(at, ())]
        for line, movement in sorted(movements, key=lambda one: one[1].number):
            if isinstance(movement, Withdrawal):
                line.withdraw(movement)
                continue
            for one in line.chain if movement.kind == "refund" else (line,):
                one.grant(movement)
                raised[one.key] = True
        for key, line in due.items():
            exhausted = line.judge(raised=raised[key])
            if exhausted != line.state.exhausted:
                self._set_exhausted(line, exhausted=exhausted)

    def _allowance_changes(self, line: BudgetLine, at: Instant) -> bool:
        if line.state.period.expires == at or at in line.rules or at in line.movements:
            return True
        return any(allowance.expires == at for allowance in line.state.grants)

    def _renew(self, line: BudgetLine, at: Instant) -> bool:
        """Expire what ends now, begin a new period or rule; return whether more may be spent than before."""
        line.close_window()
        line.expire_grants()
        over, rule = line.state.period.expires == at, line.rules.get(at)
        if not over and rule is None:
            return False
        if not over and rule is not None and rule.used != "reset":
            return line.adjust(rule)
        self._cut(line)
        return line.renew(rule, over=over)

    # Which budgets a pod's time counts in

    def _counting(self, line: BudgetLine) -> tuple[BudgetLine, ...]:
        """Return in which lines the time of a line's own pods counts: in all above, or in the lowest exhausted one."""
        found = line.chain
        stop = next((one for one in found if one.state.exhausted), None)
        return found if stop is None else (line,) if stop is line else (line, stop)

    def _set_exhausted(self, line: BudgetLine, *, exhausted: bool) -> None:
        """Mark a budget as exhausted or as no longer exhausted; that affects all below it."""
        with self._recounted(line):
            line.state.exhausted = exhausted

    def _relink(self, link: Link) -> None:
        """Put a budget below another one from now on; earlier charges stay where they are."""
        line = self.lines[link.child]
        with self._recounted(line):
            for one in line.chain[1:]:
                one.running -= line.running
            line.parent = None if link.parent is None else self.lines[link.parent]
            self._sort()
            for one in line.chain[1:]:
                one.running += line.running

    @contextmanager
    def _recounted(self, line: BudgetLine) -> Iterator[None]:
        """Let the block change in which lines the time of a line and of all below it counts; earlier time is posted."""
        self._cut(line)
        below = self._below[line.key]
        before = [one.state.over_budget for one in below]
        for one in below:
            one.close_window()
        yield
        for one, was in zip(below, before, strict=True):
            state = one.state
            above = next((up.key for up in one.chain[1:] if up.state.exhausted), None)
            state.barred = None if state.exhausted else above
            if state.over_budget != was:
                state.since = self.at
            counting = self._counting(one)
            for old in one.counting:
                if old not in counting:
                    for claim in one.active.values():
                        old.leave(claim)
            for new in counting:
                if new not in one.counting:
                    for claim in one.active.values():
                        new.enter(claim)
            one.counting = counting

    # Postings

    def _cut(self, line: BudgetLine) -> None:
        """Post the time up to now, in a line and all below it."""
        for one in self._below[line.key]:
            for claim in one.active.values():
                self._post_charge(one, claim)
            if one.active or one is line:
                one.state.cut = self.at

    def _post_charge(self, line: BudgetLine, claim: Claim) -> None:
        """Post a claim's time since it was last posted, in its own line, and its sum in those above where it counts."""
        start, at = max(claim.start, line.state.cut), self.at
        if at <= start:
            return
        kind: PostingKind = "over-budget" if line.state.over_budget else "charge"
        amount = GpuMilliseconds(claim.gross(at) - claim.gross(start))
        line.postings.append(Posting(at, kind, claim.key, start, amount))
        child = line
        for one in line.chain[1:]:
            if amount and one in line.counting:
                key = (one.key, child.key, kind, at)
                since, total = self._sums.get(key, (start, 0))
                self._sums[key] = (min(since, start), total + amount)
            child = one
