# SPDX-License-Identifier: Apache-2.0
"""Calls an ASGI application without a socket."""

import asyncio
from dataclasses import dataclass

import orjson


@dataclass(frozen=True)
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self):
        return orjson.loads(self.body)

    @property
    def media_type(self):
        return self.headers["content-type"].partition(";")[0]


def answer_of(sent):
    """Return the answer in what an application has sent."""
    headers = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return Answer(sent[0]["status"], headers, b"".join(message.get("body", b"") for message in sent[1:]))


def ask(app, method, path, body=b"", headers=None, sent=None):
    """Send a request; a body in chunks comes one by one, and after None nothing comes any more."""
    whole = isinstance(body, bytes)
    coming, sent = iter([body] if whole else body), [] if sent is None else sent
    headers = headers or ({"content-length": str(len(body))} if whole else {})
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "query_string": b"",
        "http_version": "1.1",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }

    async def receive():
        chunk = next(coming, b"")
        if chunk is None:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": chunk, "more_body": bool(chunk)}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return answer_of(sent)
