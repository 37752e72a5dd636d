# SPDX-License-Identifier: Apache-2.0
"""Read the audit log."""

from __future__ import annotations

import msgspec
from flask import Response, request

from slicekeeper.units import format_instant
from timekeeper.api import answers, paging, parse
from timekeeper.api.budget_owner import listed_namespace
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.problems import Problem
from timekeeper.api.schemas.audit import AuditEntry, AuditList
from timekeeper.store import accounts, audit_chain
from timekeeper.store.db.models import AuditRecord


def listed(context: HandlerContext) -> Response:
    """Return a page of the audit log, of one namespace or parent if it is named."""
    owner, above = listed_namespace(context, "audit"), request.args.get("parent", "")
    if owner and above:
        raise Problem(422, "query-invalid", "parent: name either a namespace or a parent", "parent")
    limit, after = paging.limit(), paging.cursor(int) or 0
    with context.books.database.reading() as session:
        rows: list[AuditRecord] = []
        if owner is None:
            parent = accounts.require_parent(session, context.books.cluster, parse.parent(above)) if above else None
            rows = audit_chain.page(session, context.books.cluster, parent.title if parent else "", after, limit + 1)
        elif account := owner.find(session):
            rows = audit_chain.page(session, context.books.cluster, account.title, after, limit + 1, uid=account.uid)
    rows, more = paging.page(rows, limit, lambda row: row.id)
    items = [
        AuditEntry(
            id=row.id,
            at=format_instant(row.at),
            actor=row.actor,
            action=row.action,
            namespace=row.namespace,
            detail=msgspec.json.decode(row.detail, type=dict[str, str | int]),
            prev_hash=row.prev_hash,
            hash=row.hash,
        )
        for row in rows
    ]
    return answers.json(AuditList(items=items, next_cursor=more))
