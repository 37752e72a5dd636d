# SPDX-License-Identifier: Apache-2.0
"""What is made of the Secrets that are there."""

from __future__ import annotations

from base64 import b64encode
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from certificates.rotation import PkiState, Schedule, advance
from certificates.tls_secrets import read_state

NOW = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULE = Schedule(timedelta(days=90), timedelta(days=9), timedelta(hours=6))
HOSTS = {"webhook": ("webhook.slicekeeper-system.svc",), "timekeeper": ("timekeeper.slicekeeper-system.svc",)}


def secret(**data: bytes) -> dict[str, Any]:
    return {"data": {key.replace("_", "."): b64encode(value).decode() for key, value in data.items()}}


def servers(state: PkiState) -> dict[str, dict[str, Any] | None]:
    return {
        name: secret(tls_crt=pair.certificate, tls_key=pair.key, ca_crt=state.bundle)
        for name, pair in state.servers.items()
    }


def test_what_was_written_is_read_back() -> None:
    state = advance(PkiState(), HOSTS, NOW, SCHEDULE)
    ca = secret(ca_crt=state.bundle, ca_key=state.ca_key, old_key=b"")
    assert read_state(ca, servers(state)) == state
    assert read_state(None, {"webhook": None}) == PkiState()


@pytest.mark.parametrize("ca", [None, secret(), secret(ca_crt=b"garbage", ca_key=b"garbage")])
def test_a_ca_that_is_lost_stays_trusted_while_its_certificates_are_shown(ca: dict[str, Any] | None) -> None:
    """A server reads its new certificate a minute after its Secret has it: until then it shows the old one."""
    state = advance(PkiState(), HOSTS, NOW, SCHEDULE)
    healed = advance(read_state(ca, servers(state)), HOSTS, NOW, SCHEDULE)
    assert healed.authorities[0] != state.authorities[0]
    assert healed.authorities[1:] == state.authorities
