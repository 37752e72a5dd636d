# SPDX-License-Identifier: Apache-2.0
"""A call that is shared: few calls, and no answer older than its question."""

from __future__ import annotations

import random
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.waiting import wait_for

from nodeagent.coalesced_call import CoalescedCall


class Source:
    """Counts the calls, each of which lasts until it is let go."""

    def __init__(self) -> None:
        self.began = self.ended = 0
        self.go = threading.Semaphore(0)

    def call(self) -> int:
        assert self.began == self.ended, "never two at the same time"
        self.began += 1
        mine = self.began
        assert self.go.acquire(timeout=60)
        self.ended += 1
        if mine == 2:
            raise OSError("the second one fails")
        return mine


def test_all_who_come_while_a_call_is_made_share_the_next_one(arrivals: type[Any]) -> None:
    source = Source()
    shared = CoalescedCall(source.call)
    came = arrivals(shared)
    with ThreadPoolExecutor(50) as pool:
        first = pool.submit(shared)
        wait_for(lambda: source.began == 1, "the first call")
        others = [pool.submit(shared) for _ in range(49)]
        wait_for(lambda: came.callers(calls=1) == 50, "all have come")
        source.go.release()
        assert first.result(30) == 1
        wait_for(lambda: source.began == 2, "the second call")
        assert not any(other.done() for other in others), "none takes what was asked for before it came"
        source.go.release()
        for other in others:
            with pytest.raises(OSError, match="second one fails"):
                other.result(30)
        source.go.release()
        assert shared() == 3, "what failed once is tried again"


def test_no_answer_is_older_than_its_question(switching: None) -> None:
    """In whatever order threads take their turns."""

    def call() -> float:
        began = time.monotonic()
        time.sleep(0.001)
        return began

    shared = CoalescedCall(call)

    def ask(number: int) -> bool:
        for _ in range(20):
            time.sleep(random.Random(number).random() / 1000)
            asked = time.monotonic()
            if shared() < asked:
                return False
        return True

    with ThreadPoolExecutor(32) as pool:
        assert all(pool.map(ask, range(64)))
