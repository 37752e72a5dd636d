# SPDX-License-Identifier: Apache-2.0
"""Which budget is above which at an instant, and which of them therefore depend on each other."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from slicekeeper.units import Instant
from timekeeper.core.record import AccountId, Link

IN_FORCE: Final = Instant(2**62)
"""Later than every instant: the links that nothing has ended."""


@dataclass(frozen=True)
class Tree:
    """Budgets that depend on each other from some instant on, and the links between them."""

    keys: frozenset[AccountId]
    links: tuple[Link, ...]

    @cached_property
    def parents(self) -> dict[AccountId, AccountId]:
        """Which budget each one is under now."""
        return parents_at(self.links, IN_FORCE)

    @property
    def roots(self) -> list[AccountId]:
        """The budgets that are under none, in the order in which writers take their rows."""
        return sorted(self.keys - self.parents.keys())

    def chain(self, key: AccountId) -> list[AccountId]:
        """Return a budget and those it is under, nearest first."""
        found, parents = [key], self.parents
        while found[-1] in parents:
            found.append(parents[found[-1]])
        return found

    def below(self, key: AccountId) -> list[AccountId]:
        """Return a budget and those that are under it."""
        return [one for one in sorted(self.keys) if key in self.chain(one)]


def parents_at(links: Iterable[Link], at: Instant) -> dict[AccountId, AccountId]:
    """Return each budget's parent at an instant, without those that have none."""
    found: dict[AccountId, AccountId | None] = {}
    for link in sorted(links, key=lambda link: link.since):
        if link.since <= at:
            found[link.child] = link.parent
    return {child: parent for child, parent in found.items() if parent is not None}


def chain(links: Iterable[Link], key: AccountId, at: Instant) -> list[AccountId]:
    """Return a budget and those above it at an instant, nearest first."""
    parents = parents_at(links, at)
    found = [key]
    while found[-1] in parents:
        found.append(parents[found[-1]])
    return found
