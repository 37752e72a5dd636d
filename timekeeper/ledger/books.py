# SPDX-License-Identifier: Apache-2.0
"""The books of all namespaces of a cluster: their database, their audit log, and the state of each account.

Each operation that changes them has a file of its own beside this one, and ends in `timekeeper.ledger.settlement`.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core import timeline
from timekeeper.core.hierarchy import IN_FORCE
from timekeeper.core.record import AccountId, Forest, Revision
from timekeeper.ledger.anchor import anchored, instant_of, rest_of
from timekeeper.ledger.standing import Position, Together
from timekeeper.store import accounts, audit_chain, budget_objects, budget_rules, memberships, timelines
from timekeeper.store.accounts import BudgetAccount
from timekeeper.store.db.database import Database


class Books:
    """The ledger of one cluster. Safe to use from several threads.

    `carry` is the setting `timekeeper.debt`: it applies until the ledger has recorded one, and from `follow_debt` on.
    """

    def __init__(self, database: Database, cluster: str, *, carry: bool) -> None:
        self.database = database
        self.cluster = cluster
        self.carry = carry
        self._lock = threading.Lock()
        self._trees: dict[AccountId, tuple[Revision, Together]] = {}
        self._positions: dict[AccountId, Position] = {}

    def note(
        self,
        session: Session,
        *,
        actor: str,
        action: str,
        about: BudgetAccount | None,
        detail: Mapping[str, Any],
        now: Instant,
    ) -> None:
        """Write to the audit log what this transaction does; `about` is None if it concerns all accounts."""
        if about is not None and about.kind == "namespace":
            detail = {**detail, audit_chain.UID: about.uid}  # a name may be reused, the UID never
        title = "" if about is None else about.title
        audit_chain.append(
            session, cluster=self.cluster, actor=actor, action=action, namespace=title, detail=detail, now=now
        )

    # Positions

    def position(self, name: str) -> Position | None:
        """Return the standing of a namespace; None if it has no account yet."""
        with self.database.reading() as session:
            account = accounts.find_name(session, self.cluster, name)
            return None if account is None else self._positions_of(session, [account])[0]

    def position_of(self, uid: str) -> Position | None:
        """Return the standing of a namespace, deleted ones too; None if there is no account of that UID."""
        with self.database.reading() as session:
            account = accounts.find(session, self.cluster, uid)
            return None if account is None else self._positions_of(session, [account])[0]

    def all_positions(self, after: tuple[str, int], limit: int) -> list[Position]:
        """Return the standings of all accounts of namespaces, past ones too, by name and age, after a name and id."""
        with self.database.reading() as session:
            return self._positions_of(session, accounts.accounts(session, self.cluster, after, limit))

    def positions(self) -> list[Position]:
        """Return the standings of all namespaces, in the order of names."""
        with self.database.reading() as session:
            return self._positions_of(session, accounts.newest(session, self.cluster))

    def require_parent(self, name: str) -> Position:
        """Return the standing of a team or an organisation.

        Raises Unknown if there is none of that name.
        """
        with self.database.reading() as session:
            known = accounts.require_parent(session, self.cluster, name)
            return self._positions_of(session, [known])[0]

    def parents(self, after: str = "", limit: int | None = None) -> list[Position]:
        """Return the standings of teams and organisations, in the order of names."""
        with self.database.reading() as session:
            return self._positions_of(session, accounts.parents(session, self.cluster, after, limit))

    def children(self, position: Position) -> list[Position]:
        """Return the standings of the budgets directly below a team or an organisation, in the order of names."""
        with self.database.reading() as session:
            above = memberships.current(session, self.cluster)
            below = accounts.named(session, [c for c, parent in above.items() if parent == position.account.id])
            return self._positions_of(session, sorted(below.values(), key=lambda known: (known.name, known.id)))

    def _positions_of(self, session: Session, places: list[BudgetAccount]) -> list[Position]:
        above = memberships.current(session, self.cluster)
        known = {place.id: place for place in places}
        known |= accounts.named(session, {*above.values()} - known.keys()) if above else {}
        return [self._position(session, place, above, known) for place in places]

    def _position(
        self,
        session: Session,
        place: BudgetAccount,
        above: dict[AccountId, AccountId],
        known: dict[AccountId, BudgetAccount],
    ) -> Position:
        chain = [place]
        while chain[-1].id in above:
            chain.append(known[above[chain[-1].id]])
        root = chain[-1]
        together = self._together(session, root)
        with self._lock:
            cached = self._positions.get(place.id)
        # Its own version counts changes that do not concern the budgets above it: those of its object.
        if cached is not None and cached.together is together and cached.account.version == place.version:
            return cached
        last_object = budget_objects.last(session, [place.id]).get(place.id)
        position = Position(chain, together, budget_rules.rules(session, place.id), last_object)
        with self._lock:
            self._positions[place.id] = position
        return position

    def _together(self, session: Session, root: BudgetAccount) -> Together:
        """Return the standings of a root and of all below it, computed again only if the root's version has changed.

        Settling any of them increases it. The time line continues from the last anchor to where the ledger is
        settled; later than that, `Together` advances it by itself.
        """
        with self._lock:
            version, cached = self._trees.get(root.id, (None, None))
        if cached is not None and version == root.version:
            return cached
        now = memberships.tree(session, [root.id], IN_FORCE)
        tree, anchor = anchored(session, now, None)
        forest = Forest(timelines.records(session, tree.keys, instant_of(anchor), carry=self.carry), tree.links)
        settled = accounts.settled_until(session, tree.keys)
        start = timeline.begin_all(forest, settled) | anchor
        # Budgets may begin later than the ledger is settled; `Together` needs all states at one instant.
        until = max(settled, *(state.at for state in start.values()))
        states = timeline.advance(start, forest, until).states
        rest = {key: rest_of(forest.records[key], until) for key in now.keys}
        together = Together({key: states[key] for key in now.keys}, Forest(rest, now.links))
        with self._lock:
            self._trees[root.id] = (root.version, together)
        return together

    def require(self, name: str) -> Position:
        """Return the standing of a namespace.

        Raises Unknown if it has no account.
        """
        with self.database.reading() as session:
            account = accounts.require_name(session, self.cluster, name)
            return self._positions_of(session, [account])[0]
