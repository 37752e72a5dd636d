# SPDX-License-Identifier: Apache-2.0
"""The records of budgets, from which their time line is computed: rules, grants, withdrawals, pods' claims, links.

Instants are milliseconds, UTC.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from slicekeeper.units import NO_TIME, GpuMilliseconds, Instant
from timekeeper.core.account import AccountId
from timekeeper.core.accumulated_charge import Claim
from timekeeper.core.period import PeriodName
from timekeeper.core.posting import PostingKind

Status = Literal["active", "suspended", "closed"]
"""Whether a budget may be spent; `closed` is permanent."""

Used = Literal["counts", "reset"]
"""How usage of the current period is treated when a rule begins in it: it counts in full, or a new period begins with
the rule and it no longer counts."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A budget rule, in force from `since` until the next one. The first rule applies from the start of the time line.

    `credit` is how far the balance may go below zero, `rollover` the most that carries over to the next period. While a
    rule is not `active`, nothing may be spent. Of two with the same `since`, the later one in a list applies.
    """

    since: Instant
    amount: GpuMilliseconds
    period: PeriodName
    zone: str
    credit: GpuMilliseconds = NO_TIME
    rollover: GpuMilliseconds = NO_TIME
    status: Status = "active"
    anchor: Instant | None = None
    """An instant at which a period begins; None: they begin as the calendar does."""
    used: Used = "counts"

    @property
    def open(self) -> bool:
        """Whether GPU time may be spent."""
        return self.status == "active"

    @property
    def calendar(self) -> tuple[PeriodName, str, Instant | None]:
        """When periods begin."""
        return self.period, self.zone, self.anchor

    def says_the_same(self, other: Rule) -> bool:
        """Return whether the two differ at most in when they begin and in how they treat the current period's usage."""
        return self == replace(other, since=self.since, used=self.used)


@dataclass(frozen=True, slots=True)
class GrantRecord:
    """GPU time in addition to the budget; its rest expires at `until` (None: never). Low `priority` is used first.

    A refund expires with the period of the budget that gets it, and has no `until`.
    """

    key: str
    amount: GpuMilliseconds
    since: Instant
    until: Instant | None
    kind: PostingKind = "allowance"
    priority: int = 0
    number: int = 0
    """Movements of one instant happen in the order of their numbers: a later one may spend what an earlier brought."""


@dataclass(frozen=True, slots=True)
class Withdrawal:
    """GPU time taken out of a budget: by hand, or into another namespace's."""

    key: str
    amount: GpuMilliseconds
    at: Instant
    kind: PostingKind
    number: int = 0
    """As for a grant."""


@dataclass(frozen=True, slots=True)
class Debt:
    """How time over budget is treated, from `since` until the next one; `carry`: it is taken from a later allowance.

    Earlier debt remains when that ends. Before the first one, all time over budget is forgiven.
    """

    since: Instant
    carry: bool


@dataclass(frozen=True, slots=True)
class Records:
    """Everything that a namespace's time line depends on."""

    claims: Sequence[Claim]
    rules: Sequence[Rule]
    grants: Sequence[GrantRecord] = ()
    withdrawals: Sequence[Withdrawal] = ()
    debts: Sequence[Debt] = ()
    opened: Instant | None = None
    """When its account was opened: its time line begins there, unless there are earlier records."""


@dataclass(frozen=True, slots=True)
class Link:
    """Puts a budget under another one from an instant on, until its next link; `parent` None: under none."""

    child: AccountId
    parent: AccountId | None
    since: Instant


@dataclass(frozen=True, slots=True)
class Forest:
    """The records of budgets that depend on each other, by key, and their hierarchy."""

    records: Mapping[AccountId, Records]
    links: Sequence[Link] = ()
