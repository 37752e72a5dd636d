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
from timekeeper.core.account import AccountId, Revision
from timekeeper.core.budget_record import Forest
from timekeeper.core.hierarchy import IN_FORCE
from timekeeper.ledger.checkpoint import newest_checkpoint, rest_of, resume
from timekeeper.ledger.standing import BudgetStanding, TreeStanding
from timekeeper.store import accounts, audit_chain, budget_objects, budget_rules, hierarchy_links
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
        self._trees: dict[AccountId, tuple[Revision, TreeStanding]] = {}
        self._standings: dict[AccountId, BudgetStanding] = {}

    def audit(
        self,
        session: Session,
        *,
        actor: str,
        action: str,
        about: BudgetAccount | None,
        detail: Mapping[str, Any],
        now: Instant,
    ) -> None:
        """Write to the audit log what this transaction does; `about` None: it concerns all accounts."""
        if about is not None and about.kind == "namespace":
            detail = {**detail, audit_chain.UID: about.uid}  # a name may be reused, the UID never
        title = "" if about is None else about.title
        audit_chain.append(
            session, cluster=self.cluster, actor=actor, action=action, namespace=title, detail=detail, now=now
        )

    # Standings

    def standing(self, name: str) -> BudgetStanding | None:
        """Return the standing of a namespace; None if it has no account yet."""
        with self.database.reading() as session:
            account = accounts.find_name(session, self.cluster, name)
            return None if account is None else self._standings_of(session, [account])[0]

    def standing_of(self, uid: str) -> BudgetStanding | None:
        """Return the standing of a namespace, deleted ones too; None if there is no account of that UID."""
        with self.database.reading() as session:
            account = accounts.find(session, self.cluster, uid)
            return None if account is None else self._standings_of(session, [account])[0]

    def all_standings(self, after: tuple[str, int], limit: int) -> list[BudgetStanding]:
        """Return the standings of all namespaces, deleted ones too, by name and id, from after a name and id on."""
        with self.database.reading() as session:
            return self._standings_of(session, accounts.page(session, self.cluster, after, limit))

    def standings(self) -> list[BudgetStanding]:
        """Return the standings of all namespaces, by name."""
        with self.database.reading() as session:
            return self._standings_of(session, accounts.newest(session, self.cluster))

    def require_parent(self, name: str) -> BudgetStanding:
        """Return the standing of a team or an organisation.

        Raises Unknown if there is none of that name.
        """
        with self.database.reading() as session:
            known = accounts.require_parent(session, self.cluster, name)
            return self._standings_of(session, [known])[0]

    def parents(self, after: str = "", limit: int | None = None) -> list[BudgetStanding]:
        """Return the standings of teams and organisations, by name."""
        with self.database.reading() as session:
            return self._standings_of(session, accounts.parents(session, self.cluster, after, limit))

    def children(self, standing: BudgetStanding) -> list[BudgetStanding]:
        """Return the standings of the budgets directly below a team or an organisation, by name."""
        with self.database.reading() as session:
            above = hierarchy_links.current(session, self.cluster)
            below = accounts.by_id(session, [c for c, parent in above.items() if parent == standing.account.id])
            return self._standings_of(session, sorted(below.values(), key=lambda known: (known.name, known.id)))

    def _standings_of(self, session: Session, wanted: list[BudgetAccount]) -> list[BudgetStanding]:
        above = hierarchy_links.current(session, self.cluster)
        known = {account.id: account for account in wanted}
        known |= accounts.by_id(session, {*above.values()} - known.keys()) if above else {}
        return [self._standing(session, account, above, known) for account in wanted]

    def _standing(
        self,
        session: Session,
        account: BudgetAccount,
        above: dict[AccountId, AccountId],
        known: dict[AccountId, BudgetAccount],
    ) -> BudgetStanding:
        chain = [account]
        while chain[-1].id in above:
            chain.append(known[above[chain[-1].id]])
        root = chain[-1]
        tree_standing = self._tree_standing(session, root)
        with self._lock:
            cached = self._standings.get(account.id)
        # A change of the account's Kubernetes object increments its own version, but not that of the tree's root.
        if cached is not None and cached.tree_standing is tree_standing and cached.account.version == account.version:
            return cached
        last_object = budget_objects.last(session, [account.id]).get(account.id)
        standing = BudgetStanding(chain, tree_standing, budget_rules.rules(session, account.id), last_object)
        with self._lock:
            self._standings[account.id] = standing
        return standing

    def _tree_standing(self, session: Session, root: BudgetAccount) -> TreeStanding:
        """Return the standings of a root and of all below it, computed again only if the root's version has changed.

        Settling any of them increments it. The time line continues from the last checkpoint to where the ledger is
        settled; later than that, `TreeStanding` advances it by itself.
        """
        with self._lock:
            version, cached = self._trees.get(root.id, (None, None))
        if cached is not None and version == root.version:
            return cached
        now = hierarchy_links.tree(session, [root.id], IN_FORCE)
        tree, checkpoint = newest_checkpoint(session, now, None)
        settled = accounts.settled_until(session, tree.keys)
        forest, start = resume(session, tree, checkpoint, settled, carry=self.carry)
        # Budgets may begin later than the ledger is settled; `TreeStanding` needs all states at one instant.
        until = max(settled, *(state.at for state in start.values()))
        states = timeline.advance(start, forest, until).states
        rest = {key: rest_of(forest.records[key], until) for key in now.keys}
        tree_standing = TreeStanding({key: states[key] for key in now.keys}, Forest(rest, now.links))
        with self._lock:
            self._trees[root.id] = (root.version, tree_standing)
        return tree_standing

    def require(self, name: str) -> BudgetStanding:
        """Return the standing of a namespace.

        Raises Unknown if it has no account.
        """
        with self.database.reading() as session:
            account = accounts.require_name(session, self.cluster, name)
            return self._standings_of(session, [account])[0]
