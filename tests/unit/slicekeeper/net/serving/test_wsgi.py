# SPDX-License-Identifier: Apache-2.0
"""A WSGI application in an event loop: its answer is closed, whoever waits for it."""

import asyncio
import tempfile
import threading
from contextlib import suppress
from typing import Any

import pytest
from support.waiting import wait_for

from slicekeeper.net.serving.wsgi import WsgiBridge

SCOPE = {"type": "http", "method": "GET", "path": "/", "query_string": b"", "http_version": "1.1", "headers": []}


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Return all answers that are created, which may be large files."""
    created: list[Any] = []
    real = tempfile.SpooledTemporaryFile

    def create(size: int) -> Any:
        created.append(real(size))
        return created[-1]

    monkeypatch.setattr(tempfile, "SpooledTemporaryFile", create)
    return created


async def receive() -> dict[str, Any]:
    return {"type": "http.request"}


async def send(_message: dict[str, Any]) -> None:
    pass


def test_an_answer_for_a_client_that_has_gone_is_closed(answers: list[Any]) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def app(_environ: Any, start_response: Any) -> list[bytes]:
        begun.set()
        assert go_on.wait(60)
        start_response("200 OK", [])
        return [b"ok"]

    async def leave() -> None:
        request = asyncio.ensure_future(WsgiBridge(app, threads=1)(SCOPE, receive, send))
        assert await asyncio.to_thread(begun.wait, 60)
        request.cancel()
        with suppress(asyncio.CancelledError):
            await request
        go_on.set()

    asyncio.run(leave())
    wait_for(lambda: [answer.closed for answer in answers] == [True], "the answer is closed")


def test_an_answer_that_breaks_off_is_closed(answers: list[Any]) -> None:
    def app(_environ: Any, start_response: Any) -> Any:
        start_response("200 OK", [])
        yield b"o"
        raise RuntimeError

    with pytest.raises(RuntimeError):
        asyncio.run(WsgiBridge(app, threads=1)(SCOPE, receive, send))
    assert [answer.closed for answer in answers] == [True]
