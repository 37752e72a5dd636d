# SPDX-License-Identifier: Apache-2.0
"""Write to the audit log that a pod vanished and its interval was closed at the last instant that is known of it."""

from __future__ import annotations

import logging
from typing import Final

from sqlalchemy.orm import Session

from slicekeeper.units import Instant
from timekeeper.ledger.books import Books
from timekeeper.store import accounts
from timekeeper.store.db.models import WorkloadRow

log = logging.getLogger(__name__)

LAST_CONFIRMED: Final = "last-confirmed"
"""The source of an interval's end if its pod vanished although it had our finalizer."""


def note(books: Books, session: Session, workload: WorkloadRow, end: Instant, now: Instant) -> None:
    """Log an interval that was closed although no record of the pod shows its end."""
    account = accounts.by_id(session, [workload.namespace_id])[workload.namespace_id]
    detail = {"podUid": workload.pod_uid, "podName": workload.pod_name, "endMs": end}
    log.warning("pod %s/%s (%s) is gone, its record too: closed", account.name, workload.pod_name, workload.pod_uid)
    books.audit(session, actor="timekeeper", action="orphan-closed", about=account, detail=detail, now=now)
