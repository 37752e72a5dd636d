# SPDX-License-Identifier: Apache-2.0
"""Children never outlive their parent, and are stopped by their process ids."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from support.waiting import wait_for

from simulator.processes import Spawner, stop

SLEEPER = [sys.executable, "-c", "import time; time.sleep(60)"]
STUBBORN = "import signal,time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_child_dies_with_a_parent_that_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from simulator.processes import Spawner\n"
        f"child = Spawner().start({SLEEPER!r}, log=Path({str(tmp_path / 'log')!r}))\n"
        "print(child.pid, flush=True); time.sleep(60)\n"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        os.kill(child, 0)
        parent.send_signal(signal.SIGKILL)
    wait_for(lambda: gone(child), "the child has ended")


def test_stop_asks_first_and_then_kills(tmp_path: Path) -> None:
    spawner = Spawner()
    log = tmp_path / "log"
    willing = spawner.start(SLEEPER, log=log)
    stubborn = spawner.start([sys.executable, "-c", STUBBORN], log=log)
    wait_for(lambda: "up" in log.read_text(), "it ignores the signal")
    stop([willing], 60)
    stop([stubborn], 0.5)
    spawner.close()
    assert (willing.returncode, stubborn.returncode) == (-signal.SIGTERM, -signal.SIGKILL)
