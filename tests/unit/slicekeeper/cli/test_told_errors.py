# SPDX-License-Identifier: Apache-2.0
"""Messages of servers name options and amounts as the user writes them."""

from __future__ import annotations

import pytest

from slicekeeper.cli.budget import budget
from slicekeeper.cli.reservation import reservation
from slicekeeper.cli.told_errors import in_words, options_of

GRANT, TRANSFER, STATEMENT, WITHDRAW = (
    options_of(budget.commands[name]) for name in ("grant", "transfer", "statement", "withdraw")
)
OPEN = options_of(reservation.commands["open"])


@pytest.mark.parametrize(
    ("message", "options", "told"),
    [
        ("POST /api/v1/budgets/x/grants: validTo: it is past", GRANT, "--until: it is past"),
        ("POST /apis/timekeeper.slicekeeper.io/v1/budgets/x/grants: no", GRANT, "no"),
        ("GET /x: no answer from http://127.0.0.1:9 (refused)", GRANT, "no answer from http://127.0.0.1:9 (refused)"),
        ("validTo must be later than validFrom", GRANT, "--until must be later than --from"),
        ("expiresAt: use an earlier expiresAt", OPEN, "--until: use an earlier --until"),
        ("to: it is the source", TRANSFER, "TO: it is the source"),
        ("to: it must be before the year 9999", STATEMENT, "--to: it must be before the year 9999"),
        ("amountMs: 5400000 GPU-ms are more than 61000 GPU-ms", GRANT, "AMOUNT: 1h30m are more than 1m1s"),
        ("Idempotency-Key 'k' was already used", GRANT, "--key 'k' was already used"),
        ("reason: Expected `str` of length >= 1", GRANT, "--reason: it must not be empty"),
        ("reason: Expected `str` of length <= 1024", GRANT, "--reason: use at most 1024 characters"),
        ("to must be later than from", STATEMENT, "--to must be later than --from"),
        ("validFrom must be RFC 3339, from 1970 on", GRANT, "--from must be RFC 3339, from 1970 on"),
        ("priority: unknown", GRANT, "priority: unknown"),
        ("x has no grant 7", WITHDRAW, "x has no grant 7"),
    ],
)  # fmt: skip
def test_a_message_is_told_in_the_words_of_the_command(message: str, options: dict[str, str], told: str) -> None:
    assert in_words(message, options, {}) == told


def test_a_date_is_told_as_it_was_typed() -> None:
    past = "validTo: 2019-12-31T23:00:00.000Z is not later than now"
    assert in_words(past, GRANT, {"until": "2020-01-01"}) == "--until: 2020-01-01 is not later than now"
    assert in_words(past, GRANT, {"until": None}) == "--until: 2019-12-31T23:00:00.000Z is not later than now"
