# SPDX-License-Identifier: Apache-2.0
"""Namespaces and the records that their time line is made of: rules, grants, claims, anchors."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, cast

import msgspec
from sqlalchemy import delete, func, insert, or_, select, update
from sqlalchemy.orm import Session

from slicekeeper.errors import NotFound
from timekeeper.allowances import State
from timekeeper.ledger import ACCOUNTS
from timekeeper.periods import PeriodName
from timekeeper.records import Grant, PostingKind, Records, Rule, Withdrawal
from timekeeper.store import prices
from timekeeper.store.models import Account, Anchor, BudgetGrant, BudgetRule, Namespace, Workload

Status = Literal["active", "suspended", "closed"]


@dataclass(frozen=True)
class Known:
    """A namespace that has an account."""

    id: int
    uid: str
    name: str
    settled_at: int
    version: int
    sealed_until: int


_COLUMNS = (
    Namespace.id,
    Namespace.uid,
    Namespace.name,
    Namespace.settled_at,
    Namespace.version,
    Namespace.sealed_until,
)


def find(session: Session, cluster: str, uid: str) -> Known | None:
    """Return a namespace by its UID."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster, Namespace.uid == uid)
    row = session.execute(query).one_or_none()
    return Known(*row) if row else None


def find_name(session: Session, cluster: str, name: str) -> Known | None:
    """Return the newest namespace of a name; older ones were deleted."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster, Namespace.name == name)
    row = session.execute(query.order_by(Namespace.id.desc()).limit(1)).one_or_none()
    return Known(*row) if row else None


def require_name(session: Session, cluster: str, name: str) -> Known:
    """Return the newest namespace of a name.

    Raises NotFound where it has no account.
    """
    found = find_name(session, cluster, name)
    if found is None:
        raise NotFound(f"namespace {name} has no account yet", 404, "namespace-unknown")
    return found


def newest(session: Session, cluster: str, after: str = "", limit: int | None = None) -> list[Known]:
    """Return the newest namespace of each name, in the order of names."""
    latest = select(func.max(Namespace.id)).where(Namespace.cluster == cluster).group_by(Namespace.name)
    query = select(*_COLUMNS).where(Namespace.id.in_(latest), Namespace.name > after).order_by(Namespace.name)
    return [Known(*row) for row in session.execute(query.limit(limit))]


def everyone(session: Session) -> list[Known]:
    """Return all namespaces that ever were."""
    return [Known(*row) for row in session.execute(select(*_COLUMNS).order_by(Namespace.id))]


def of_cluster(session: Session, cluster: str) -> list[Known]:
    """Return all namespaces of a cluster that ever were."""
    query = select(*_COLUMNS).where(Namespace.cluster == cluster)
    return [Known(*row) for row in session.execute(query.order_by(Namespace.id))]


def open_account(session: Session, cluster: str, uid: str, name: str, rule: Rule, now: int) -> Known:
    """Make a namespace's accounts, with the policy's rule from the start of time."""
    values = {"cluster": cluster, "uid": uid, "name": name, "opened_at": now, "settled_at": 0, "version": 1}
    key = session.execute(insert(Namespace).values(values).returning(Namespace.id)).scalar_one()
    session.execute(insert(Account), [{"namespace_id": key, "kind": kind, "balance_ms": 0} for kind in ACCOUNTS])
    add_rule(session, key, rule, source="policy", actor="policy", now=now)
    return Known(key, uid, name, 0, 1, 0)


def settled_until(session: Session, namespace: int) -> int:
    """Return up to when a namespace is settled."""
    return session.execute(select(Namespace.settled_at).where(Namespace.id == namespace)).scalar_one()


def settled(session: Session, namespace: int, at: int) -> None:
    """Note up to when a namespace is settled, and that what others hold of it is old."""
    session.execute(
        update(Namespace).where(Namespace.id == namespace).values(settled_at=at, version=Namespace.version + 1)
    )


# Budget rules


@dataclass(frozen=True)
class RuleRow:
    """A rule and who made it; `id` is the budget's version."""

    id: int
    rule: Rule
    source: str
    status: Status = "active"


