# SPDX-License-Identifier: Apache-2.0
"""Read standings and what is booked so that both show the same state of the ledger."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from sqlalchemy.orm import Session

from timekeeper.store.db.database import Database

S = TypeVar("S")
B = TypeVar("B")

_TRIES: Final = 5


def read_with_bookings(
    database: Database, standings: Callable[[], S], bookings: Callable[[Session, S], B]
) -> tuple[S, B]:
    """Return standings and the bookings that belong to them.

    A posting that is settled between the two reads would be counted as booked and as due, so both are repeated until
    the standings are the same before and after, or the tries are used up.
    """
    now = standings()
    for _ in range(_TRIES):
        with database.reading() as session:
            booked = bookings(session, now)
        before, now = now, standings()
        if now == before:
            break
    return now, booked
