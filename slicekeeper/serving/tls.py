# SPDX-License-Identifier: Apache-2.0
"""A server's TLS context, which follows certificate files that change.

A server has one context; each handshake moves on to that of the files' newest version, so rotation needs no restart
and costs one `stat` per connection. While the files don't fit together, the last context stays.
"""

from __future__ import annotations

import logging
import ssl
from pathlib import Path

from slicekeeper.settings import TlsSettings

log = logging.getLogger(__name__)


class ReloadingContext:
    """A server-side TLS context whose handshakes show the newest certificate that works."""

    def __init__(self, tls: TlsSettings) -> None:
        """Raise ssl.SSLError or OSError if the files don't work."""
        self._tls = tls
        self._seen, self._newest = self._stamp(), self._load()
        self.context = self._newest
        self.context.sni_callback = self._move_on  # called too for a client that names no server

    def _move_on(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        try:
            seen = self._stamp()
            if seen != self._seen:
                self._newest, self._seen = self._load(), seen
        except OSError as error:  # an ssl.SSLError is one
            log.warning("certificate %s not loaded, the old one stays: %s", self._tls.certificate_file, error)
        connection.context = self._newest

    def _load(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._tls.certificate_file, self._tls.key_file)
        return context

    def _stamp(self) -> tuple[int, int]:
        return (
            Path(self._tls.certificate_file).stat().st_mtime_ns,
            Path(self._tls.key_file).stat().st_mtime_ns,
        )
