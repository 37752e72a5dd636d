# SPDX-License-Identifier: Apache-2.0
"""A late change that is carried over a stretch ends in what the whole time line gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.timeline_oracle import bounds_with_a_clock_change, forests, rates, steady_forests

from timekeeper.core import budget_state
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.budget_record import Forest, GrantRecord, Link, Records, Rule
from timekeeper.core.budget_state import BudgetState
from timekeeper.core.late_change import ChangedClaim, Stretch
from timekeeper.core.posting import Posting
from timekeeper.core.timeline import advance, begin_all


@pytest.fixture(autouse=True)
def _short_periods(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(budget_state, "bounds", bounds_with_a_clock_change)


@dataclass
class Told:
    """What was known before a late record, and since."""

    before: Forest
    after: Forest
    changed: list[ChangedClaim]

    def stretch(self, first: dict[int, BudgetState], last: dict[int, BudgetState]) -> Stretch:
        def runs_across(key: int, since: int, at: int) -> bool:
            return any(c.start < since and c.goes_on(at) for c in self.after.records[key].claims)

        claims = [c for f in (self.before, self.after) for r in f.records.values() for c in r.claims]
        margin = sum(
            -(-num // den) + 1 for c in claims for num, den in ((c.num, c.den), *(r[1:] for r in c.rate_changes))
        )
        return Stretch(self.after, first, last, self.changed, runs_across, margin)


def looked(forest: Forest, instants: Sequence[int]) -> list[tuple[dict[int, BudgetState], dict[int, list[Posting]]]]:
    """Return the states at some instants, and the postings since the one before."""
    states, found = begin_all(forest, instants[-1]), []
    for at in instants:
        outcome = advance(states, forest, at)
        states = outcome.states
        found.append((states, {key: sorted(mine) for key, mine in outcome.postings.items()}))
    return found


def carried(told: Told, instants: Sequence[int]) -> list[bool]:
    """Return over which of the stretches between some instants a change can be carried, and check that it is right."""
    old, new = looked(told.before, instants), looked(told.after, instants)
    done = []
    for ((first, _), (last, as_before)), ((states, _), (wanted, postings)) in zip(
        pairwise(old), pairwise(new), strict=True
    ):
        found = told.stretch(first, last).carry(states)
        done.append(found is not None)
        if found is not None:
            assert found == wanted
            assert postings == as_before
    return done


@st.composite
def told(draw: st.DrawFn) -> Told:
    """Pods that become known late, or of which another start or end does."""
    rich = draw(st.booleans())
    before = draw(st.one_of(forests(), steady_forests()))
    if rich:  # usually enough is left
        rules = {k: [replace(r, amount=r.amount + 3_000) for r in m.rules] for k, m in before.records.items()}
        before = replace(before, records={k: replace(m, rules=rules[k]) for k, m in before.records.items()})
    records, changed = dict(before.records), []
    for index in range(draw(st.integers(1, 2))):
        key = draw(st.sampled_from([1, 2, 3]))
        claims = list(records[key].claims)
        start = draw(st.integers(995, 1150))
        end = draw(st.one_of(st.none(), st.integers(0, 150)))
        late = Claim(f"late-{index}", start, None if end is None else start + end, *draw(rates))
        old = draw(st.sampled_from([None, *claims]))
        if old is not None and all(old is not one.after for one in changed):
            claims.remove(old)
            turns = tuple(turn for turn in old.rate_changes if turn[0] > start)
            late = replace(old, start=start, end=late.end, rate_changes=turns)
        else:
            old = None
        records[key] = replace(records[key], claims=[*claims, late])
        changed.append(ChangedClaim(key, old, late))
    return Told(before, replace(before, records=records), changed)


@settings(max_examples=120, deadline=None)
@given(told(), st.sets(st.integers(1000, 1450), min_size=2, max_size=12))
def test_a_change_that_is_carried_over_ends_as_the_time_line_does(told: Told, instants: set[int]) -> None:
    begun = max(state.at for f in (told.before, told.after) for state in begin_all(f, 1450).values())
    if len(late := sorted(at for at in instants if at >= begun)) > 1:
        carried(told, late)


def late_in(forest: Forest, late: Claim) -> Told:
    """Return what is known once a pod of the first budget becomes known."""
    mine = forest.records[1]
    after = replace(forest, records={**forest.records, 1: replace(mine, claims=[*mine.claims, late])})
    return Told(forest, after, [ChangedClaim(1, None, late)])


def test_a_late_pod_is_carried_to_the_end_of_the_period_and_above() -> None:
    rules = {1: Rule(0, 5_000, "day", "UTC"), 10: Rule(0, 9_000, "none", "UTC")}
    pods = [Claim(f"p{n}", 1005 + 10 * n, 1012 + 10 * n, 1, 2) for n in range(40)]
    before = Forest(
        {1: Records(pods, [rules[1]], opened=990), 10: Records([], [rules[10]], opened=990)}, [Link(1, 10, 991)]
    )
    done = carried(late_in(before, Claim("late", 1003, 1009, 3, 1)), range(1000, 1400, 10))
    assert done == [at not in (1000, 1100) for at in range(1000, 1390, 10)]  # then it comes, and its day ends


def test_a_refund_below_a_budget_that_was_moved_is_paid_back_to_it() -> None:
    refund = GrantRecord("refund", 5, 1155, None, kind="refund")
    pods = [Claim("p", 1010, 1030, 1, 1)]
    day, none = Rule(0, 5_000, "day", "UTC"), Rule(0, 9_000, "none", "UTC")
    records = {1: Records(pods, [day], [refund], opened=990), 10: Records([], [none], opened=990)}
    told = late_in(Forest(records, [Link(1, 10, 991)]), Claim("late", 1003, 1009, 3, 1))
    assert carried(told, [1000, 1050, 1090, 1120, 1150, 1160, 1190]) == [False, True, False, True, False, True]


def test_a_budget_that_was_moved_is_barred_by_one_above_that_was_not() -> None:
    none, hour = Rule(0, 5_000, "none", "UTC"), Rule(0, 10, "hour", "UTC")
    records = {
        1: Records([Claim("a", 1004, 1005, 1, 1)], [none], opened=990),
        2: Records([Claim("b", 1050, 1075, 1, 1)], [none], opened=990),
        20: Records([], [hour], opened=990),
    }
    told = late_in(Forest(records, [Link(1, 20, 991), Link(2, 20, 991)]), Claim("late", 1005, 1008, 1, 1))
    assert carried(told, [1000, 1050, 1070]) == [False, True]


def test_a_pod_that_runs_since_before_both_exhaustions_is_posted_otherwise() -> None:
    records = {1: Records([Claim("a", 1005, 1100, 1, 1)], [Rule(0, 20, "none", "UTC")], opened=990)}
    told = late_in(Forest(records), Claim("late", 1006, 1011, 1, 1))
    assert carried(told, [1000, 1030, 1110, 1150]) == [False, False, True]


def test_a_carried_change_that_exhausts_the_budget_is_computed_again() -> None:
    pods = [Claim(f"p{n}", 1020 + 10 * n, 1028 + 10 * n, 1, 1) for n in range(10)]
    records = {1: Records(pods, [Rule(0, 82, "none", "UTC")], opened=990)}
    told = late_in(Forest(records), Claim("late", 1003, 1009, 1, 1))
    assert carried(told, [1000, 1015, 1050, 1090, 1130])[-1] is False
