# SPDX-License-Identifier: Apache-2.0
"""Ten strangers draw out what they send to the timekeeper, so that the webhook would hear nothing of it any more.

A webhook that has long heard nothing takes what is left of a budget as not known. So whoever silences the timekeeper
must not be able to: standings come all the while, spent ones and changed ones.
"""

from __future__ import annotations

import contextlib
import itertools
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.timekeeper_process import Site, process_site
from support.waiting import wait_for
from support.webhook_process import Authority, Webhook, pod

POLICY = """
default: {budget: {amount: 10h, period: none}}
namespaces:
  - {match: poor, budget: {amount: 1s, enforcement: hard}}
"""
BEGINNINGS = (
    b"",  # of a handshake, which is never sent
    b"GET /api/v1/decisions HTTP/1.1\r\nHost: ",
    b"POST /api/v1/reports HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n",
)


class Strangers:
    """Connections without a token that send a byte now and then, and come again if they are shown out."""

    def __init__(self, site: Site, count: int, pause: float) -> None:
        self._address = ("127.0.0.1", int(site.url.rpartition(":")[2]))
        self._trust = site.trust
        self._pause = pause
        self._stop = threading.Event()
        beginnings = itertools.islice(itertools.cycle(BEGINNINGS), count)
        self._threads = [threading.Thread(target=self._keep, args=(beginning,)) for beginning in beginnings]
        self.shown_out = 0

    def __enter__(self) -> Strangers:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join()

    def _keep(self, beginning: bytes) -> None:
        while not self._stop.is_set():
            with contextlib.suppress(OSError), socket.create_connection(self._address, 10) as raw:
                self._draw_out(raw, beginning)
                self.shown_out += not self._stop.is_set()

    def _draw_out(self, raw: socket.socket, beginning: bytes) -> None:
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            stream = raw
            if beginning:
                stream = stack.enter_context(self._trust.wrap_socket(raw, server_hostname="127.0.0.1"))
                stream.sendall(beginning)
            else:
                stream.sendall(b"\x16\x03\x01\x02")
            stream.settimeout(self._pause)
            while not self._stop.is_set():
                try:
                    if not stream.recv(4096):
                        return
                except TimeoutError:
                    stream.sendall(b"x" if beginning else b"\x00")


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    folder = tmp_path / "timekeeper"
    folder.mkdir()
    with process_site(folder, f"sqlite:///{folder}/ledger.db") as made:
        (folder / "policy.yaml").write_text(POLICY)
        assert made.run("timekeeper", "migrate").returncode == 0
        made.start()
        wait_for(made.ready, "the timekeeper is ready")
        made.create("spends", "poor")
        yield made
        made.let_go()


def test_strangers_who_draw_out_requests_do_not_silence_the_timekeeper(tmp_path: Path, site: Site) -> None:
    strangers_keep_coming(tmp_path, site, seconds=20, pause=0.5, staleSeconds=10)


def strangers_keep_coming(tmp_path: Path, site: Site, seconds: float, pause: float, **settings: Any) -> None:
    """Tell the story; `seconds` are more than the webhook's decisions stay good without the timekeeper."""
    Authority(tmp_path).issue()
    (tmp_path / "policy.yaml").write_text(POLICY)
    folder = site.folder
    client = {"url": site.url, "caFile": str(folder / "tls" / "ca.crt"), "tokenFile": str(folder / "token")}
    webhook = Webhook(tmp_path, client, **settings)
    try:
        webhook.wait_until_ready()
        webhook.settled(lambda: bool(refusal(webhook, "poor")))  # the namespace has spent its budget
        with Strangers(site, count=10, pause=pause) as strangers:
            end = time.monotonic() + seconds
            while time.monotonic() < end:
                message = refusal(webhook, "poor")
                assert "no GPU budget left" in message
                assert "when the timekeeper last answered" not in message
                answer = webhook.review("/mutate", pod(), namespace="rich")
                assert answer["allowed"]
                assert "warnings" not in answer  # its standing is known
                assert "fresh" in webhook.get("/readyz")
                assert site.get("/api/v1/decisions")["items"]
                time.sleep(0.2)
            # And what changes meanwhile gets through.
            grant = {"amountMs": 3_600_000, "reason": "more"}
            assert site.post("/api/v1/budgets/poor/grants", grant, key="more") < 300
            wait_for(lambda: not refusal(webhook, "poor"), "the webhook has heard of the grant")
            assert strangers.shown_out
    finally:
        webhook.stop()


def refusal(webhook: Webhook, namespace: str) -> str:
    """Return why a pod is refused, empty if it passes."""
    answer = webhook.review("/mutate", pod(), namespace=namespace)
    return "" if answer["allowed"] else str(answer["status"]["message"])
