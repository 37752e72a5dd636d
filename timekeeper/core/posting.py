# SPDX-License-Identifier: Apache-2.0
"""Double entry: which accounts a posting changes, and which postings must be reversed and booked to correct a ledger.

Every namespace has the same accounts. GPU time comes from `issued` into `budget`; pods move it to `charged`, and unused
time goes to `expired`. Time over budget comes from `unfunded`, whose negative balance is the debt under `debt: carry`,
and goes to `over-budget`. A refund takes time back from `charged`; time for another namespace's budget passes through
`transferred`, whose balances sum to zero over all namespaces. Nothing is ever edited: if a late record shows
that a booking is wrong, it is reversed and booked again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, Literal, get_args

from slicekeeper.units import GpuMilliseconds, Instant
from timekeeper.core.account import AccountId

AccountKind = Literal["issued", "budget", "charged", "over-budget", "unfunded", "expired", "transferred"]
ACCOUNTS: Final[tuple[AccountKind, ...]] = get_args(AccountKind)

PostingKind = Literal[
    "charge",
    "over-budget",
    "allowance",
    "expiry",
    "adjustment",
    "debt",
    "refund",
    "withdrawal",
    "transfer-in",
    "transfer-out",
]

EntryName = PostingKind | Literal["grant", "adjustment-in", "adjustment-out", "budget-change"]
"""What statements and entries call a posting: what was done by hand, if it was not the budget's rule."""

BY_SUBJECT: Final[dict[tuple[PostingKind, str], EntryName]] = {
    ("allowance", "grant"): "grant",
    ("allowance", "adjustment"): "adjustment-in",
    ("withdrawal", "adjustment"): "adjustment-out",
    ("adjustment", "period"): "budget-change",
}
"""By kind, and by the word with which the posting's key begins."""

_ROUTE: Final[dict[PostingKind, tuple[AccountKind, AccountKind]]] = {
    "charge": ("budget", "charged"),
    "over-budget": ("unfunded", "over-budget"),
    "allowance": ("issued", "budget"),
    "adjustment": ("issued", "budget"),
    "expiry": ("budget", "expired"),
    "debt": ("budget", "unfunded"),
    "refund": ("charged", "budget"),
    "withdrawal": ("budget", "issued"),
    "transfer-in": ("transferred", "budget"),
    "transfer-out": ("budget", "transferred"),
}


@dataclass(frozen=True, slots=True, order=True)
class Posting:
    """A posting that the ledger must contain: `amount` GPU-milliseconds, settled at `at`; charges cover [start, at)."""

    at: Instant
    kind: PostingKind
    key: str
    start: Instant
    amount: GpuMilliseconds


@dataclass(frozen=True)
class Booked:
    """A posting in the ledger, and its transaction."""

    transaction: int
    posting: Posting
    effective_at: Instant
    """When it counts: `posting.at`, or for a correction an instant of the period that was open when it was booked."""


def entries(posting: Posting) -> tuple[tuple[AccountKind, GpuMilliseconds], ...]:
    """Return the accounts that a posting changes, and by how much; the sum is zero. An amount of 0 changes none."""
    source, target = _ROUTE[posting.kind]
    if not posting.amount:
        return ()
    return (source, GpuMilliseconds(-posting.amount)), (target, posting.amount)


def entry_name(kind: PostingKind, key: str) -> EntryName:
    """Return what statements and entries call a posting of a kind."""
    return BY_SUBJECT.get((kind, key.partition(":")[0]), kind)


def effect(kind: PostingKind, amount: GpuMilliseconds) -> GpuMilliseconds:
    """Return by how much a posting of a kind changes the account `budget`."""
    source, target = _ROUTE[kind]
    return GpuMilliseconds(amount * ((target == "budget") - (source == "budget")))


def difference(booked: Iterable[Booked], wanted: Iterable[Posting]) -> tuple[list[Booked], list[Posting]]:
    """Return what must be reversed and what must be booked so that exactly `wanted` is in the ledger."""
    missing = Counter(wanted)
    wrong: list[Booked] = []
    for entry in booked:
        if missing[entry.posting] > 0:
            missing[entry.posting] -= 1
        else:
            wrong.append(entry)
    return wrong, sorted(missing.elements())


def idempotency_key(budget: AccountId, posting: Posting, version: int) -> str:
    """Return the key under which a posting can be booked once; `version` counts its bookings that were reversed."""
    parts = (budget, posting.kind, posting.key, posting.start, posting.at, posting.amount, version)
    return ":".join(map(str, parts))
