# SPDX-License-Identifier: Apache-2.0
"""Usage by time from counters, and what retention may throw away, on both databases."""

from __future__ import annotations

import threading
from fractions import Fraction
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from sqlalchemy import text
from support.databases import Databases

from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.wire.timekeeper import UsageReport
from timekeeper.core.caller import Caller
from timekeeper.core.usage_report import SILENCE_MS, HourUsed, Watermark, advance, in_this_hour
from timekeeper.ledger import retention, seal, workload
from timekeeper.ledger.books import Books
from timekeeper.ledger.usage_report import take
from timekeeper.ledger.verify import verify
from timekeeper.ledger.workload import Closing, Opening
from timekeeper.store import usage, watermarks, workloads
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine
from timekeeper.store.usage import UsageQuery

T0 = 1_767_225_600_000
MINUTE, HOUR = 60_000, 3_600_000
DAY = 24 * HOUR
POLICY = NamespacePolicy(budget=BudgetPolicy(amount="99d", period="month"))
OPERATOR = Caller("op", operator=True)


@given(st.lists(st.tuples(st.integers(1, 3 * HOUR), st.one_of(st.none(), st.integers(0, 1_000))), min_size=1))
def test_hours_add_up_to_the_counter_whatever_it_does(steps: list[tuple[int, int | None]]) -> None:
    at, used = T0 + 17, None
    mark, found = None, []
    for wait, more in steps:
        at += wait
        used = used if more is None else (used or 0) + more
        following = Watermark(T0 * 1_000_000, 1, used, at * 1_000_000)
        before, (mark, over) = mark, advance(mark, following, at)
        found += [over] if over else []
        if before is not None and wait > SILENCE_MS:
            assert mark.observed_ms == (before.observed_ms if mark.hour == before.hour else 0)
    assert mark is not None
    found.append(in_this_hour(mark))
    assert all(one.hour < other.hour for one, other in pairwise(found))
    assert sum(one.used_ms or 0 for one in found) == (used or 0)
    assert sum(one.observed_ms for one in found) <= at - T0
    assert all(one.observed_ms <= HOUR for one in found)


def pod(books: Books, uid: str, start: int, end: int | None, **shares: Fraction) -> None:
    name = "other" if uid.startswith("other") else "team"
    opening = Opening(uid, uid, name, f"uid-{name}", "n", (), '{"main":1}', "standard", shares, start, ())
    closings = [] if end is None else [Closing(uid, end, "finished")]
    workload.apply(books, [opening], closings, {name: POLICY}, end or start)


def report(uid: str, at: int, seq: int, used_ms: int | None, begun: int) -> UsageReport:
    return UsageReport(
        namespace="team",
        pod_name=uid,
        pod_uid=uid,
        container="main",
        epoch=begun * 1_000_000,
        seq=seq,
        used_ms=used_ms,
        memory_mib=1_000 - seq,
        monotonic_ns=(at - begun) * 1_000_000,
    )


