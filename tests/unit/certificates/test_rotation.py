# SPDX-License-Identifier: Apache-2.0
"""Certificates over a simulated year: at no instant is anybody shown a certificate that somebody does not trust."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from certificates.authority import expires_at, is_for, signed_by, split
from certificates.rotation import Schedule, State, advance

HOSTS = {
    "webhook": ("webhook.slicekeeper-system.svc", "webhook.slicekeeper-system"),
    "timekeeper": ("timekeeper.slicekeeper-system.svc", "localhost"),
}
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULE = Schedule(ca_life=timedelta(days=90), server_life=timedelta(days=9), overlap=timedelta(hours=6))


def test_the_first_run_makes_a_ca_and_a_certificate_for_every_service() -> None:
    state = advance(State(), HOSTS, BEGIN, SCHEDULE)
    assert len(state.authorities) == 1
    assert set(state.servers) == set(HOSTS)
    for service, server in state.servers.items():
        assert signed_by(server.certificate, state.authorities[0])
        assert is_for(server.certificate, HOSTS[service])
        assert expires_at(server.certificate) == BEGIN + timedelta(days=9)


def test_nothing_changes_while_nothing_is_due() -> None:
    state = advance(State(), HOSTS, BEGIN, SCHEDULE)
    assert advance(state, HOSTS, BEGIN + timedelta(days=5), SCHEDULE) == state


def test_a_certificate_for_other_hosts_is_made_anew() -> None:
    state = advance(State(), HOSTS, BEGIN, SCHEDULE)
    moved = advance(state, {**HOSTS, "webhook": ("webhook.elsewhere.svc",)}, BEGIN, SCHEDULE)
    assert moved.authorities == state.authorities
    assert moved.servers["timekeeper"] == state.servers["timekeeper"]
    assert is_for(moved.servers["webhook"].certificate, ("webhook.elsewhere.svc",))


@pytest.mark.parametrize("step", [timedelta(hours=2), timedelta(hours=5)])
def test_over_a_year_old_and_new_are_always_trusted_by_all(step: timedelta) -> None:
    state, now, seen_bundle = State(), BEGIN, b""
    authorities: set[bytes] = set()
    while now < BEGIN + timedelta(days=365):
        before = state.servers
        state = advance(state, HOSTS, now, SCHEDULE)
        authorities.update(state.authorities)
        for service, server in state.servers.items():
            # Who has seen only the bundle of the step before trusts what is shown now, and the newest bundle trusts
            # the certificate that a slow server may still show.
            shown = before.get(service, server)
            for certificate, bundle in ((server, seen_bundle or state.bundle), (shown, state.bundle)):
                assert any(signed_by(certificate.certificate, ca) for ca in split(bundle)), now
            assert expires_at(server.certificate) > now + step
        assert len(state.authorities) <= 3
        seen_bundle, now = state.bundle, now + step
    assert len(authorities) >= 5


def test_a_lost_ca_key_starts_a_new_ca_and_trusts_the_old_one_on() -> None:
    state = advance(State(), HOSTS, BEGIN, SCHEDULE)
    broken = State(state.authorities, b"", b"", state.servers)
    healed = advance(broken, HOSTS, BEGIN + timedelta(days=1), SCHEDULE)
    assert healed.ca_key
    assert state.authorities[0] in healed.authorities
