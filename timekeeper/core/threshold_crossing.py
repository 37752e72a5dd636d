# SPDX-License-Identifier: Apache-2.0
"""Find which thresholds of a budget are crossed in a period."""

from __future__ import annotations

from collections.abc import Iterable

from slicekeeper.units import EPOCH, Instant
from timekeeper.core.budget_state import BudgetState


def period_of(state: BudgetState) -> Instant:
    """Return the key of a period in which a budget's thresholds may be crossed: its start.

    A budget without periods has one from the start of time, and another whenever an operator begins one.
    """
    return state.period_start or state.counts_since or EPOCH


def crossed(state: BudgetState, percents: Iterable[int], *, is_open: bool) -> list[int]:
    """Return the thresholds that are crossed, lowest first: percentages of what there is to spend.

    A spent budget has crossed all of them.
    """
    limit = state.to_spend
    spent = state.exhausted and is_open and state.used > 0
    return sorted({p for p in percents if limit > 0 and (spent or state.used * 100 >= limit * p)})
