# SPDX-License-Identifier: Apache-2.0
"""Bodies of requests, held up to a size of all together."""

import asyncio
from contextlib import suppress
from typing import Any

from slicekeeper.net.serving.bodies import Bodies, BodyRefused

KIB = 1 << 10


def test_a_crowd_that_sends_side_by_side_holds_no_more_than_there_may_be() -> None:
    bodies = Bodies(1024 * KIB)
    most = refused = whole = 0

    async def send(client: int) -> None:
        nonlocal refused, whole
        left = 1024

        async def receive() -> dict[str, Any]:
            nonlocal left
            await asyncio.sleep(0)
            left -= 16
            return {"type": "http.request", "body": b"x" * 16 * KIB, "more_body": left > 0}

        try:
            async with bodies.received({"headers": [], "client": (f"10.0.0.{client % 3}", 1)}, receive):
                whole += 1
        except BodyRefused:
            refused += 1

    async def crowd() -> None:
        nonlocal most
        senders = [asyncio.ensure_future(send(number)) for number in range(20)]
        while not all(sender.done() for sender in senders):
            most = max(most, bodies._total)
            await asyncio.sleep(0)
        with suppress(BodyRefused):
            await asyncio.gather(*senders)

    asyncio.run(crowd())
    assert whole + refused == 20
    assert whole > 0
    assert most <= (1536 + 20 * 16) * KIB
    assert bodies._total == 0
