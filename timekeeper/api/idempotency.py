# SPDX-License-Identifier: Apache-2.0
"""Read the Idempotency-Key of a request that is executed only once per key."""

from __future__ import annotations

import hashlib
from typing import Final

import msgspec
from flask import request

from slicekeeper import names
from slicekeeper.units import GpuMilliseconds
from timekeeper.api import parse
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.problems import Problem
from timekeeper.core.caller import Caller
from timekeeper.ledger.executed_request import KeyedRequest
from timekeeper.ledger.movement import Order

LONGEST_KEY: Final = 255
"""In characters."""


def idempotency_key(*, shorten: bool = False) -> str:
    """Return the request's Idempotency-Key; empty if it has none.

    With `shorten`, a key that is too long is replaced by its digest, so that long keys with the same beginning stay
    distinct. Raises Problem if the key has characters that cannot be printed, or is too long.
    """
    key = request.headers.get("Idempotency-Key", "").strip()
    if not key.isprintable() or (len(key) > LONGEST_KEY and not shorten):
        raise _key_missing()
    return key if len(key) <= LONGEST_KEY else f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"


def order_of(context: HandlerContext, caller: Caller, amount: GpuMilliseconds, reason: str) -> Order:
    """Return the request's order, with its Idempotency-Key.

    Raises Problem if it has none.
    """
    key = idempotency_key()
    if not key:
        raise _key_missing()
    return Order(amount, reason, key, parse.canonical(), caller.name, context.clock.now_ms())


def keyed(context: HandlerContext) -> KeyedRequest | None:
    """Return the request with its Idempotency-Key; None if it has none, and so is executed whenever it is sent.

    Through the API server it is the same request as sent directly.
    """
    key = idempotency_key()
    if not key:
        return None
    place = request.path.removeprefix(f"/apis/{names.API}").removeprefix("/api/v1")
    query = sorted(request.args.items(multi=True))
    told = msgspec.json.encode((request.method, place, query)) + (parse.canonical() if request.get_data() else b"")
    return KeyedRequest(key, hashlib.sha256(told).hexdigest(), context.clock.now_ms())


def _key_missing() -> Problem:
    detail = f"send an Idempotency-Key header of 1 to {LONGEST_KEY} printable characters, such as a UUID"
    return Problem(422, "idempotency-key-missing", detail, "Idempotency-Key")
