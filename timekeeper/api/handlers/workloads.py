# SPDX-License-Identifier: Apache-2.0
"""Pods as the ledger has them, and a namespace's usage."""

from __future__ import annotations

from flask import Response

from slicekeeper.units import format_instant
from slicekeeper.wire.timekeeper import WorkloadList
from timekeeper.api import requests, views
from timekeeper.api.holders import NamespaceHolder, named
from timekeeper.api.schemas import Usage
from timekeeper.api.service import service
from timekeeper.store import workloads


def listed() -> Response:
    """Return a page of workloads, newest first."""
    it = service()
    whose = named(it)
    if whose is None:
        it.allow("list", "")
    else:
        whose.allow("list")
    limit, before = requests.limit(), requests.cursor(tuple[int, str])
    with it.books.database.reading() as session:
        known = None if whose is None else whose.find(session)
        rows = []
        if whose is None or known is not None:
            key = None if known is None else known.id
            rows = workloads.page(session, it.books.cluster, key, before, limit + 1)
    now = it.clock.now_ms()
    items = views.workload_views(it.books, rows[:limit], now)
    last = rows[limit - 1][0] if len(rows) > limit else None
    more = None if last is None else requests.next_cursor((last.started_at, last.pod_uid))
    return requests.answer(WorkloadList(items=items, as_of=format_instant(now), next_cursor=more))


def usage(namespace: str) -> Response:
    """Return what a namespace was charged in this period, and what its pods used."""
    it, name = service(), requests.namespace(namespace)
    it.allow("get", name)
    now = it.clock.now_ms()
    position = NamespaceHolder(it, name).position()
    state = views.standing(position, it.policy.of(name), now)
    used = workloads.Used(0, 0, 0)
    if position is not None:
        with it.books.database.reading() as session:
            used = workloads.used(session, position.known.id, state.period_start or 0)
    return requests.answer(
        Usage(
            namespace=name,
            period_start=None if state.period_start is None else format_instant(state.period_start),
            charged_ms=state.used,
            over_budget_ms=state.over,
            workloads=used.pods,
            used_ms=used.total if used.known else None,
            unknown_workloads=used.pods - used.known,
            as_of=format_instant(now),
        )
    )
