# SPDX-License-Identifier: Apache-2.0
"""Trust the CAs that another issuer, such as cert-manager, keeps in files; sign nothing.

The issuer drops a CA as soon as it has a new one, while servers still present certificates of the old one: kubelet
brings a changed Secret into their pods in one or two minutes. So a CA that the API server trusts already stays trusted
until it expires. cert-manager's own injector was rejected for this reason: it writes only the newest CA.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from certificates.authority import expires_at, split
from certificates.namespace_bundles import BundlePublisher
from certificates.registration_bundles import configurations, trust, trusted
from slicekeeper.clock import Clock
from slicekeeper.config.settings import CertificateSettings
from slicekeeper.errors import Unavailable
from slicekeeper.kube.client import KubeClient


@dataclass(frozen=True)
class Follower:
    """Maintains one installation's trust; the counterpart of `CertificateKeeper`, which creates the trusted CA."""

    client: KubeClient
    clock: Clock
    settings: CertificateSettings
    publisher: BundlePublisher

    def keep(self) -> None:
        """Make all clients trust the CAs in the files.

        Raises Unavailable if a file has none yet, ServiceError if the API server does not answer or refuses.
        """
        named = [ca for file in self.settings.ca_files for ca in _read(Path(file))]
        now = datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC)
        found = configurations(self.client, self.settings.configuration)
        bundle = b"".join(united(named, trusted(found), now))
        trust(self.client, found, bundle)
        self.publisher.publish(bundle)


def united(named: Iterable[bytes], before: Iterable[bytes], now: datetime) -> list[bytes]:
    """Return every CA once: the current ones, then former ones that have not expired."""
    return list(dict.fromkeys((*named, *(ca for ca in before if expires_at(ca) > now))))


def _read(file: Path) -> list[bytes]:
    """Return the certificates in a file.

    Raises Unavailable if there is none that can be read: another program may still be writing the file.
    """
    try:
        found = split(file.read_bytes())
    except OSError as error:
        raise Unavailable(f"certificates.caFiles: {file} cannot be read ({error.strerror})") from error
    if not found:
        raise Unavailable(f"certificates.caFiles: {file} holds no certificate")
    return found
