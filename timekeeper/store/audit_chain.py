# SPDX-License-Identifier: Apache-2.0
"""The audit log, as a chain: each record's hash covers its content and the previous hash.

A record is appended in the transaction that it records. If two processes append at once, one fails because of the
unique key on the previous hash, and retries.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
from sqlalchemy import insert, select
from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.store.db.models import AuditRecord

FIRST: Final = "0" * 64

UID: Final = "namespaceUid"
"""The key in a record's detail for the UID of the namespace that it is about."""


def append(
    session: Session, *, cluster: str, actor: str, action: str, namespace: str, detail: Mapping[str, Any], now: Instant
) -> None:
    """Append a record of an action."""
    previous = session.execute(select(AuditRecord.hash).order_by(AuditRecord.id.desc()).limit(1)).scalar_one_or_none()
    text = msgspec.json.encode(detail, order="sorted").decode()
    values = {
        "at": now,
        "cluster": cluster,
        "actor": actor,
        "action": action,
        "namespace": namespace,
        "detail": text,
        "prev_hash": previous or FIRST,
    }
    session.execute(insert(AuditRecord).values(**values, hash=_hash(values)))


def _hash(values: Mapping[str, Any]) -> str:
    parts = [values[key] for key in ("prev_hash", "at", "cluster", "actor", "action", "namespace", "detail")]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()


def page(
    session: Session, cluster: str, title: str, after: int, limit: int, *, uid: str | None = None
) -> list[AuditRecord]:
    """Return a cluster's records in order, beginning after an id; of one budget if its title is given.

    `uid` distinguishes namespaces that had the same name. Older records have none, and count for all of them.
    """
    query = select(AuditRecord).where(AuditRecord.cluster == cluster, AuditRecord.id > after)
    if title:
        query = query.where(AuditRecord.namespace == title)
    if uid is not None:
        mine = msgspec.json.encode({UID: uid}).decode()[1:-1]  # no text in the detail has its quotes unescaped
        some = AuditRecord.detail.contains(f'"{UID}":"', autoescape=True)
        query = query.where(AuditRecord.detail.contains(mine, autoescape=True) | ~some)
    return list(session.scalars(query.order_by(AuditRecord.id).limit(limit)))


def broken(session: Session) -> Iterator[str]:
    """Yield each break in the chain."""
    previous = FIRST
    for row in session.scalars(select(AuditRecord).order_by(AuditRecord.id).execution_options(yield_per=1000)):
        values = {key: getattr(row, key) for key in ("at", "cluster", "actor", "action", "namespace", "detail")}
        if row.prev_hash != previous:
            yield f"audit record {row.id}: it does not follow the record before it"
        elif _hash({**values, "prev_hash": row.prev_hash}) != row.hash:
            yield f"audit record {row.id}: it was changed"
        previous = row.hash
