# SPDX-License-Identifier: Apache-2.0
"""List the pods that the ledger knows."""

from __future__ import annotations

from flask import Response

from slicekeeper.units import Instant, format_instant
from slicekeeper.wire.timekeeper import WorkloadList
from timekeeper.api import answers, paging, parse
from timekeeper.api.budget_owner import listed_namespace
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.views import workload
from timekeeper.store import workloads


def listed(context: HandlerContext) -> Response:
    """Return a page of workloads, newest first."""
    owner = listed_namespace(context)
    state = parse.choice("state", ("all", "running", "closed"))
    limit, before = paging.limit(), paging.cursor(tuple[Instant, str])
    with context.books.database.reading() as session:
        account = None if owner is None else owner.find(session)
        rows = []
        if owner is None or account is not None:
            key = None if account is None else account.id
            rows = workloads.page(session, context.books.cluster, key, before, limit + 1, state)
    rows, more = paging.page(rows, limit, lambda row: (row[0].started_at, row[0].pod_uid))
    now = context.clock.now_ms()
    items = workload.workload_views(context.books, rows, now)
    return answers.json(WorkloadList(items=items, as_of=format_instant(now), next_cursor=more))
