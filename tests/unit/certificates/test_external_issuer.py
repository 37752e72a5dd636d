# SPDX-License-Identifier: Apache-2.0
"""CAs of another program: every server's certificate stays trusted until its CA expires."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from certificates.authority import make_ca
from certificates.external_issuer import united

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def ca(days: int) -> bytes:
    return make_ca(NOW, timedelta(days=days)).certificate


def test_a_ca_that_is_named_no_more_stays_until_it_expires() -> None:
    new, old = ca(90), ca(9)
    assert united([new, new], [old, new], NOW) == [new, old]
    assert united([new], [new, old], NOW + timedelta(days=10)) == [new]


def test_what_is_named_is_trusted_whatever_its_age() -> None:
    old = ca(9)
    assert united([old], [], NOW + timedelta(days=10)) == [old]
