# SPDX-License-Identifier: Apache-2.0
"""Decide what to renew, only from the current state and the time. Damaged data counts as missing.

A new CA is trusted for `overlap` before anything is signed by it, and the old one stays trusted until it expires: a
peer that still presents the old certificate, or has not seen the new CA yet, is never refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from certificates.authority import KeyPair, expires_at, is_for, is_whole, made_at, make_ca, sign_server, signed_by


@dataclass(frozen=True)
class Schedule:
    """How long certificates live. Each is renewed when two thirds of its life are over."""

    ca_life: timedelta
    server_life: timedelta
    overlap: timedelta


@dataclass(frozen=True)
class PkiState:
    """The whole stored state.

    `authorities` is newest first; the newest's key is `ca_key`, the signing one's `old_key`.
    """

    authorities: tuple[bytes, ...] = ()
    ca_key: bytes = b""
    old_key: bytes = b""
    """Key of the CA before the newest, which signs until the newest one's overlap is over."""
    servers: Mapping[str, KeyPair] = field(default_factory=dict)
    """By the name of the Service."""

    @property
    def bundle(self) -> bytes:
        """All trusted CAs."""
        return b"".join(self.authorities)


def advance(state: PkiState, hosts: Mapping[str, tuple[str, ...]], now: datetime, schedule: Schedule) -> PkiState:
    """Return the desired state, which is the same one if nothing is due. `hosts` are each Service's names."""
    state = _with_ca(state, now, schedule)
    signing = _signing(state, now, schedule)
    servers = {service: state.servers.get(service) for service in hosts}
    kept = {
        service: sign_server(signing, hosts[service], now, schedule.server_life)
        if server is None or _server_due(server, signing.certificate, hosts[service], now)
        else server
        for service, server in servers.items()
    }
    return replace(state, servers=kept)


def _with_ca(state: PkiState, now: datetime, schedule: Schedule) -> PkiState:
    alive = tuple(ca for ca in state.authorities if expires_at(ca) > now)
    kept = bool(alive) and alive[0] == state.authorities[0] and is_whole(KeyPair(alive[0], state.ca_key))
    if kept and not _over_two_thirds(alive[0], now):
        return replace(state, authorities=alive)
    fresh = make_ca(now, schedule.ca_life)
    return PkiState((fresh.certificate, *alive), fresh.key, state.ca_key if kept else b"", state.servers)


def _signing(state: PkiState, now: datetime, schedule: Schedule) -> KeyPair:
    newest = KeyPair(state.authorities[0], state.ca_key)
    young = now - made_at(newest.certificate) < schedule.overlap
    if young and len(state.authorities) > 1:
        older = KeyPair(state.authorities[1], state.old_key)
        return older if is_whole(older) else newest
    return newest


def _server_due(server: KeyPair, ca: bytes, hosts: tuple[str, ...], now: datetime) -> bool:
    return (
        not is_whole(server)
        or not signed_by(server.certificate, ca)
        or not is_for(server.certificate, hosts)
        or _over_two_thirds(server.certificate, now)
    )


def _over_two_thirds(certificate: bytes, now: datetime) -> bool:
    begin, end = made_at(certificate), expires_at(certificate)
    return now >= begin + (end - begin) * 2 / 3
