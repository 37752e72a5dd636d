# SPDX-License-Identifier: Apache-2.0
"""Certificates of clients, for tests of servers that ask for them."""

from __future__ import annotations

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from certificates.authority import KeyPair

HOUR = timedelta(hours=1)


def sign_client(ca: KeyPair, *names: str, life: timedelta = HOUR) -> KeyPair:
    """Return a client's certificate with these common names; with a `life` below zero it has expired."""
    key, issuer = ec.generate_private_key(ec.SECP256R1()), x509.load_pem_x509_certificate(ca.certificate)
    signer = serialization.load_pem_private_key(ca.key, None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name) for name in names]))
        .issuer_name(issuer.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - 2 * HOUR)
        .not_valid_after(now + life)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False)
        .sign(signer, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return KeyPair(certificate.public_bytes(serialization.Encoding.PEM), private)


def context(folder: Path, server_ca: KeyPair, shows: KeyPair | None) -> ssl.SSLContext:
    """Return the context of a client that trusts a server's CA and shows a certificate, or none."""
    made = ssl.create_default_context(cadata=server_ca.certificate.decode())
    made.check_hostname = False
    if shows is not None:
        file = folder / f"{id(shows)}.pem"
        file.write_bytes(shows.certificate + shows.key)
        made.load_cert_chain(file)
    return made
