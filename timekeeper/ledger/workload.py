# SPDX-License-Identifier: Apache-2.0
"""Book what the pods' own records show: that a pod holds GPUs, and that it has released them."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from sqlalchemy.orm import Session

from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.units import Instant
from timekeeper.core import rate
from timekeeper.core.account import AccountId
from timekeeper.core.interval import LAST_CONFIRMED
from timekeeper.ledger.account import AccountRef, ensure_account
from timekeeper.ledger.books import Books
from timekeeper.ledger.settlement import settle_all
from timekeeper.ledger.stretch import Interval
from timekeeper.store import accounts, workloads
from timekeeper.store.db.models import WorkloadRow

log = logging.getLogger(__name__)

Changes = list[tuple[AccountId, Instant, str, Interval | None]]
"""Accounts that change, when, and by which pod, with its interval before (None: it is new)."""


@dataclass(frozen=True)
class Opening:
    """A pod that holds GPUs, in the state in which it is first seen."""

    pod_uid: str
    pod_name: str
    namespace: str
    namespace_uid: str
    node: str
    gpus: tuple[str, ...]
    holders: str
    gpu_class: str
    shares: Mapping[str, Fraction]
    """GPUs held per millisecond before rates, by model."""
    start: Instant
    flags: tuple[str, ...]
    created: Instant | None = None
    """When the API server created the pod; None if its record does not say."""


@dataclass(frozen=True)
class Closing:
    """The end of a pod's interval."""

    pod_uid: str
    end: Instant
    source: str
    flags: tuple[str, ...] = ()


def _row_of(opening: Opening, budget: AccountId, now: Instant) -> dict[str, Any]:
    """Return the row of a pod that is new."""
    return {
        "pod_uid": opening.pod_uid,
        "namespace_id": budget,
        "pod_name": opening.pod_name,
        "node": opening.node,
        "gpus": ",".join(opening.gpus),
        "holders": opening.holders,
        "gpu_class": opening.gpu_class,
        "shares": rate.encode_shares(opening.shares),
        "opened_at": now,
        "created_at": opening.created,
        "closed_at": None,
        "started_at": opening.start,
        "ended_at": None,
        "end_source": "",
        "flags": ",".join(opening.flags),
        "heard_at": None,
        "models": ",".join(sorted(filter(None, opening.shares)))[:253],
        "gpus_ppm": round(sum(opening.shares.values()) * 1_000_000),
    }


def apply(
    books: Books,
    openings: Collection[Opening],
    closings: Collection[Closing],
    policies: dict[str, NamespacePolicy],
    now: Instant,
) -> None:
    """Append intervals that opened and ended, and settle their namespaces, in one transaction."""

    def change(session: Session) -> None:
        changes = [*_open(books, session, openings, policies, now), *_close(books, session, closings, now)]
        since: dict[AccountId, Instant] = {}
        pods: dict[str, Interval | None] = {}
        for account, at, uid, before in changes:
            since[account] = min(at, since.get(account, at))
            pods.setdefault(uid, before)
        settle_all(books, session, since, now, pods)

    books.database.write(change)


def leave_unmetered(books: Books, uids: Collection[str], now: Instant) -> None:
    """Record that pods which are seen for the first time are not metered; those that the ledger knows stay as they are.

    Raises the database's error if they cannot be recorded now.
    """

    def change(session: Session) -> None:
        known = workloads.by_uid(session, uids).keys() | workloads.unmetered(session, uids)
        workloads.add_unmetered(session, set(uids) - known, now)

    if uids:
        books.database.write(change)


def _open(
    books: Books, session: Session, openings: Collection[Opening], policies: dict[str, NamespacePolicy], now: Instant
) -> Changes:
    uids = {opening.pod_uid for opening in openings}
    there = workloads.by_uid(session, uids).keys() | workloads.unmetered(session, uids)
    rows: list[dict[str, Any]] = []
    changes: Changes = []
    for opening in openings:
        if opening.pod_uid in there:  # its start may have been corrected since, or another process left it unmetered
            continue
        ref = AccountRef(opening.namespace_uid, opening.namespace, policies[opening.namespace])
        account = ensure_account(books, session, ref, now)
        rows.append(_row_of(opening, account.id, now))
        changes.append((account.id, opening.start, opening.pod_uid, None))
    workloads.add(session, rows)
    return changes


def _close(books: Books, session: Session, closings: Collection[Closing], now: Instant) -> Changes:
    there = workloads.by_uid(session, {c.pod_uid for c in closings})
    ends: list[dict[str, Any]] = []
    changes: Changes = []
    for closing in closings:
        workload = there.get(closing.pod_uid)
        if workload is None or workload.ended_at is not None:
            continue
        end = max(closing.end, workload.started_at)
        flags = sorted({*filter(None, workload.flags.split(",")), *closing.flags})
        seen = max(now, end - CLOCK_SKEW_MS)  # the clock of the program that recorded the end showed at least that
        ends.append(
            {"uid": closing.pod_uid, "end": end, "source": closing.source, "flags": ",".join(flags), "seen": seen}
        )
        changes.append((workload.namespace_id, end, closing.pod_uid, (workload.started_at, None)))
        if closing.source == LAST_CONFIRMED:
            _report_vanished(books, session, workload, end, now)
    workloads.close(session, ends)
    return changes


def _report_vanished(books: Books, session: Session, workload: WorkloadRow, end: Instant, now: Instant) -> None:
    """Log an interval that was closed although no record of the pod shows its end, also in the audit log."""
    account = accounts.by_id(session, [workload.namespace_id])[workload.namespace_id]
    detail = {"podUid": workload.pod_uid, "podName": workload.pod_name, "endMs": end}
    log.warning("pod %s/%s (%s) is gone, its record too: closed", account.name, workload.pod_name, workload.pod_uid)
    books.audit(session, actor="timekeeper", action="orphan-closed", about=account, detail=detail, now=now)