def tell(books: Books, uid: str, begun: int, until: int, *, every: int = MINUTE) -> None:
    """Have a sidecar report each minute that a tenth of the time was used, and everything twice."""
    for at in range(begun + every, until + 1, every):
        one = report(uid, at, (at - begun) // every, (at - begun) // 10, begun)
        first, second = take(books.database, OPERATOR, [one, one], at)
        assert (first.outcome, second.outcome) == ("accepted", "duplicate"), first


def told(books: Books, now: int, spans: list[tuple[int, int]], group_by: Any = "namespace", **only: Any) -> list[Any]:
    with books.database.reading() as session:
        rows = usage.by_interval(session, UsageQuery("default", spans, group_by, now, **only), (-1, ""), 100)
    return [(r.span, r.group, r.pods, r.unknown_pods, r.allocated, r.used, r.unobserved) for r in rows]


def by_hour(count: int) -> list[tuple[int, int]]:
    return [(T0 + i * HOUR, T0 + (i + 1) * HOUR) for i in range(count)]


def test_usage_by_hour_shows_what_was_held_used_and_not_observed(books: Books) -> None:
    pod(books, "a", T0, None, A100=Fraction(1, 2))
    tell(books, "a", T0, T0 + 90 * MINUTE)
    pod(books, "silent", T0 + 30 * MINUTE, T0 + 60 * MINUTE, H100=Fraction(1))
    pod(books, "other", T0, T0 + HOUR, A100=Fraction(1))
    now = T0 + 2 * HOUR
    minutes = 6_000  # used in a minute
    assert told(books, now, by_hour(3), account=books.require("team").account.id) == [
        # The hour's last report counts in the next hour, by its instant.
        (0, "team", 2, 1, HOUR, 59 * minutes, HOUR // 2),
        (1, "team", 1, 0, HOUR // 2, 31 * minutes, HOUR // 4),
    ]
    assert told(books, now, [(T0, now)], "model") == [
        (0, "A100", 2, 1, HOUR + HOUR, 90 * minutes, HOUR // 4 + HOUR),
        (0, "H100", 1, 1, HOUR // 2, None, HOUR // 2),
    ]
    assert told(books, now, [(T0, now)], "workload", pod_uid="a") == [(0, "a", 1, 0, HOUR, 90 * minutes, HOUR // 4)]
    assert told(books, now, by_hour(2), model="H100") == [(0, "team", 1, 1, HOUR // 2, None, HOUR // 2)]
    with books.database.reading() as session:
        rest = usage.by_interval(session, UsageQuery("default", by_hour(2), "namespace", now), (0, "other"), 1)
    assert [(row.span, row.group) for row in rest] == [(0, "team")]


histories = st.lists(
    st.tuples(
        st.integers(-3 * HOUR, 110 * HOUR),
        st.one_of(st.none(), st.integers(0, 40 * HOUR)),
        st.sampled_from([Fraction(1), Fraction(1, 4), Fraction(7, 2)]),
        st.booleans(),
    ),
    min_size=1,
    max_size=6,
)
"""Pods: when they begin, how long they hold their GPUs, how many, and in which of two namespaces."""


def held_by_hand(pods: list[Any], spans: list[tuple[int, int]], now: int) -> list[tuple[int, str, int, int]]:
    """Return each interval's pods and GPU time by namespace, one pod after the other."""
    found: dict[tuple[int, str], list[Fraction]] = {}
    for begun, lasts, gpus, is_other in pods:
        start = T0 + begun
        end = now if lasts is None else min(start + lasts, now)
        for index, (since, until) in enumerate(spans):
            if start <= now and start < until and end > since:
                wall = min(end, until) - max(start, since)
                found.setdefault((index, "other" if is_other else "team"), []).append(wall * gpus)
    return [(index, name, len(times), sum(map(int, times))) for (index, name), times in sorted(found.items())]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(pods=histories, now=st.integers(1, 130 * HOUR), hours=st.integers(1, 120), limit=st.integers(1, 100))
def test_usage_by_hour_is_what_a_count_pod_by_pod_gives(
    databases: Databases, pods: list[Any], now: int, hours: int, limit: int
) -> None:
    now += T0
    pods = [(start // 4 * 4, lasts if lasts is None else lasts // 4 * 4, *rest) for start, lasts, *rest in pods]
    now = now // 4 * 4
    with databases.migrated() as url:
        books = Books(Database(make_engine(url)), "default", carry=False)
        for index, (start, lasts, gpus, is_other) in enumerate(pods):
            uid = f"{'other' if is_other else 'team'}-{index}"
            pod(books, uid, T0 + start, None if lasts is None else T0 + start + lasts, A100=gpus)
        rows: list[Any] = []
        after = (-1, "")
        while True:  # page by page
            with books.database.reading() as session:
                wanted = UsageQuery("default", by_hour(hours), "namespace", now)
                page = usage.by_interval(session, wanted, after, limit)
            rows += [(row.span, row.group, row.pods, row.allocated) for row in page]
            if len(page) < limit:
                break
            after = (page[-1].span, page[-1].group)
        books.database.close()
    assert rows == held_by_hand(pods, by_hour(hours), now)


def test_a_spool_that_comes_at_once_counts_in_the_hours_in_which_it_was_read(books: Books) -> None:
    pod(books, "a", T0, None, A100=Fraction(1))
    spool = [report("a", at, n + 1, n * 100, T0) for n, at in enumerate(range(T0 + MINUTE, T0 + 150 * MINUTE, MINUTE))]
    now = T0 + 149 * MINUTE
    for start in range(0, len(spool), 50):
        last = spool[: start + 50][-1]
        take(books.database, OPERATOR, spool[start : start + 50], T0 + last.monotonic_ns // 1_000_000)
    assert [(row[0], row[5], row[6]) for row in told(books, now, by_hour(3))] == [
        (0, 5_800, 0),
        (1, 6_000, 0),
        (2, 3_000, 0),
    ]


def test_retention_takes_only_what_it_may_while_pods_report_and_are_charged(books: Books) -> None:
    for i in range(12):
        pod(books, f"old-{i}", T0, T0 + 2 * HOUR, A100=Fraction(1, 3))
    for i in range(0, 12, 2):
        tell(books, f"old-{i}", T0, T0 + 90 * MINUTE, every=30 * MINUTE)
    now = T0 + 40 * DAY
    pod(books, "runs", now, None, A100=Fraction(1))
    tell(books, "runs", now, now + 10 * MINUTE)
    before = told(books, now, [(T0, T0 + DAY)])
    with books.database.reading() as session:
        marks = watermarks.read(session, ["runs"]).marks
    assert retention.sweep(books.database, "default", raw_days=14, usage_days=425, now=now) == (0, 0), "not sealed"
    seal.seal_due(books, DAY, now)
    ledger = "SELECT count(*), sum(amount_ms) FROM entry"
    with books.database.reading() as session:
        entries = session.execute(text(ledger)).one()

    stop, errors = threading.Event(), []

    def load() -> None:
        try:
            sent = 10
            while not stop.is_set():
                sent += 1
                at = now + sent * MINUTE
                (done,) = take(books.database, OPERATOR, [report("runs", at, sent, sent * MINUTE // 10, now)], at)
                (late,) = take(books.database, OPERATOR, [report("old-1", T0 + HOUR, 1, 1, T0)], at)
                assert done.outcome == "accepted"
                assert late.outcome in ("accepted", "duplicate") or late.reason == "pod-archived"
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=load)
    thread.start()
    archived, _ = retention.sweep(books.database, "default", raw_days=14, usage_days=425, now=now)
    stop.set()
    thread.join()
    assert (errors, archived) == ([], 12)
    with books.database.reading() as session:
        assert session.execute(text(ledger)).one() == entries
        kept = session.execute(text("SELECT DISTINCT pod_uid FROM watermark WHERE pod_uid <> 'old-1'")).all()
        assert (kept, set(marks)) == ([("runs",)], {("runs", "main")})
        rows = workloads.by_uid(session, ["old-0", "old-3"])
    assert (rows["old-0"].used_ms, rows["old-3"].used_ms) == (9 * MINUTE, None)
    assert (rows["old-0"].peak_memory_mib, rows["old-3"].peak_memory_mib) == (999, None)
    (after,) = told(books, now, [(T0, T0 + DAY)])
    assert (after[4], after[5] // MINUTE) == (before[0][4], before[0][5] // MINUTE), "old-1 told of 1 ms"
    (refused,) = take(books.database, OPERATOR, [report("old-0", T0 + 2 * HOUR, 99, 99, T0)], now)
    assert (refused.outcome, refused.reason) == ("refused", "pod-archived")
    assert verify(books.database.engine, carry=False).differences == []

    later = T0 + 500 * DAY
    retention.sweep(books.database, "default", raw_days=14, usage_days=425, now=later)
    (gone,) = told(books, now, [(T0, T0 + DAY)])
    assert (gone[4], gone[5]) == (before[0][4], None)


def test_postgresql_keeps_a_partition_for_each_month_and_drops_old_ones(databases: Databases) -> None:
    if databases.kind != "postgresql":
        pytest.skip("of PostgreSQL alone")
    query = "SELECT inhrelid::regclass::text FROM pg_inherits WHERE inhparent = 'usage_hour'::regclass ORDER BY 1"
    with databases.migrated() as url:
        database = Database(make_engine(url))

        def months(now: int) -> list[str]:
            retention.sweep(database, "default", raw_days=14, usage_days=60, now=now)
            with database.reading() as session:
                return list(session.scalars(text(query)))

        try:
            for _ in range(2):
                assert months(T0) == ["usage_hour_2026_01", "usage_hour_2026_02", "usage_hour_rest"]
            hour = HourUsed(T0 * 1_000_000, T0 + 40 * DAY, 1, 1)
            database.write(lambda session: usage.add(session, [("a", "main", hour)]))
            with database.reading() as session:
                assert session.execute(text("SELECT count(*) FROM usage_hour_2026_02")).scalar_one() == 1
            assert months(T0 + 200 * DAY) == ["usage_hour_2026_07", "usage_hour_2026_08", "usage_hour_rest"]
        finally:
            database.close()
