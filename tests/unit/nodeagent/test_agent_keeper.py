# SPDX-License-Identifier: Apache-2.0
"""An agent that is killed is started again at once, however often; one that ends by itself ends its keeper."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import wait_for

PROGRAM = """
import logging, os, signal, sys
from nodeagent.agent_keeper import keep_agent
logging.basicConfig()
keep_agent()
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
with open(sys.argv[1], "a") as file:
    file.write(f"{os.getpid()} ")
if len(sys.argv) > 2:
    sys.exit(int(sys.argv[2]))
signal.pause()
"""
"""Its agent writes down its process ID, and ends with a status of its own, or when it is asked to."""


def _keeper(pids: Path, *status: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", PROGRAM, str(pids), *status], stderr=subprocess.PIPE, text=True)


def _pids(file: Path) -> list[int]:
    return [int(pid) for pid in file.read_text().split()] if file.exists() else []


def test_an_agent_that_is_killed_again_and_again_is_started_at_once_until_the_keeper_is_stopped(tmp_path: Path) -> None:
    pids = tmp_path / "pids"
    with _keeper(pids) as keeper:
        try:
            for count in range(1, 7):
                wait_for(lambda count=count: len(_pids(pids)) == count, "it runs")
                if count < 6:
                    os.kill(_pids(pids)[-1], signal.SIGKILL)
        finally:
            keeper.terminate()
        said = keeper.communicate(timeout=60)[1]
    assert keeper.returncode == 7, "the agent was asked to end, and had the time for it"
    pauses = re.findall(r"killed by signal 9; the next one starts in ([0-9.]+) s", said)
    assert len(pauses) == 5
    assert max(map(float, pauses)) <= 0.5
    assert keeper.pid not in _pids(pids)


@pytest.mark.parametrize("status", [0, 1, 2])
def test_an_agent_that_ends_by_itself_ends_its_keeper(tmp_path: Path, status: int) -> None:
    """With a wrong setting, or when the folder of the seats was removed, only another container is of any use."""
    pids = tmp_path / "pids"
    with _keeper(pids, str(status)) as keeper:
        assert keeper.wait(60) == status
    assert len(_pids(pids)) == 1


def test_what_all_agents_have_in_common_starts_no_thread() -> None:
    """A fork would not have it."""
    script = "import threading, nodeagent.commands, nodeagent.agent; print(threading.active_count())"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "1\n"
