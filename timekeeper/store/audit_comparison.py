# SPDX-License-Identifier: Apache-2.0
"""Compare people's actions in the records with those in the audit log.

The log's chain shows whether a record in its middle was changed or removed. It cannot show that its end was cut off, or
rewritten by a person who can compute hashes: the comparison with the records can.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import ColumnElement, Row, Select, or_, select
from sqlalchemy.orm import Session

from timekeeper.store.db.models import (
    AuditRecord,
    BudgetGrant,
    BudgetRule,
    DebtRule,
    IntervalCorrectionRow,
    Membership,
    Namespace,
    Rate,
    ReservationRow,
    Seal,
)
from timekeeper.store.seals import BY_ITSELF

_MOVEMENTS: Final = ("grant", "refund", "adjustment", "transfer")
_RULES: Final = ("budget", "status", "team", "organisation")
_KEPT: Final = (*_MOVEMENTS, *_RULES, "rate", "withdraw", "interval")
"""Actions whose records no migration removes."""

_Act = tuple[str, tuple[Any, ...]]


def differences(session: Session) -> Iterator[str]:
    """Yield the records that are missing in the audit log, and its entries without a record."""
    recorded = _recorded(session)
    missing = set(recorded)
    for what, key in _done(session):
        digest = _digest(key)
        missing.discard(digest)
        if digest not in recorded:
            yield f"{what} is not in the audit log, or differs there"
    for digest in missing:
        record, action = recorded[digest]
        if action in _KEPT:
            yield f"audit record {record}: the {action} that it names is not there, or differs"


def _digest(key: tuple[Any, ...]) -> bytes:
    """Return a short stand-in for a key: millions of them are in memory together."""
    return hashlib.sha256(msgspec.json.encode(key)).digest()[:16]


def _recorded(session: Session) -> dict[bytes, tuple[int, str]]:
    """Return ID and action of audit records by their subject."""
    recorded: dict[bytes, tuple[int, str]] = {}
    for record in session.scalars(select(AuditRecord).order_by(AuditRecord.id).execution_options(yield_per=1000)):
        detail = msgspec.json.decode(record.detail, type=dict[str, Any])
        key = _key(record, detail)
        if key is not None:
            recorded[_digest(key)] = (record.id, record.action)
    return recorded


def _key(record: AuditRecord, detail: Mapping[str, Any]) -> tuple[Any, ...] | None:
    """Return what an audit record and the record of the same action have in common; None if it is no such action."""
    action, who = record.action, (record.cluster, record.namespace, record.actor)
    if action in _MOVEMENTS:
        return action, *who, *map(detail.get, ("id", "amountMs", "reason", "counterpart"))
    if action in _RULES:
        return "rule", *who, record.at
    if action == "rate":
        return action, *map(detail.get, ("model", "rate", "effectiveAt"))
    if action == "debt":
        return action, record.cluster, *map(detail.get, ("debt", "effectiveAt"))
    if action == "reservation":
        return action, *who, *map(detail.get, ("id", "amountMs", "reason"))
    if action == "interval":
        return action, *who, *map(detail.get, ("id", "podUid", "startMs", "endMs", "reason"))
    if action in ("release", "withdraw"):
        return action, record.cluster, record.namespace, detail.get("id")
    if action in ("parent", "seal"):
        return action, *who, detail.get("effectiveAt" if action == "parent" else "until")
    return None


def _with_account(model: Any, account: Any, *conditions: ColumnElement[bool]) -> Select[Any]:
    """Select records together with the account in whose name they were made, which `account` refers to."""
    query = select(model, Namespace.cluster, Namespace.kind, Namespace.name).join(Namespace, Namespace.id == account)
    return query.where(*conditions)


def _done(session: Session) -> Iterator[_Act]:
    """Yield people's actions from the records: a description, and what the audit log must contain (see `_key`)."""
    steps: tuple[tuple[Select[Any], Callable[[Any, tuple[str, str]], _Act]], ...] = (
        (
            _with_account(BudgetGrant, BudgetGrant.namespace_id),
            lambda r, at: (f"{r.kind} {r.id}", (r.kind, *at, r.actor, r.id, r.amount_ms, r.reason, r.counterpart)),
        ),
        (
            _with_account(BudgetGrant, BudgetGrant.namespace_id, BudgetGrant.withdrawn_at.is_not(None)),
            lambda r, at: (f"the withdrawal of grant {r.id}", ("withdraw", *at, r.id)),
        ),
        (
            _with_account(IntervalCorrectionRow, IntervalCorrectionRow.namespace_id),
            lambda r, at: (
                f"correction {r.id} of the interval of pod {r.pod_uid}",
                ("interval", *at, r.actor, r.id, r.pod_uid, r.started_at, r.ended_at, r.reason),
            ),
        ),
        (
            _with_account(
                BudgetRule, BudgetRule.namespace_id, or_(BudgetRule.source == "own", BudgetRule.actor != "policy")
            ),
            lambda r, at: (f"budget rule {r.id}", ("rule", *at, r.actor, r.effective_at)),
        ),
        (
            _with_account(Membership, Membership.child_id),
            lambda r, at: (f"membership {r.id}", ("parent", *at, r.actor, r.effective_at)),
        ),
        (
            _with_account(Seal, Seal.namespace_id, Seal.actor != BY_ITSELF),
            lambda r, at: (f"the seal of {at[1]} up to {r.until}", ("seal", *at, r.actor, r.until)),
        ),
        (
            _with_account(ReservationRow, ReservationRow.namespace_id, ReservationRow.pod_uid.is_(None)),
            lambda r, at: (f"reservation {r.id}", ("reservation", *at, r.actor, r.id, r.amount_ms, r.reason)),
        ),
        (
            _with_account(ReservationRow, ReservationRow.namespace_id, ReservationRow.outcome == "released"),
            lambda r, at: (f"the release of reservation {r.id}", ("release", *at, r.id)),
        ),
    )
    for query, act_of in steps:
        for row in session.execute(query.execution_options(yield_per=1000)):
            yield act_of(row[0], _account_of(row))
    for rate in session.scalars(select(Rate).where(Rate.source == "rest")):
        yield f"rate {rate.id}", ("rate", rate.model, str(rate.rate), rate.effective_at)
    for debt in session.scalars(select(DebtRule).where(DebtRule.effective_at > 0)):
        yield f"debt rule of {debt.effective_at}", ("debt", debt.cluster, debt.debt, debt.effective_at)


def _account_of(row: Row[Any]) -> tuple[str, str]:
    """Return the cluster and the display name of the account that has the record."""
    return row.cluster, row.name if row.kind == "namespace" else f"{row.kind} {row.name}"
