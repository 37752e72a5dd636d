# SPDX-License-Identifier: Apache-2.0
"""Certificates over a simulated year: no server ever presents a certificate that a client does not trust yet."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from certificates.authority import KeyPair, expires_at, is_for, make_ca, signed_by, split
from certificates.rotation import PkiState, Schedule, advance

HOSTS = {
    "webhook": ("webhook.slicekeeper-system.svc", "webhook.slicekeeper-system"),
    "timekeeper": ("timekeeper.slicekeeper-system.svc", "localhost"),
}
BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
SCHEDULE = Schedule(ca_life=timedelta(days=90), server_life=timedelta(days=9), overlap=timedelta(hours=6))


def test_the_first_run_makes_a_ca_and_a_certificate_for_every_service() -> None:
    state = advance(PkiState(), HOSTS, BEGIN, SCHEDULE)
    assert len(state.authorities) == 1
    assert set(state.servers) == set(HOSTS)
    for service, server in state.servers.items():
        assert signed_by(server.certificate, state.authorities[0])
        assert is_for(server.certificate, HOSTS[service])
        assert expires_at(server.certificate) == BEGIN + timedelta(days=9)


def test_nothing_changes_while_nothing_is_due() -> None:
    state = advance(PkiState(), HOSTS, BEGIN, SCHEDULE)
    assert advance(state, HOSTS, BEGIN + timedelta(days=5), SCHEDULE) == state


def test_a_certificate_for_other_hosts_is_made_anew() -> None:
    state = advance(PkiState(), HOSTS, BEGIN, SCHEDULE)
    moved = advance(state, {**HOSTS, "webhook": ("webhook.elsewhere.svc",)}, BEGIN, SCHEDULE)
    assert moved.authorities == state.authorities
    assert moved.servers["timekeeper"] == state.servers["timekeeper"]
    assert is_for(moved.servers["webhook"].certificate, ("webhook.elsewhere.svc",))


@pytest.mark.parametrize("step", [timedelta(hours=2), timedelta(hours=5)])
def test_over_a_year_old_and_new_are_always_trusted_by_all(step: timedelta) -> None:
    state, now, seen_bundle = PkiState(), BEGIN, b""
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
    state = advance(PkiState(), HOSTS, BEGIN, SCHEDULE)
    broken = PkiState(state.authorities, b"", b"", state.servers)
    healed = advance(broken, HOSTS, BEGIN + timedelta(days=1), SCHEDULE)
    assert healed.ca_key
    assert state.authorities[0] in healed.authorities


GARBAGE = b"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"


def other_key() -> bytes:
    return make_ca(BEGIN, timedelta(days=1)).key


@pytest.mark.parametrize("key", [b"garbage", GARBAGE, other_key()])
def test_a_ca_key_that_is_not_the_cas_counts_as_lost(key: bytes) -> None:
    state = advance(PkiState(), HOSTS, BEGIN, SCHEDULE)
    later = BEGIN + timedelta(days=1)
    healed = advance(replace(state, ca_key=key), HOSTS, later, SCHEDULE)
    assert healed.authorities[1:] == state.authorities
    for server in healed.servers.values():
        assert signed_by(server.certificate, healed.authorities[0])
    assert advance(healed, HOSTS, later, SCHEDULE) == healed


@pytest.mark.parametrize("key", [b"garbage", other_key()])
def test_an_old_ca_key_that_is_damaged_lets_the_new_one_sign_at_once(key: bytes) -> None:
    state = advance(PkiState(), HOSTS, BEGIN, SCHEDULE)
    turn = BEGIN + timedelta(days=61)
    rotated = advance(advance(state, HOSTS, turn - timedelta(days=2), SCHEDULE), HOSTS, turn, SCHEDULE)
    assert rotated.old_key
    damaged = advance(replace(rotated, old_key=key), HOSTS, turn, SCHEDULE)
    for server in damaged.servers.values():
        assert signed_by(server.certificate, damaged.authorities[0])


@pytest.mark.parametrize("key", [b"garbage", GARBAGE, other_key()])
def test_a_server_whose_key_is_not_its_certificates_gets_both_anew(key: bytes) -> None:
    state = advance(PkiState(), HOSTS, BEGIN, SCHEDULE)
    broken = {**state.servers, "webhook": KeyPair(state.servers["webhook"].certificate, key)}
    healed = advance(replace(state, servers=broken), HOSTS, BEGIN, SCHEDULE)
    assert healed.servers["webhook"].certificate != state.servers["webhook"].certificate
    assert healed.servers["timekeeper"] == state.servers["timekeeper"]
    assert advance(healed, HOSTS, BEGIN, SCHEDULE) == healed


def test_a_certificate_that_names_no_host_is_made_anew() -> None:
    state = advance(PkiState(), HOSTS, BEGIN, SCHEDULE)
    nameless = KeyPair(state.authorities[0], state.ca_key)
    healed = advance(replace(state, servers={**state.servers, "webhook": nameless}), HOSTS, BEGIN, SCHEDULE)
    assert is_for(healed.servers["webhook"].certificate, HOSTS["webhook"])
