# SPDX-License-Identifier: Apache-2.0
"""Orders: requests that are executed once per Idempotency-Key."""

from __future__ import annotations

from slicekeeper.units import GpuMilliseconds
from timekeeper.api import requests
from timekeeper.api.problems import Problem
from timekeeper.api.service import Service
from timekeeper.core.caller import Caller
from timekeeper.ledger.movement import Order


def order_of(it: Service, caller: Caller, amount: GpuMilliseconds, reason: str) -> Order:
    """Return the request's order, with its Idempotency-Key.

    Raises Problem if it has none.
    """
    key = requests.idempotency_key()
    if not key:
        detail = f"send an Idempotency-Key header of 1 to {requests.LONGEST_KEY} printable characters, such as a UUID"
        raise Problem(422, "idempotency-key-missing", detail, "Idempotency-Key")
    return Order(amount, reason, key, requests.canonical(), caller.name, it.clock.now_ms())
