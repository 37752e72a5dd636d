# SPDX-License-Identifier: Apache-2.0
"""Budget accounts: of namespaces, teams and organisations, and up to when each is settled."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Final, Literal

from sqlalchemy import bindparam, func, insert, literal, select, tuple_, update
from sqlalchemy.orm import Session

from slicekeeper.units import EPOCH, Instant
from timekeeper.core.account import AccountId, Revision
from timekeeper.core.budget_record import Rule
from timekeeper.core.posting import ACCOUNTS
from timekeeper.core.refusal import NamespaceUnknown, ParentUnknown
from timekeeper.store.budget_rules import add_rule
from timekeeper.store.db.models import Account, Namespace

HolderKind = Literal["namespace", "team", "organisation"]

_COLUMNS = (
    Namespace.id,
    Namespace.uid,
    Namespace.name,
    Namespace.settled_at,
    Namespace.version,
    Namespace.sealed_until,
    Namespace.kind,
)
"""In the order of BudgetAccount's fields."""

# Made once: every decision executes them, and making them took much of its CPU time.
_BY_UID: Final = select(*_COLUMNS).where(Namespace.cluster == bindparam("cluster"), Namespace.uid == bindparam("uid"))
_NEWEST_OF_NAME: Final = (
    select(*_COLUMNS)
    .where(
        Namespace.cluster == bindparam("cluster"), Namespace.name == bindparam("name"), Namespace.kind == "namespace"
    )
    .order_by(Namespace.id.desc())
    .limit(1)
)


@dataclass(frozen=True)
class BudgetAccount:
    """The budget account of a namespace, a team or an organisation."""

    id: AccountId
    uid: str
    name: str
    settled_at: Instant
    version: Revision
    sealed_until: Instant
    kind: str = "namespace"

    @property
    def title(self) -> str:
        """The name for people, unique in a cluster."""
        return self.name if self.kind == "namespace" else f"{self.kind} {self.name}"


def parent_uid(name: str) -> str:
    """Return the substitute for a UID of a team or an organisation; it differs from every namespace's UID."""
    return f":{name}"


def find(session: Session, cluster: str, uid: str) -> BudgetAccount | None:
    """Return the account with a UID (of a namespace, or `parent_uid`)."""
    row = session.execute(_BY_UID, {"cluster": cluster, "uid": uid}).one_or_none()
    return BudgetAccount(*row) if row else None


def find_name(session: Session, cluster: str, name: str) -> BudgetAccount | None:
    """Return the account of the newest namespace with a name; older ones were deleted."""
    row = session.execute(_NEWEST_OF_NAME, {"cluster": cluster, "name": name}).one_or_none()
    return BudgetAccount(*row) if row else None


def require_name(session: Session, cluster: str, name: str) -> BudgetAccount:
    """Return the account of the newest namespace with a name.

    Raises Unknown if it has no account.
    """
    found = find_name(session, cluster, name)
    if found is None:
        raise NamespaceUnknown(f"namespace {name} has no account yet")
    return found


def require_parent(session: Session, cluster: str, name: str) -> BudgetAccount:
    """Return the account of a team or an organisation.

    Raises Unknown if there is none of that name.
    """
    found = find(session, cluster, parent_uid(name))
    if found is None:
        raise ParentUnknown(f"{name!r} is neither a team nor an organisation; create it first")
    return found


def newest(session: Session, cluster: str) -> list[BudgetAccount]:
    """Return the account of the newest namespace with each name, by name."""
    latest = select(func.max(Namespace.id)).where(Namespace.cluster == cluster, Namespace.kind == "namespace")
    latest = latest.group_by(Namespace.name)
    query = select(*_COLUMNS).where(Namespace.id.in_(latest)).order_by(Namespace.name)
    return [BudgetAccount(*row) for row in session.execute(query)]


def page(session: Session, cluster: str, after: tuple[str, int], limit: int) -> list[BudgetAccount]:
    """Return the accounts of all namespaces, deleted ones too, by name and id, from after a name and id on."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster, Namespace.kind == "namespace")
    query = query.where(tuple_(Namespace.name, Namespace.id) > tuple_(literal(after[0]), literal(after[1])))
    return [BudgetAccount(*row) for row in session.execute(query.order_by(Namespace.name, Namespace.id).limit(limit))]


def parents(session: Session, cluster: str, after: str, limit: int | None) -> list[BudgetAccount]:
    """Return the accounts of a cluster's teams and organisations, by name, from after a name on."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster, Namespace.kind != "namespace", Namespace.name > after)
    return [BudgetAccount(*row) for row in session.execute(query.order_by(Namespace.name).limit(limit))]


def by_id(session: Session, ids: Collection[AccountId]) -> dict[AccountId, BudgetAccount]:
    """Return accounts by id."""
    return {row.id: BudgetAccount(*row) for row in session.execute(select(*_COLUMNS).where(Namespace.id.in_(ids)))}


def all_accounts(session: Session) -> list[BudgetAccount]:
    """Return all accounts, including those of deleted namespaces."""
    return [BudgetAccount(*row) for row in session.execute(select(*_COLUMNS).order_by(Namespace.id))]


def of_cluster(session: Session, cluster: str) -> list[BudgetAccount]:
    """Return all accounts of a cluster, including those of deleted namespaces."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster)
    return [BudgetAccount(*row) for row in session.execute(query.order_by(Namespace.id))]


def open_account(
    session: Session,
    cluster: str,
    uid: str,
    name: str,
    rule: Rule,
    now: Instant,
    *,
    kind: HolderKind = "namespace",
    actor: str = "policy",
) -> BudgetAccount:
    """Open the account of a namespace, with the policy's rule, or of a team or an organisation, with its own."""
    values = {"cluster": cluster, "uid": uid, "name": name, "opened_at": now, "settled_at": now, "version": 1}
    values["kind"] = kind
    key = session.execute(insert(Namespace).values(values).returning(Namespace.id)).scalar_one()
    session.execute(insert(Account), [{"namespace_id": key, "kind": kind, "balance_ms": 0} for kind in ACCOUNTS])
    add_rule(session, key, rule, source="policy" if kind == "namespace" else "own", actor=actor, now=now)
    return BudgetAccount(key, uid, name, now, Revision(1), EPOCH, kind)


def settled_until(session: Session, keys: Collection[AccountId]) -> Instant:
    """Return the instant up to which budgets that are settled together are settled."""
    return session.execute(select(func.max(Namespace.settled_at)).where(Namespace.id.in_(keys))).scalar_one()


def settled_after(session: Session, cluster: str, at: Instant) -> list[AccountId]:
    """Return the accounts that are settled beyond an instant."""
    query = select(Namespace.id).where(Namespace.cluster == cluster, Namespace.settled_at > at)
    return list(session.scalars(query.order_by(Namespace.id)))


def bump_version(session: Session, key: AccountId) -> None:
    """Increment an account's version: other processes read it again, and any other writer now waits, or fails."""
    session.execute(update(Namespace).where(Namespace.id == key).values(version=Namespace.version + 1))


def mark_settled(session: Session, key: AccountId, at: Instant) -> None:
    """Record up to when the accounts below a root are settled."""
    session.execute(update(Namespace).where(Namespace.id == key).values(settled_at=at))


def limit_settled(session: Session, keys: Collection[AccountId], at: Instant) -> None:
    """Record that roots and the accounts now below them are settled up to an instant at most."""
    ahead = update(Namespace).where(Namespace.id.in_(keys), Namespace.settled_at > at)
    session.execute(ahead.values(settled_at=at))
