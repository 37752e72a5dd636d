# SPDX-License-Identifier: Apache-2.0
"""Execute a request once per idempotency key, also if it changes nothing: a repetition undoes nothing later.

What a request appends (a movement, a reservation, a correction) keeps the key in its own row: `movement.once`.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.core.refusal import KeyReused
from timekeeper.ledger.books import Books
from timekeeper.store import executed_requests
from timekeeper.store.db.models import ExecutedRequest


@dataclass(frozen=True)
class KeyedRequest:
    """A request under an idempotency key; `digest` distinguishes it from another one under the same key."""

    key: str
    digest: str
    now: Instant


def repeated(books: Books, session: Session, subject: str, asked: KeyedRequest | None) -> bool:
    """Return whether a request was executed before under its key; otherwise keep the key: the caller executes it.

    `subject` is the UID of the account that it changes. Raises KeyReused if another request had the key.
    """
    if executed(books, session, subject, asked) is not None:
        return True
    keep(books, session, subject, asked)
    return False


def executed(books: Books, session: Session, subject: str, asked: KeyedRequest | None) -> ExecutedRequest | None:
    """Return the same request as it was executed before under its key; None if it is new.

    Raises KeyReused if another request had the key.
    """
    if asked is None:
        return None
    before = executed_requests.under(session, books.cluster, subject, asked.key)
    if before is not None and before.request_hash != asked.digest:
        raise KeyReused(f"Idempotency-Key {asked.key!r} was already used for another request; send another key")
    return before


def keep(
    books: Books, session: Session, subject: str, asked: KeyedRequest | None, *, rate_since: Instant | None = None
) -> None:
    """Keep the key of a request that this transaction executes."""
    if asked is not None:
        digest, now = asked.digest, asked.now
        executed_requests.add(
            session, books.cluster, subject, asked.key, request_hash=digest, rate_since=rate_since, now=now
        )


def keep_only(books: Books, subject: str, asked: KeyedRequest | None) -> None:
    """Keep the key of a request that changes nothing."""
    if asked is not None:
        books.database.write(lambda session: repeated(books, session, subject, asked))
