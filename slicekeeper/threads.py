# SPDX-License-Identifier: Apache-2.0
"""Threads that must run for as long as their part does, and the signals that end it.

/healthz of every part asks here whether a thread has ended.

A thread is created only when it is started: its owner may exist before a fork, and Python 3.13.0 does not start a
thread in the child that was created in the parent.
"""

from __future__ import annotations

import os
import queue
import signal
import threading
from collections.abc import Callable, Sequence

_kept: dict[threading.Thread, Callable[[], bool]] = {}
_lock = threading.Lock()


def keep(name: str, run: Callable[[], object], stopped: Callable[[], bool]) -> threading.Thread:
    """Start a daemon thread and watch over it; `stopped` returns whether it is to end."""
    thread = threading.Thread(target=run, name=name, daemon=True)
    with _lock:
        _kept[thread] = stopped
    thread.start()
    return thread


def repeat(name: str, work: Callable[[], object], stop: threading.Event, seconds: float = 0.0) -> threading.Thread:
    """Keep a thread that does some work every so often, until `stop` is set."""

    def run() -> None:
        while not stop.wait(seconds):
            work()

    return keep(name, run, stop.is_set)


def trouble() -> str:
    """Return a message that names the threads that have ended by themselves; empty if there are none."""
    ended = []
    with _lock:
        for thread, stopped in list(_kept.items()):
            if thread.ident is None or thread.is_alive():
                continue
            if stopped():
                del _kept[thread]
            else:
                ended.append(thread.name)
    return f"ended by an error: thread {', '.join(sorted(ended))}" if ended else ""


def stop_on_signals(
    wake: threading.Event | None = None, numbers: Sequence[signal.Signals] = (signal.SIGTERM, signal.SIGINT)
) -> threading.Event:
    """Return an event that SIGTERM or SIGINT sets, and `wake` with it. Call it in the main thread.

    A handler runs in the middle of whatever the main thread does. It cannot set the event itself: if the main thread
    was about to wait for it, it would hold the event's lock. `SimpleQueue.put` may be interrupted by itself.
    """
    stop = threading.Event()
    came: queue.SimpleQueue[int] = queue.SimpleQueue()

    def wait_for_signal() -> None:
        came.get()
        stop.set()
        if wake is not None:
            wake.set()

    threading.Thread(target=wait_for_signal, name="signals", daemon=True).start()
    for number in numbers:
        signal.signal(number, lambda number, _: came.put(number))
    return stop


def _forget_parents() -> None:
    global _lock  # noqa: PLW0603 - the parent's may be held by one of its threads
    _lock = threading.Lock()
    _kept.clear()


os.register_at_fork(after_in_child=_forget_parents)
