# SPDX-License-Identifier: Apache-2.0
"""The hierarchy of budgets at an instant, and which budgets depend on each other because of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from slicekeeper.units import Instant
from timekeeper.core.account import AccountId
from timekeeper.core.budget_record import Forest, Link

IN_FORCE: Final = Instant(2**62)
"""Later than every instant: the end of links that are still in force."""

MOST_LEVELS: Final = 4
"""Budgets in one chain: a namespace, two teams, an organisation."""


@dataclass(frozen=True)
class Tree:
    """Budgets that depend on each other from some instant on, and the links between them."""

    keys: frozenset[AccountId]
    links: tuple[Link, ...]

    @cached_property
    def parents(self) -> dict[AccountId, AccountId]:
        """The current parent of each budget."""
        return parents_at(self.links, IN_FORCE)

    @property
    def roots(self) -> list[AccountId]:
        """The budgets without a parent, in the order in which writers lock their rows."""
        return sorted(self.keys - self.parents.keys())

    def chain(self, key: AccountId) -> list[AccountId]:
        """Return a budget and its ancestors, nearest first."""
        return _up(self.parents, key)

    def below(self, key: AccountId) -> list[AccountId]:
        """Return a budget and its descendants."""
        return [one for one in sorted(self.keys) if key in self.chain(one)]

    def height(self, key: AccountId) -> int:
        """Return the number of budgets in the longest chain from a budget downwards, itself included."""
        return max(self.chain(one).index(key) + 1 for one in self.below(key))


def tree_of(forest: Forest) -> Tree:
    """Return the hierarchy of a forest's budgets."""
    return Tree(frozenset(forest.records), tuple(forest.links))


def parents_at(links: Iterable[Link], at: Instant) -> dict[AccountId, AccountId]:
    """Return the parent of each budget that has one at an instant."""
    found: dict[AccountId, AccountId | None] = {}
    for link in sorted(links, key=lambda link: link.since):
        if link.since <= at:
            found[link.child] = link.parent
    return {child: parent for child, parent in found.items() if parent is not None}


def chain(links: Iterable[Link], key: AccountId, at: Instant) -> list[AccountId]:
    """Return a budget and its ancestors at an instant, nearest first."""
    return _up(parents_at(links, at), key)


def _up(parents: Mapping[AccountId, AccountId], key: AccountId) -> list[AccountId]:
    found = [key]
    while found[-1] in parents:
        found.append(parents[found[-1]])
    return found
