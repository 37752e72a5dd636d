# SPDX-License-Identifier: Apache-2.0
"""A server's TLS context, which follows certificate files that change, and the certificates that clients show it.

A server has one context; each handshake switches to that of the files' newest version, so rotation needs no restart
and costs one `stat` per connection. While certificate and key do not match, the last context stays in use.

A server with `ClientCas` asks clients for a certificate. A client without one is accepted; the handshake fails if its
certificate has expired or was signed by none of these CAs.
"""

from __future__ import annotations

import logging
import re
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from slicekeeper.config.settings import TlsSettings

log = logging.getLogger(__name__)

CLIENT: Final = "slicekeeper.client"
"""Key of the client's certificate in ASGI's scope and in WSGI's environment."""

_NOT_KNOWN: Final = frozenset({"not known"})
_PEM: Final = re.compile("-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----", re.DOTALL)


class ClientCas:
    """The CAs by which a server checks its clients' certificates; they may change while it serves."""

    def __init__(self) -> None:
        self.trusted: frozenset[str] = frozenset()
        """Their certificates (PEM). Empty: a client that shows a certificate is refused."""

    def trust(self, bundle: str) -> None:
        """Trust the CAs of a bundle (PEM) from the next handshake on.

        Raises ValueError if it contains none, or one that cannot be read.
        """
        found = certificates_in(bundle)
        if not found:
            raise ValueError("there is no certificate in it")
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(cadata="\n".join(found))
        except ssl.SSLError as error:
            raise ValueError(f"a certificate cannot be read ({error.reason})") from error
        self.trusted = found


@dataclass(frozen=True)
class ClientCertificate:
    """A client's certificate, verified at its handshake against the CAs that were trusted then."""

    common_names: tuple[str, ...]
    not_after: float
    """When it expires, in seconds since 1970."""
    cas: frozenset[str]


class _ContextWithCas(ssl.SSLContext):
    """A context that knows which client CAs it was made with."""

    cas: frozenset[str] = frozenset()


class ReloadingContext:
    """A server-side TLS context whose handshakes show the newest certificate that works."""

    def __init__(self, tls: TlsSettings, clients: ClientCas | None = None) -> None:
        """Ask for clients' certificates if `clients` is given.

        Raises ssl.SSLError or OSError if the files cannot be used.
        """
        self._tls = tls
        self._clients = clients
        self._seen, self._newest = self._stamp(), self._load()
        self.context: ssl.SSLContext = self._newest
        self.context.sni_callback = self._move_on  # also called for a client that names no server

    def _move_on(self, connection: ssl.SSLSocket | ssl.SSLObject, _name: str, _context: ssl.SSLContext) -> None:
        try:
            seen = self._stamp()
            if seen != self._seen:
                self._newest, self._seen = self._load(), seen
        except OSError as error:  # an ssl.SSLError is one
            log.warning("certificate %s not loaded, the old one stays: %s", self._tls.certificate_file, error)
        connection.context = self._newest

    def _load(self) -> _ContextWithCas:
        context = _ContextWithCas(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.load_cert_chain(self._tls.certificate_file, self._tls.key_file)
        if self._clients is not None:
            # The connection's first context decides whether the client is asked for a certificate.
            context.verify_mode = ssl.CERT_OPTIONAL
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as Go: what is named is trusted, root or not
            # A resumed session would keep its client's certificate, and that is not checked again.
            context.options |= ssl.OP_NO_TICKET
            context.num_tickets = 0
            context.cas = self._clients.trusted
            if context.cas:
                context.load_verify_locations(cadata="\n".join(context.cas))
        return context

    def _stamp(self) -> tuple[int, int, frozenset[str]]:
        return (
            Path(self._tls.certificate_file).stat().st_mtime_ns,
            Path(self._tls.key_file).stat().st_mtime_ns,
            frozenset() if self._clients is None else self._clients.trusted,
        )


def certificates_in(bundle: str) -> frozenset[str]:
    """Return the certificates of a bundle (PEM), each with its text unchanged."""
    return frozenset(_PEM.findall(bundle))


def certificate_of(connection: ssl.SSLObject | None) -> ClientCertificate | None:
    """Return the client's certificate; None if it has none or was not asked for one."""
    shown: dict[str, Any] | None = None if connection is None else connection.getpeercert()
    if connection is None or not shown or not isinstance(connection.context, _ContextWithCas):
        return None
    # TLS 1.2 also resumes a session by its number: then it is no longer known which CA signed the certificate.
    cas = _NOT_KNOWN if connection.session_reused else connection.context.cas
    return ClientCertificate(
        tuple(value for part in shown["subject"] for name, value in part if name == "commonName"),
        ssl.cert_time_to_seconds(shown["notAfter"]),
        cas,
    )