def _rule_row(row: BudgetRule) -> RuleRow:
    period, status = cast(PeriodName, row.period), cast(Status, row.status)
    limits = (row.credit_ms, row.rollover_ms)
    rule = Rule(row.effective_at, row.amount_ms, period, row.time_zone, *limits, status == "active")
    return RuleRow(row.id, rule, row.source, status)


def add_rule(
    session: Session, namespace: int, rule: Rule, *, source: str, actor: str, now: int, status: Status = "active"
) -> int:
    """Append a rule; return its id."""
    values = {
        "namespace_id": namespace,
        "effective_at": rule.since,
        "amount_ms": rule.amount,
        "period": rule.period,
        "time_zone": rule.zone,
        "source": source,
        "actor": actor,
        "booked_at": now,
        "credit_ms": rule.credit,
        "rollover_ms": rule.rollover,
        "status": status,
    }
    return session.execute(insert(BudgetRule).values(values).returning(BudgetRule.id)).scalar_one()


def rules(session: Session, namespace: int) -> list[RuleRow]:
    """Return a namespace's rules, oldest first."""
    query = select(BudgetRule).where(BudgetRule.namespace_id == namespace)
    return [_rule_row(row) for row in session.scalars(query.order_by(BudgetRule.effective_at, BudgetRule.id))]


def all_rules(session: Session, cluster: str) -> dict[int, list[Rule]]:
    """Return the rules of all namespaces of a cluster, oldest first."""
    query = select(BudgetRule).join(Namespace, Namespace.id == BudgetRule.namespace_id)
    found: dict[int, list[Rule]] = {}
    rows = session.scalars(query.where(Namespace.cluster == cluster).order_by(BudgetRule.effective_at, BudgetRule.id))
    for row in rows:
        found.setdefault(row.namespace_id, []).append(_rule_row(row).rule)
    return found


def current_rules(session: Session, namespace_ids: Sequence[int]) -> dict[int, RuleRow]:
    """Return the newest rule of each namespace."""
    latest = select(func.max(BudgetRule.id)).where(BudgetRule.namespace_id.in_(namespace_ids))
    query = select(BudgetRule).where(BudgetRule.id.in_(latest.group_by(BudgetRule.namespace_id)))
    return {row.namespace_id: _rule_row(row) for row in session.scalars(query)}


# Grants, and what else comes beside the budget or goes


def add_grant(session: Session, values: dict[str, object]) -> int:
    """Append a grant; return its id."""
    return session.execute(insert(BudgetGrant).values(values).returning(BudgetGrant.id)).scalar_one()


def grant_under(session: Session, namespace: int, key: str) -> BudgetGrant | None:
    """Return the grant that was booked under an idempotency key."""
    return session.scalars(
        select(BudgetGrant).where(BudgetGrant.namespace_id == namespace, BudgetGrant.idempotency_key == key)
    ).one_or_none()


def grants(
    session: Session, namespace: int, kind: str, before: int | None = None, limit: int | None = None
) -> list[BudgetGrant]:
    """Return a namespace's movements of a kind, newest first, from the one before an id on."""
    query = select(BudgetGrant).where(BudgetGrant.namespace_id == namespace, BudgetGrant.kind == kind)
    if before is not None:
        query = query.where(BudgetGrant.id < before)
    return list(session.scalars(query.order_by(BudgetGrant.id.desc()).limit(limit)))


def granted_in_all(session: Session, namespace: int) -> int:
    """Return the sum of all that ever came to a namespace, or went, whichever is more."""
    query = select(func.sum(func.abs(BudgetGrant.amount_ms))).where(BudgetGrant.namespace_id == namespace)
    return int(session.execute(query).scalar() or 0)


def refunded(session: Session, namespace: int, pod_uid: str) -> int:
    """Return what has been refunded of a pod's charge."""
    query = select(func.sum(BudgetGrant.amount_ms)).where(
        BudgetGrant.namespace_id == namespace, BudgetGrant.kind == "refund", BudgetGrant.counterpart == pod_uid
    )
    return int(session.execute(query).scalar() or 0)


