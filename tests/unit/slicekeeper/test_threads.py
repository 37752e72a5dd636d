# SPDX-License-Identifier: Apache-2.0
"""A thread that ends by itself is trouble; one that was told to end is not."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from slicekeeper import threads


def test_a_thread_that_ends_by_itself_is_trouble_and_one_that_was_told_to_is_not() -> None:
    go, forgiven = threading.Event(), threading.Event()
    kept = [threads.keep("faithful", go.wait, go.is_set), threads.keep("mortal", lambda: None, forgiven.is_set)]
    kept[1].join()
    assert "mortal" in threads.trouble()
    assert "faithful" not in threads.trouble()
    forgiven.set()
    go.set()
    kept[0].join()
    assert "mortal" not in threads.trouble()
    assert "faithful" not in threads.trouble()


def test_a_child_process_does_not_miss_its_parents_threads() -> None:
    go = threading.Event()
    thread = threads.keep("parents", go.wait, go.is_set)
    child = os.fork()
    if child == 0:
        os._exit(bool(threads.trouble()))
    assert os.waitpid(child, 0)[1] == 0
    go.set()
    thread.join()


STOPPED_WHILE_IT_LOOKS = """
import os, signal, threading
from slicekeeper import (threads)

for _ in range(30):
    wake = threading.Event()
    stop = threads.stop_on_signals(wake)
    threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGTERM)).start()
    while not stop.wait(0) or not wake.wait(0):
        pass
"""


def test_a_signal_stops_a_main_thread_that_is_just_about_to_wait() -> None:
    subprocess.run([sys.executable, "-c", STOPPED_WHILE_IT_LOOKS], timeout=120, check=True)
