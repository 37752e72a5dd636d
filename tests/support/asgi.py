# SPDX-License-Identifier: Apache-2.0
"""Calls an ASGI application without a socket."""

import asyncio
from dataclasses import dataclass

import orjson


@dataclass(frozen=True)
class Answer:
    status: int
    body: bytes

    @property
    def json(self):
        return orjson.loads(self.body)


def ask(app, method, path, body=b""):
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "root_path": "",
        "query_string": b"",
        "http_version": "1.1",
        "headers": [(b"content-length", str(len(body)).encode())],
    }
    sent = []

    async def receive():
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message):
        sent.append(message)

    asyncio.run(app(scope, receive, send))
    return Answer(sent[0]["status"], b"".join(message.get("body", b"") for message in sent[1:]))
