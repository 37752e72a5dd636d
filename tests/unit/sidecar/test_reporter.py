# SPDX-License-Identifier: Apache-2.0
import threading
from pathlib import Path

import pytest
from support.manual_clock import ManualClock

from sidecar.commands import build
from sidecar.epoch import EpochCounter
from sidecar.reporter import Reporter
from sidecar.spool import Spool
from sidecar.usage_file import STALE_NS, FileUsage, UsageReading
from slicekeeper.config.settings import Settings, SidecarSettings
from slicekeeper.errors import ServiceError, SettingsError, Unavailable
from slicekeeper.wire.timekeeper import ReportAnswer, ReportOutcome, UsageReport


class Timekeeper:
    """Takes reports, or raises what it is told to."""

    def __init__(self) -> None:
        self.taken: list[UsageReport] = []
        self.error: ServiceError | None = None
        self.terminate_after = 10**9

    def report(self, reports: list[UsageReport]) -> ReportAnswer:
        if self.error is not None:
            raise self.error
        self.taken += reports
        outcomes = [ReportOutcome(outcome="accepted") for _ in reports]
        return ReportAnswer(outcomes=outcomes, terminate=len(self.taken) >= self.terminate_after)


def reporter(tmp_path: Path, sink: Timekeeper, usage: object = None) -> Reporter:
    settings = SidecarSettings(namespace="a", pod_name="p", pod_uid="u", containers=("c",), spool_dir=str(tmp_path))
    return Reporter(
        settings=settings,
        clock=ManualClock(),
        timekeeper=sink,
        usage=usage or FileUsage(tmp_path / "none"),  # type: ignore[arg-type]
        spool=Spool(tmp_path, 1 << 20),
        counters={"c": EpochCounter(tmp_path, "c", now_ns=lambda: 5)},
    )


def test_reports_until_the_timekeeper_says_to_leave(tmp_path: Path) -> None:
    sink = Timekeeper()
    sink.terminate_after = 3
    reporter(tmp_path, sink).run(threading.Event())
    assert [r.seq for r in sink.taken] == [1, 2, 3]
    assert [r.monotonic_ns for r in sink.taken] == [0, 10_000_000_000, 20_000_000_000]
    assert {r.used_ms for r in sink.taken} == {None}


def test_last_report_on_stop_says_so(tmp_path: Path) -> None:
    sink, stop = Timekeeper(), threading.Event()
    stop.set()
    reporter(tmp_path, sink).run(stop)
    assert [(r.seq, r.final) for r in sink.taken] == [(1, False), (2, True)]


def test_reports_wait_while_the_timekeeper_is_away_and_arrive_in_order(tmp_path: Path) -> None:
    sink = Timekeeper()
    rep = reporter(tmp_path, sink)
    sink.error = Unavailable("down")
    for _ in range(5):
        rep.observe()
        rep.flush()
    assert rep.pause() == 80.0
    sink.error = None
    rep.observe()
    rep.flush()
    assert [r.seq for r in sink.taken] == [1, 2, 3, 4, 5, 6]
    assert rep.pause() == 10.0


def test_batch_that_will_never_be_taken_is_dropped_but_one_refused_for_a_token_waits(tmp_path: Path) -> None:
    sink = Timekeeper()
    rep = reporter(tmp_path, sink)
    sink.error = ServiceError("unknown field", 422)
    rep.observe()
    rep.flush()
    assert not rep.spool
    sink.error = ServiceError("token expired", 401)
    rep.observe()
    rep.flush()
    assert len(rep.spool) == 1


class Readings:
    """Returns one reading after the other, the last one again and again."""

    def __init__(self, *readings: UsageReading) -> None:
        self.left = list(readings)

    def read(self, _container: str) -> UsageReading:
        return self.left.pop(0) if len(self.left) > 1 else self.left[0]


def test_memory_is_reported_and_the_last_line_of_the_log_tells_the_most(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sink, stop = Timekeeper(), threading.Event()
    stop.set()
    readings = Readings(UsageReading(0, "node", "a", 512), UsageReading(7, "node", "a", 0))
    with caplog.at_level("INFO"):
        reporter(tmp_path, sink, readings).run(stop)
    assert [(r.used_ms, r.memory_mib) for r in sink.taken] == [(0, 512), (7, 0)]
    assert caplog.messages == ["container c: 7 ms of GPU time used, 0 MiB of GPU memory now, 512 MiB at most"]


def test_memory_that_nobody_counts_is_unknown(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    sink = Timekeeper()
    rep = reporter(tmp_path, sink, Readings(UsageReading(7, "node", "a")))
    with caplog.at_level("INFO"):
        rep.observe(final=True)
    rep.flush()
    assert [r.memory_mib for r in sink.taken] == [None]
    assert "unknown of GPU memory now, unknown at most" in caplog.messages[0]


def test_stop_does_not_hang_on_a_dead_timekeeper(tmp_path: Path) -> None:
    sink, stop = Timekeeper(), threading.Event()
    sink.error = Unavailable("down")
    stop.set()
    rep = reporter(tmp_path, sink)
    rep.run(stop)
    assert len(Spool(tmp_path, 1 << 20)) == 2


def test_file_source_is_unknown_while_missing_or_damaged(tmp_path: Path) -> None:
    file = tmp_path / "usage.json"
    source = FileUsage(file)
    assert source.read("c") == UsageReading(None, "unknown")
    for text in ("", "{", '{"source": "node", "containers": {"c": {"usedMs": -1}}}', '{"source": "node"}'):
        file.write_text(text)
        assert source.read("c") == UsageReading(None, "unknown")
    file.write_text('{"source": "node", "containers": {"c": {"usedMs": 7}}}')
    assert source.read("c") == UsageReading(7, "node")
    file.write_text('{"source": "node", "containers": {"c": {"usedMs": 7, "life": "a", "memoryMib": 512}}}')
    assert source.read("c") == UsageReading(7, "node", "a", 512)
    assert source.read("other") == UsageReading(None, "unknown")


def test_counters_that_nobody_reads_any_more_are_unknown(tmp_path: Path) -> None:
    now = 10**12
    source = FileUsage(tmp_path / "usage.json", now_ns=lambda: now)
    text = '{"source": "node", "atNs": %d, "containers": {"c": {"usedMs": 7, "life": "a"}}}'
    for age, expected in ((0, 7), (STALE_NS, 7), (STALE_NS + 1, None), (-1, None)):
        (tmp_path / "usage.json").write_text(text % (now - age))
        assert source.read("c").used_ms == expected, "also unknown: of a machine that has booted since"


def test_missing_setting_is_named() -> None:
    with pytest.raises(SettingsError, match=r"sidecar\.namespace is empty"):
        build(Settings())
