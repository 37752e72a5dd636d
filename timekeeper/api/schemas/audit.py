# SPDX-License-Identifier: Apache-2.0
"""Answers about the audit log."""

from __future__ import annotations

from slicekeeper.wire.timekeeper import Wire


class AuditEntry(Wire, frozen=True, kw_only=True):
    """One action. `hash` covers all of it and the previous hash."""

    id: int
    at: str
    actor: str
    action: str
    namespace: str
    detail: dict[str, str | int]
    prev_hash: str
    hash: str


class AuditList(Wire, frozen=True, kw_only=True):
    """A page of the audit log, in its order."""

    items: list[AuditEntry]
    next_cursor: str | None = None
