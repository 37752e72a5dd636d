# SPDX-License-Identifier: Apache-2.0
"""A thread that ends by itself is trouble; one that was told to end is not."""

from __future__ import annotations

import os
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
