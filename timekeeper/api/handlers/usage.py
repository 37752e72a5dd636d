# SPDX-License-Identifier: Apache-2.0
"""Read how much GPU time was held, used and not observed, by time, or by a namespace in this period."""

from __future__ import annotations

from typing import Final, cast, get_args

from flask import Response, request

from slicekeeper.units import EPOCH, Instant, format_if_known, format_instant
from timekeeper.api import answers, paging, parse
from timekeeper.api.budget_owner import NamespaceOwner, listed_namespace
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.problems import Problem
from timekeeper.api.schemas.usage import Usage, UsageBucket, UsageList
from timekeeper.api.views.budget_state import running_period, state_at
from timekeeper.core.period import PeriodName, bounds
from timekeeper.store import usage, workloads
from timekeeper.store.usage import GroupBy, UsageQuery

_BUCKETS: Final[tuple[PeriodName, ...]] = ("hour", "day", "month")
_MOST_BUCKETS: Final = 1_000


def listed(context: HandlerContext) -> Response:
    """Return a page of usage by interval and group; without an interval of the current day, hour by hour."""
    owner = listed_namespace(context)
    now, zone = context.clock.now_ms(), parse.time_zone(request.args.get("timeZone") or "UTC")
    bucket = cast(PeriodName, parse.choice("bucket", _BUCKETS))
    group_by = cast(GroupBy, parse.choice("groupBy", get_args(GroupBy)))
    start, end = parse.interval(bounds(now, "day", zone) or (EPOCH, now))
    limit, (after, group) = paging.limit(), paging.cursor(tuple[int, str]) or (-1, "")
    spans = _spans(start, end, bucket, zone)
    with context.books.database.reading() as session:
        account = None if owner is None else owner.find(session)
        wanted = UsageQuery(
            cluster=context.books.cluster,
            spans=spans,
            group_by=group_by,
            now=now,
            account=None if account is None else account.id,
            pod_uid=parse.plain("podUid", 64),
            model=parse.plain("model"),
        )
        nothing = owner is not None and account is None
        rows = [] if nothing else usage.by_interval(session, wanted, (after, group), limit + 1)
    rows, more = paging.page(rows, limit, lambda row: (row.span, row.group))
    items = [
        UsageBucket(
            start=format_instant(spans[row.span][0]),
            end=format_instant(spans[row.span][1]),
            group=row.group,
            workloads=row.pods,
            unknown_workloads=row.unknown_pods,
            allocated_ms=row.allocated,
            used_ms=row.used,
            # Reports may be a little ahead of the clock that says how long the pods held their GPUs.
            unobserved_ms=max(min(row.unobserved, row.allocated - (row.used or 0)), 0),
        )
        for row in rows
    ]
    return answers.json(UsageList(group_by=group_by, items=items, as_of=format_instant(now), next_cursor=more))


def _spans(start: Instant, end: Instant, bucket: PeriodName, zone: str) -> list[tuple[Instant, Instant]]:
    spans: list[tuple[Instant, Instant]] = []
    while start < end:
        try:
            _, until = bounds(start, bucket, zone) or (start, end)
        except (ValueError, OverflowError) as error:  # a calendar ends with the year 9999, a zone's a bit before
            raise Problem(422, "interval-invalid", "to: it must be before the year 9999", "to") from error
        spans.append((start, min(until, end)))
        start = until
        if len(spans) > _MOST_BUCKETS:
            raise Problem(
                422, "interval-invalid", f"the interval has more than {_MOST_BUCKETS} buckets; use a shorter one", "to"
            )
    return spans


def of_namespace(context: HandlerContext, namespace: str) -> Response:
    """Return a namespace's charges in this period, and its pods' usage."""
    name = parse.namespace(namespace)
    context.allow("get", name)
    now = context.clock.now_ms()
    standing = NamespaceOwner(context, name).standing()
    state = state_at(standing, context.policy.of(name), now)
    start, _ = running_period(standing, state)
    used = workloads.UsageSum(0, 0, 0)
    if standing is not None:
        with context.books.database.reading() as session:
            used = workloads.used(session, standing.account.id, start or EPOCH)
    return answers.json(
        Usage(
            namespace=name,
            period_start=format_if_known(start),
            charged_ms=state.used,
            over_budget_ms=state.over,
            workloads=used.pods,
            used_ms=used.total if used.known else None,
            unknown_workloads=used.pods - used.known,
            as_of=format_instant(now),
        )
    )
