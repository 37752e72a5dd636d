# SPDX-License-Identifier: Apache-2.0
"""Certificates as values: create a CA, sign a server's certificate, read a certificate's age. Needs no cluster."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Final

from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

BACKDATED: Final = timedelta(hours=1)
"""A certificate is valid from this long before its creation, because clocks in a cluster differ."""


@dataclass(frozen=True)
class KeyPair:
    """A certificate and its key, PEM."""

    certificate: bytes
    key: bytes


def make_ca(now: datetime, life: timedelta) -> KeyPair:
    """Return a new CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"slicekeeper CA {now:%Y-%m-%dT%H:%M:%SZ}")])
    certificate = (
        _builder(name, name, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(sign=True), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .sign(key, hashes.SHA256())
    )
    return _pair(certificate, key)


def sign_server(ca: KeyPair, hosts: tuple[str, ...], now: datetime, life: timedelta) -> KeyPair:
    """Return a server's certificate for `hosts` (DNS names and IP addresses), signed by `ca`, which must be whole."""
    issuer = x509.load_pem_x509_certificate(ca.certificate)
    issuer_key = _key(ca.key)
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0][:64])])
    names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
    certificate = (
        _builder(subject, issuer.subject, key.public_key(), now, life)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(sign=False), critical=True)
        .add_extension(names, critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer_key.public_key()), critical=False)
        .sign(issuer_key, hashes.SHA256())
    )
    return _pair(certificate, key)


def made_at(certificate: bytes) -> datetime:
    """Return the instant at which one of our certificates was created."""
    return x509.load_pem_x509_certificate(certificate).not_valid_before_utc + BACKDATED


def expires_at(certificate: bytes) -> datetime:
    """Return the instant from which a certificate is no longer valid."""
    return x509.load_pem_x509_certificate(certificate).not_valid_after_utc


def signed_by(certificate: bytes, ca: bytes) -> bool:
    """Whether `ca` signed `certificate`."""
    try:
        x509.load_pem_x509_certificate(certificate).verify_directly_issued_by(x509.load_pem_x509_certificate(ca))
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def is_whole(pair: KeyPair) -> bool:
    """Whether the key belongs to the certificate, and has the type that is used here."""
    try:
        return _key(pair.key).public_key() == x509.load_pem_x509_certificate(pair.certificate).public_key()
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return False


def is_for(certificate: bytes, hosts: tuple[str, ...]) -> bool:
    """Whether a certificate names exactly these hosts."""
    extensions = x509.load_pem_x509_certificate(certificate).extensions
    try:
        names = extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return False
    return set(names) == {_general_name(host) for host in hosts}


def split(bundle: bytes) -> list[bytes]:
    """Return the readable certificates of a bundle."""
    try:
        found = x509.load_pem_x509_certificates(bundle)
    except ValueError:
        return []
    return [certificate.public_bytes(serialization.Encoding.PEM) for certificate in found]


def _key(pem: bytes) -> ec.EllipticCurvePrivateKey:
    key = serialization.load_pem_private_key(pem, None)
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise TypeError("no elliptic curve key")
    return key


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, life: timedelta
) -> x509.CertificateBuilder:
    begin = now.astimezone(UTC) - BACKDATED
    return x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), begin, now + life)


def _usage(*, sign: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not sign,
        key_cert_sign=sign,
        crl_sign=sign,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
    return KeyPair(
        certificate.public_bytes(serialization.Encoding.PEM),
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
