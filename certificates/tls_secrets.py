# SPDX-License-Identifier: Apache-2.0
"""Store what `rotation` decides in Secrets, and the trusted CAs in the webhook configurations and all namespaces.

The CA's Secret is written first, then the trust, then the servers' certificates: after a crash at any step, the next
run continues from what exists, and no certificate is ever presented before its CA is trusted.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from certificates.authority import KeyPair, split
from certificates.namespace_bundles import BundlePublisher
from certificates.registration_bundles import configurations, trust
from certificates.rotation import PkiState, Schedule, advance
from slicekeeper.clock import Clock
from slicekeeper.config.settings import CertificateSettings
from slicekeeper.kube.client import KubeClient, Object, Resource

log = logging.getLogger(__name__)

SECRETS: Final = Resource("/api/v1", "secrets")
FORWARDED: Final = {"timekeeper": ("timekeeper-forwarder",)}
"""Services whose connections end, still encrypted, at another one's pods."""


@dataclass(frozen=True)
class CertificateKeeper:
    """The certificates of one installation."""

    client: KubeClient
    clock: Clock
    settings: CertificateSettings
    publisher: BundlePublisher

    def keep(self) -> None:
        """Renew what is due, and publish it.

        Raises ServiceError if the API server does not answer or refuses.
        """
        hosts = {service: self._hosts(service) for service in self.settings.services}
        home = self.settings.namespace
        ca_secret = self.client.find(SECRETS, self.settings.ca_secret, home)
        secrets = {service: self.client.find(SECRETS, f"{service}-tls", home) for service in hosts}
        before = read_state(ca_secret, secrets)
        now = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)
        after = advance(before, hosts, now, self._schedule())
        if (after.authorities, after.ca_key, after.old_key) != (before.authorities, before.ca_key, before.old_key):
            data = {"ca.crt": after.bundle, "ca.key": after.ca_key, "old.key": after.old_key}
            self._write(ca_secret, self.settings.ca_secret, data, "Opaque")
            log.info("trusted CAs: %d", len(after.authorities))
        trust(self.client, configurations(self.client, self.settings.configuration), after.bundle)
        self.publisher.publish(after.bundle)
        for service, server in after.servers.items():
            if server != before.servers.get(service):
                data = {"tls.crt": server.certificate, "tls.key": server.key, "ca.crt": after.bundle}
                self._write(secrets[service], f"{service}-tls", data, "kubernetes.io/tls")
                log.info("signed a certificate for %s", ", ".join(hosts[service]))

    def _schedule(self) -> Schedule:
        return Schedule(
            timedelta(hours=self.settings.ca_hours),
            timedelta(hours=self.settings.server_hours),
            timedelta(seconds=self.settings.overlap_seconds),
        )

    def _hosts(self, service: str) -> tuple[str, ...]:
        """Return the DNS names at which a Service's pods are reached; `localhost` is for people who forward a port."""
        services = (service, *FORWARDED.get(service, ()))
        full = [f"{name}.{self.settings.namespace}" for name in services]
        return (*(f"{name}{end}" for name in full for end in (".svc", "", ".svc.cluster.local")), "localhost")

    def _write(self, found: Object | None, name: str, data: dict[str, bytes], kind: str) -> None:
        encoded = {key: b64encode(value).decode() for key, value in data.items()}
        if found is not None:
            self.client.replace(SECRETS, {**found, "data": encoded})
            return
        metadata = {"name": name, "namespace": self.settings.namespace}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": encoded}
        self.client.create(SECRETS, body, self.settings.namespace)


def read_state(ca_secret: Object | None, secrets: Mapping[str, Object | None]) -> PkiState:
    """Return the content of the Secrets. If the CA's own is empty, its certificates are taken from the servers'."""
    ca = _data(ca_secret)
    authorities = tuple(split(ca.get("ca.crt", b"")))
    servers = {}
    for service, secret in secrets.items():
        data = _data(secret)
        authorities = authorities or tuple(split(data.get("ca.crt", b"")))
        found = KeyPair(data.get("tls.crt", b""), data.get("tls.key", b""))
        if split(found.certificate) and found.key:
            servers[service] = found
    return PkiState(authorities, ca.get("ca.key", b""), ca.get("old.key", b""), servers)


def _data(secret: Object | None) -> dict[str, bytes]:
    return {key: b64decode(value) for key, value in ((secret or {}).get("data") or {}).items()}