def other_side(giver: int, key: str) -> str:
    """Return the key under which the receiving side of a transfer is booked."""
    return "transfer:" + hashlib.sha256(f"{giver}:{key}".encode()).hexdigest()


def transfers(session: Session) -> list[BudgetGrant]:
    """Return both sides of all transfers."""
    return list(session.scalars(select(BudgetGrant).where(BudgetGrant.kind == "transfer").order_by(BudgetGrant.id)))


# The time line


def records(session: Session, namespace: int, after: int | None, *, carry: bool) -> Records:
    """Return what happens to a namespace after an instant (None: ever)."""
    claims = select(Workload.pod_uid, Workload.started_at, Workload.ended_at, Workload.shares)
    claims = claims.where(Workload.namespace_id == namespace)
    moved = select(BudgetGrant).where(BudgetGrant.namespace_id == namespace)
    if after is not None:
        claims = claims.where(or_(Workload.ended_at.is_(None), Workload.ended_at > after))
        moved = moved.where(BudgetGrant.valid_from > after)
    rows = session.scalars(moved.order_by(BudgetGrant.valid_from, BudgetGrant.id)).all()
    book = prices.read(session)
    return Records(
        claims=[book.claim(*row) for row in session.execute(claims.order_by(Workload.started_at, Workload.pod_uid))],
        rules=[row.rule for row in rules(session, namespace)],
        grants=[
            Grant(f"{row.kind}:{row.id}", row.amount_ms, row.valid_from, row.valid_to, _COMES[row.kind], row.priority)
            for row in rows
            if row.amount_ms > 0
        ],
        carry=carry,
        withdrawals=[
            Withdrawal(f"{row.kind}:{row.id}", -row.amount_ms, row.valid_from, _GOES[row.kind])
            for row in rows
            if row.amount_ms < 0
        ],
    )


_COMES: dict[str, PostingKind] = {
    "grant": "allowance", "refund": "refund", "adjustment": "allowance", "transfer": "transfer-in",
}  # fmt: skip
_GOES: dict[str, PostingKind] = {"adjustment": "withdrawal", "transfer": "transfer-out"}


def touched_by(session: Session, since: int) -> list[int]:
    """Return the namespaces that have a pod which held GPUs at an instant or later."""
    query = select(Workload.namespace_id).where(or_(Workload.ended_at.is_(None), Workload.ended_at > since))
    return sorted(session.scalars(query.distinct()))


def anchor_before(session: Session, namespace: int, at: int | None) -> State | None:
    """Return the latest anchor before an instant (None: the latest of all)."""
    query = select(Anchor.state).where(Anchor.namespace_id == namespace)
    if at is not None:
        query = query.where(Anchor.at < at)
    text = session.execute(query.order_by(Anchor.at.desc()).limit(1)).scalar_one_or_none()
    return None if text is None else msgspec.json.decode(text, type=State)


def anchors(session: Session, namespace: int) -> list[State]:
    """Return a namespace's anchors, oldest first."""
    query = select(Anchor.state).where(Anchor.namespace_id == namespace).order_by(Anchor.at)
    return [msgspec.json.decode(text, type=State) for text in session.scalars(query)]


def drop_anchors(session: Session, namespace: int, since: int) -> None:
    """Forget the anchors from an instant on, because a record there has changed."""
    session.execute(delete(Anchor).where(Anchor.namespace_id == namespace, Anchor.at >= since))


def keep_anchors(session: Session, namespace: int, states: list[State], most: int) -> None:
    """Keep new anchors, and of all only the newest `most`: older knowledge is settled from the start."""
    if not states:
        return
    session.execute(
        insert(Anchor),
        [{"namespace_id": namespace, "at": s.at, "state": msgspec.json.encode(s).decode()} for s in states],
    )
    oldest = select(Anchor.at).where(Anchor.namespace_id == namespace).order_by(Anchor.at.desc()).offset(most).limit(1)
    limit = session.execute(oldest).scalar_one_or_none()
    if limit is not None:
        session.execute(delete(Anchor).where(Anchor.namespace_id == namespace, Anchor.at <= limit))
