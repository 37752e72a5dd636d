# SPDX-License-Identifier: Apache-2.0
"""Keeps what `rotation` decides in two Secrets, and the trusted CAs in the webhook configurations.

The CA's Secret is written first, then the trust, then the server's certificate: whatever step a crash cuts off,
the next run takes up from what is there, and no certificate is ever shown before its CA is trusted.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from datetime import UTC, datetime, timedelta
from typing import Final

from certificates.authority import KeyPair, split
from certificates.rotation import Schedule, State, advance
from slicekeeper.clock import Clock
from slicekeeper.errors import NotFound
from slicekeeper.kube.client import KubeClient, Object, Resource
from slicekeeper.settings import CertificateSettings

log = logging.getLogger(__name__)

SECRETS: Final = Resource("/api/v1", "secrets")
CONFIGURATIONS: Final = tuple(
    Resource("/apis/admissionregistration.k8s.io/v1", kind, namespaced=False)
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
)


class Keeper:
    """The certificates of one installation."""

    def __init__(self, client: KubeClient, clock: Clock, settings: CertificateSettings) -> None:
        self._client = client
        self._clock = clock
        self._settings = settings
        self._schedule = Schedule(
            timedelta(hours=settings.ca_hours),
            timedelta(hours=settings.server_hours),
            timedelta(seconds=settings.overlap_seconds),
        )

    def keep(self) -> bool:
        """Bring everything to what it should be; return whether anything was renewed.

        Raises ServiceError where the API server does not answer or refuses.
        """
        ca_secret = self._secret(self._settings.ca_secret)
        server_secret = self._secret(self._settings.server_secret)
        before = _state(ca_secret, server_secret)
        now = datetime.fromtimestamp(self._clock.now_ms() / 1000, UTC)
        after = advance(before, self._hosts(), now, self._schedule)
        if (after.authorities, after.ca_key, after.old_key) != (before.authorities, before.ca_key, before.old_key):
            data = {"ca.crt": after.bundle, "ca.key": after.ca_key, "old.key": after.old_key}
            self._write(ca_secret, self._settings.ca_secret, data, "Opaque")
            log.info("trusted CAs: %d", len(after.authorities))
        self._trust(after.bundle)
        if after.server is not None and after.server != before.server:
            data = {"tls.crt": after.server.certificate, "tls.key": after.server.key, "ca.crt": after.bundle}
            self._write(server_secret, self._settings.server_secret, data, "kubernetes.io/tls")
            log.info("signed a certificate for %s", ", ".join(self._hosts()))
        return after != before

    def _hosts(self) -> tuple[str, ...]:
        service = f"{self._settings.service}.{self._settings.namespace}"
        return (f"{service}.svc", service, f"{service}.svc.cluster.local")

    def _trust(self, bundle: bytes) -> None:
        """Write the bundle into every webhook of our configurations that has another one."""
        wanted = b64encode(bundle).decode()
        for resource in CONFIGURATIONS:
            try:
                found = self._client.get(resource, self._settings.configuration)
            except NotFound:
                log.warning("no %s named %s yet", resource.plural, self._settings.configuration)
                continue
            stale = [i for i, hook in enumerate(found.get("webhooks") or []) if _bundle_of(hook) != wanted]
            if stale:
                patch = [
                    {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted}
                    for index in stale
                ]
                self._client.patch(
                    resource, self._settings.configuration, patch, content_type="application/json-patch+json"
                )

    def _secret(self, name: str) -> Object | None:
        try:
            return self._client.get(SECRETS, name, self._settings.namespace)
        except NotFound:
            return None

    def _write(self, found: Object | None, name: str, data: dict[str, bytes], kind: str) -> None:
        encoded = {key: b64encode(value).decode() for key, value in data.items()}
        if found is not None:
            self._client.replace(SECRETS, {**found, "data": encoded})
            return
        metadata = {"name": name, "namespace": self._settings.namespace}
        body = {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind, "data": encoded}
        self._client.create(SECRETS, body, self._settings.namespace)


def _bundle_of(hook: Object) -> str:
    return str((hook.get("clientConfig") or {}).get("caBundle") or "")


def _state(ca_secret: Object | None, server_secret: Object | None) -> State:
    ca, server = _data(ca_secret), _data(server_secret)
    authorities = tuple(split(ca.get("ca.crt", b"")))
    found = KeyPair(server.get("tls.crt", b""), server.get("tls.key", b""))
    readable = bool(split(found.certificate)) and bool(found.key)
    return State(authorities, ca.get("ca.key", b""), ca.get("old.key", b""), found if readable else None)


def _data(secret: Object | None) -> dict[str, bytes]:
    return {key: b64decode(value) for key, value in ((secret or {}).get("data") or {}).items()}
