# SPDX-License-Identifier: Apache-2.0
"""The first opening of files, all watched by one inotify instance."""

from __future__ import annotations

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import pytest
from support.waiting import wait_for

from nodeagent.cdi_spec_read import FirstRead, Inotify

FILES = 300
"""More than the kernel lets a user have instances."""


def instances() -> int:
    """Return how many inotify instances this process has; another test's may end at any time."""
    found = 0
    for link in Path("/proc/self/fd").iterdir():
        try:
            found += str(link.readlink()) == "anon_inode:inotify"
        except FileNotFoundError:
            continue  # the folder's own
    return found


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    made = [tmp_path / f"{number}.json" for number in range(FILES)]
    for file in made:
        file.write_text("{}")
    return made


def test_however_many_files_are_watched_there_is_one_instance_and_none_afterwards(files: list[Path]) -> None:
    before, inotify = instances(), Inotify()
    reads = [FirstRead(inotify) for _ in files]
    assert all(read.of(file) for read, file in zip(reads, files, strict=True))
    assert instances() <= before + 1
    for file in files[:100]:
        file.read_bytes()
    for file in files[100:200]:
        file.unlink()
    assert [read.wait(0) for read in reads] == [True] * 100 + [False] * 200
    assert [read.watching for read in reads] == [False] * 200 + [True] * 100
    for read in reads:
        read.close()
    wait_for(lambda: inotify._fd < 0, "the instance is closed")


def test_who_waits_is_woken_by_its_own_file_alone(files: list[Path]) -> None:
    inotify = Inotify()
    with closing(FirstRead(inotify)) as one, closing(FirstRead(inotify)) as two, ThreadPoolExecutor(2) as pool:
        assert one.of(files[0])
        assert two.of(files[1])
        first, second = pool.submit(one.wait, 60), pool.submit(two.wait, 60)
        files[1].read_bytes()
        assert second.result(30)
        assert not first.done()
        files[0].unlink()
        assert not first.result(30), "it is gone"


def test_what_has_happened_is_known_without_waiting(files: list[Path]) -> None:
    """The probe of the CDI folder asks at the moment at which it matters."""
    inotify = Inotify()
    for file in files:
        with closing(FirstRead(inotify)) as read:
            assert read.of(file)
            assert not read.wait(0)
            file.read_bytes()
            assert read.wait(0)


def test_an_end_that_comes_late_ends_no_other_watch(files: list[Path]) -> None:
    """Numbers of watches begin again with each instance of the kernel's."""
    inotify = Inotify()
    late, other = FirstRead(inotify), FirstRead(inotify)
    assert late.of(files[0])
    files[0].read_bytes()
    assert late.wait(30)
    wait_for(lambda: inotify._fd < 0, "the instance is closed")
    assert other.of(files[1])
    late.close()
    files[1].read_bytes()
    assert other.wait(0)


def test_a_file_is_watched_again_after_the_first_watch_has_ended(files: list[Path]) -> None:
    inotify = Inotify()
    for _ in range(3):
        with closing(FirstRead(inotify)) as read:
            assert read.of(files[0])
    with closing(FirstRead(inotify)) as read:
        assert read.of(files[0])
        files[0].read_bytes()
        assert read.wait(0)


def test_starts_that_come_and_go_at_once_each_learn_of_their_own(files: list[Path], switching: None) -> None:
    """The instance comes and goes under them, too."""
    inotify = Inotify()

    def start(number: int) -> bool:
        what = random.Random(number).choice(("open", "remove", "neither"))
        with closing(FirstRead(inotify)) as read:
            assert read.of(files[number])
            if what == "neither":
                return not read.wait(0.01)
            done = threading.Thread(target=files[number].read_bytes if what == "open" else files[number].unlink)
            done.start()
            return read.wait(60) == (what == "open")

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(start, range(FILES)))
    wait_for(lambda: inotify._fd < 0, "the instance is closed")
