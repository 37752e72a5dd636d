# SPDX-License-Identifier: Apache-2.0
"""The arbiter is started again whenever it ends, with its seats; a keeper ends with its folder."""

from __future__ import annotations

import os
import re
import signal
import threading
from pathlib import Path

import pytest
from support.sharing import Sharing
from support.waiting import wait_for

from nodeagent import arbiter_keeper as module_of_keeper
from nodeagent.arbiter_keeper import ArbiterKeeper
from nodeagent.run_folder import RunFolderRemoved


def test_an_arbiter_that_is_killed_comes_back_with_its_seats(
    sharing: Sharing, caplog: pytest.LogCaptureFixture
) -> None:
    sharing.seat(1)
    before = sharing.held()
    pid = sharing.running.read().pid
    for _ in range(6):
        os.kill(pid, signal.SIGKILL)
        told = wait_for(lambda old=pid: (t := sharing.running.read()) and t.pid != old and t, "another one answers")
        pid = told.pid
        assert sharing.held() == before
    pauses = re.findall(r"the next one starts in ([0-9.]+) s", caplog.text)
    assert len(pauses) == 6
    assert max(map(float, pauses)) <= 0.5, "however often it is killed"


class Counted(threading.Event):
    """Tells after so many pauses to stop, and pauses for no time."""

    def __init__(self, pauses: int) -> None:
        super().__init__()
        self.left, self.waited = pauses, list[float]()

    def wait(self, timeout: float | None = None) -> bool:
        if timeout != module_of_keeper.LOOK_SECONDS:
            self.waited.append(timeout or 0.0)
            self.left -= 1
        if self.left == 0:
            self.set()
        return super().wait(0.001)


@pytest.mark.parametrize(("end", "longest"), [("kill -9 $$", 0.5), ("exit 1", 5.0)])
def test_an_arbiter_that_says_why_it_cannot_run_is_tried_less_often_than_one_that_is_killed(
    tmp_path: Path, end: str, longest: float
) -> None:
    program = tmp_path / "arbiter"
    program.write_text(f"#!/bin/sh\n{end}\n")
    program.chmod(0o755)
    stop = Counted(12)
    ArbiterKeeper(program, tmp_path, []).run(stop)
    assert (stop.waited[0], stop.waited[-1]) == (0.05, longest)


def test_a_keeper_whose_folder_was_removed_ends_with_its_arbiter(tmp_path: Path) -> None:
    """The folder is a mount in its pod, where nothing can be made again: only another container has another one."""
    program, folder = tmp_path / "arbiter", tmp_path / "run"
    program.write_text(f'#!/bin/sh\necho $$ > {tmp_path}/pid\nrm -r "$3"\nexec sleep 600\n')
    program.chmod(0o755)
    with pytest.raises(RunFolderRemoved, match="was removed"):
        ArbiterKeeper(program, folder, []).run(threading.Event())
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()


def test_a_second_keeper_waits_and_takes_over(sharing: Sharing) -> None:
    sharing.seat(1)
    before, pid = sharing.held(), sharing.running.read().pid
    other = type(sharing.running)(sharing.running.folder)
    other.start()
    sharing.shares.compare()
    assert sharing.running.read().pid == pid
    sharing.running.stop()
    wait_for(lambda: (told := sharing.running.read()) and told.pid != pid, "the other one answers")
    assert sharing.held() == before
    sharing.running.start()
    other.stop()
