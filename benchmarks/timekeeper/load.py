# SPDX-License-Identifier: Apache-2.0
"""HTTP requests over kept connections, by a process of its own, as fast as answers come.

    python load.py PORT KIND CONNECTIONS SECONDS PODS SEQ

KIND: `bare` · `single` (one report a request) · `batch` (500) · `decision`. `SEQ` must be greater than in the run
before.
Prints one line: requests, seconds, p50 and p99 in ms, the last sequence number.
"""

from __future__ import annotations

import http.client
import statistics
import sys
import threading
import time
from collections.abc import Callable

import msgspec

from slicekeeper.wire.timekeeper import ReportBatch, UsageReport

NAMESPACES, BATCH = 20, 500
HEADERS = {"Authorization": "Bearer benchmark", "Content-Type": "application/json"}


def uid(pod: int) -> str:
    """Return a pod's UID: spread like real ones, so that neighbours in time are none in an index."""
    return f"{pod * 2654435761 % 2**32:08x}-0000-4000-8000-{pod:012x}"


def report(pod: int, seq: int) -> UsageReport:
    """Return a pod's report: a second later, nothing used."""
    return UsageReport(
        namespace=f"ns{pod % NAMESPACES}",
        pod_name=f"pod-{pod}",
        pod_uid=uid(pod),
        container="main",
        epoch=1,
        seq=seq,
        used_ms=0,
        monotonic_ns=seq * 10**9,
        source="node",
    )


def body(pods: list[int], seq: int) -> bytes:
    """Return the body of a request."""
    return msgspec.json.encode(ReportBatch(reports=[report(pod, seq) for pod in pods]))


def main() -> None:
    """Send, and tell."""
    port, kind, connections, seconds, pods, seq = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:7])
    took: list[list[float]] = [[] for _ in range(connections)]
    last = [seq] * connections

    def request(thread: int, turn: int) -> tuple[str, str, bytes | None]:
        if kind == "decision":
            return "GET", f"/api/v1/decisions/ns{turn % NAMESPACES}", None
        size = BATCH if kind == "batch" else 1
        mine = range(thread, pods, connections)
        at = turn * size % len(mine)
        chosen = [mine[(at + k) % len(mine)] for k in range(size)]
        last[thread] = seq + 1 + turn
        return "POST", "/bare" if kind == "bare" else "/api/v1/reports", body(chosen, last[thread])

    def work(thread: int, send: Callable[[int, int], tuple[str, str, bytes | None]], until: float) -> None:
        connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=120)
        turn = 0
        while time.perf_counter() < until:
            method, path, data = send(thread, turn)
            begun = time.perf_counter()
            connection.request(method, path, data, HEADERS)
            answer = connection.getresponse()
            got = answer.read()
            took[thread].append((time.perf_counter() - begun) * 1000)
            assert answer.status == 200, got
            assert kind not in ("single", "batch") or b'"accepted"' in got, got[:300]
            turn += 1

    begun = time.perf_counter()
    threads = [threading.Thread(target=work, args=(t, request, begun + seconds)) for t in range(connections)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wall = time.perf_counter() - begun
    every = sorted(t for mine in took for t in mine)
    p99 = every[min(int(len(every) * 0.99), len(every) - 1)]
    print(len(every), round(wall, 3), round(statistics.median(every), 2), round(p99, 2), max(last))


if __name__ == "__main__":
    main()
