# SPDX-License-Identifier: Apache-2.0
"""Create local mode's own certificate authority, and the webhook's certificate signed by it, as files."""

from __future__ import annotations

import datetime
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from certificates.authority import make_ca, sign_server

LIFETIME: Final = datetime.timedelta(days=30)


@dataclass(frozen=True)
class Certificates:
    """The paths of the files."""

    ca: Path
    certificate: Path
    key: Path


def make(folder: Path, now_ms: int) -> Certificates:
    """Create a new CA and a server certificate for loopback; the CA's key is not kept."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    now = datetime.datetime.fromtimestamp(now_ms // 1000, datetime.UTC)
    ca = make_ca(now, LIFETIME)
    server = sign_server(ca, ("localhost", "127.0.0.1"), now, LIFETIME)
    files = Certificates(folder / "ca.crt", folder / "webhook.crt", folder / "webhook.key")
    files.ca.write_bytes(ca.certificate)
    files.certificate.write_bytes(server.certificate)
    files.key.touch(0o600)
    files.key.write_bytes(server.key)
    return files
