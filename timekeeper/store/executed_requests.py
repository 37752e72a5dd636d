# SPDX-License-Identifier: Apache-2.0
"""Idempotency keys of executed requests; what a request appends keeps its key itself: `idempotent_rows`."""

from __future__ import annotations

from sqlalchemy import insert
from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.store.db.models import ExecutedRequest


def under(session: Session, cluster: str, subject: str, key: str) -> ExecutedRequest | None:
    """Return the request that was executed under an idempotency key."""
    return session.get(ExecutedRequest, (cluster, subject, key))


def add(
    session: Session,
    cluster: str,
    subject: str,
    key: str,
    *,
    request_hash: str,
    rate_since: Instant | None,
    now: Instant,
) -> None:
    """Keep the key of a request that is executed in this transaction."""
    values = {
        "cluster": cluster,
        "subject": subject,
        "idempotency_key": key,
        "request_hash": request_hash,
        "rate_since": rate_since,
        "executed_at": now,
    }
    session.execute(insert(ExecutedRequest).values(values))
