# SPDX-License-Identifier: Apache-2.0
from pathlib import Path

from sidecar.spool import Spool
from slicekeeper.wire.timekeeper import UsageReport


def report(seq: int) -> UsageReport:
    return UsageReport(
        namespace="a", pod_name="p", pod_uid="u", container="c", epoch=1, seq=seq, used_ms=seq, monotonic_ns=seq
    )


def seqs(spool: Spool) -> list[int]:
    return [r.seq for r in spool.head(10_000)]


def test_nothing_is_written_while_the_timekeeper_takes_the_reports(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    spool.put(report(1))
    spool.drop(1)
    assert list(tmp_path.iterdir()) == []


def test_kept_reports_come_back_after_a_restart_in_order(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    for seq in (1, 2, 3):
        spool.put(report(seq))
        spool.keep()
    assert seqs(Spool(tmp_path, 1 << 20)) == [1, 2, 3]


def test_dropped_reports_do_not_come_back(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    for seq in (1, 2, 3):
        spool.put(report(seq))
    spool.keep()
    spool.drop(2)
    assert seqs(Spool(tmp_path, 1 << 20)) == [3]


def test_full_spool_forgets_the_older_half_and_keeps_the_newest(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 4096)
    for seq in range(100):
        spool.put(report(seq))
        spool.keep()
    assert seqs(spool)[-1] == 99
    assert len(spool) <= 8
    assert (tmp_path / "reports.jsonl").stat().st_size <= 4096


def test_line_cut_off_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    spool = Spool(tmp_path, 1 << 20)
    spool.put(report(1))
    spool.put(report(2))
    spool.keep()
    file = tmp_path / "reports.jsonl"
    file.write_bytes(file.read_bytes()[:-20])
    assert seqs(Spool(tmp_path, 1 << 20)) == [1]


def test_disk_that_cannot_be_written_leaves_the_reports_in_memory(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    spool = Spool(tmp_path / "file", 1 << 20)
    spool.put(report(1))
    spool.keep()
    assert seqs(spool) == [1]
    spool.drop(1)
    assert not spool
