# SPDX-License-Identifier: Apache-2.0
"""Seats on disk: no seat waits for another one's write, and memory and disk agree whichever thread writes."""

from __future__ import annotations

import errno
import os
import random
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec
import pytest

from nodeagent.seat_store import Seat, SeatStore


class SlowDisk:
    """A disk that takes its time for one seat."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits, self.go = threading.Event(), threading.Event()
        self._fsync = os.fsync
        monkeypatch.setattr("nodeagent.atomic_write.os.fsync", self._slow)

    def _slow(self, fd: int) -> None:
        if "seat-slow" in str(Path(f"/proc/self/fd/{fd}").readlink()):
            self.waits.set()
            assert self.go.wait(60)
        self._fsync(fd)


def test_a_seat_that_the_disk_is_slow_with_holds_up_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store, disk = SeatStore(tmp_path), SlowDisk(monkeypatch)
    with ThreadPoolExecutor(3) as pool:
        slow = pool.submit(store.put, Seat(id="seat-slow", nonce="a"))
        assert disk.waits.wait(60)
        quick = pool.submit(store.put, Seat(id="seat-quick", nonce="a"))
        assert quick.result(30) is None
        assert pool.submit(store.all).result(30) == [Seat(id="seat-quick", nonce="a")], "not before it is on disk"
        disk.go.set()
        slow.result(30)
    assert {seat.id for seat in store.all()} == {"seat-slow", "seat-quick"}


def test_what_comes_meanwhile_for_a_seat_that_is_written_is_judged_by_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = SeatStore(tmp_path)
    old = Seat(id="seat-slow", nonce="old", uid="gone", limit=50)
    store.put(old)
    disk = SlowDisk(monkeypatch)
    with ThreadPoolExecutor(3) as pool:
        given = pool.submit(store.put, Seat(id="seat-slow", nonce="new"))
        assert disk.waits.wait(60)
        changed = pool.submit(store.change, old, msgspec.structs.replace(old, limit=60))
        dropped = pool.submit(store.drop, old)
        disk.go.set()
        assert given.result(30) == old
        changed.result(30)
        assert not dropped.result(30)
    assert store.all() == SeatStore(tmp_path).all() == [Seat(id="seat-slow", nonce="new")]


def test_a_disk_with_room_is_no_trouble_however_many_ask_at_once(tmp_path: Path, switching: None) -> None:
    """Each probe of kubelet and of the scheduler asks, in a thread of its own."""
    store = SeatStore(tmp_path)
    with ThreadPoolExecutor(4) as pool:
        assert set(pool.map(lambda _: store.trouble(), range(1000))) == {""}


def test_a_write_that_fails_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_fd: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    store = SeatStore(tmp_path)
    monkeypatch.setattr("nodeagent.atomic_write.os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        store.put(Seat(id="seat-0001", nonce="a"))
    assert not list(tmp_path.iterdir())


def test_memory_and_disk_agree_whoever_writes(tmp_path: Path, switching: None) -> None:
    store = SeatStore(tmp_path)

    def write(number: int) -> None:
        chance = random.Random(number)
        for step in range(30):
            seat = Seat(id=f"seat-{chance.randrange(3)}", nonce=f"{number}-{step}")
            known = store.get(seat.id)
            what = chance.choice(("put", "change", "drop"))
            if what == "put" or known is None:
                store.put(seat)
            elif what == "change":
                store.change(known, msgspec.structs.replace(known, limit=chance.randrange(100)))
            else:
                store.drop(known)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(8)))
    assert sorted(store.all(), key=lambda seat: seat.id) == SeatStore(tmp_path).all()
    assert not list(tmp_path.glob(".*")), "nothing is left half written"
