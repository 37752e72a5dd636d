# SPDX-License-Identifier: Apache-2.0
"""Delete old data, but never the ledger or a record that it depends on.

Watermarks are raw: they are deleted some days after their pod has ended and its period is sealed. Later reports of the
pod are refused, so that none can count twice. Hours of usage are kept longer. Each transaction is small, so that
reports and charges never wait for it.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy.orm import Session

from slicekeeper.units import MS_PER_DAY, Instant
from timekeeper.store import usage
from timekeeper.store.db.database import Database

_AT_ONCE: Final = 500


def sweep(database: Database, cluster: str, *, raw_days: int, usage_days: int, now: Instant) -> tuple[int, int]:
    """Delete what is old enough; return how many pods were archived, and how many hours were deleted one by one."""
    usage_before = Instant(now - usage_days * MS_PER_DAY)
    database.write(lambda session: usage.rotate_partitions(session, now, usage_before))

    def archive(session: Session) -> int:
        uids = usage.archivable(session, cluster, Instant(now - raw_days * MS_PER_DAY), _AT_ONCE)
        if uids:
            usage.archive(session, uids, now)
        return len(uids)

    def forget(session: Session) -> int:
        return usage.forget_hours(session, usage_before, _AT_ONCE)

    archived = forgotten = 0
    while done := database.write(archive):
        archived += done
    while done := database.write(forget):
        forgotten += done
    return archived, forgotten
