# SPDX-License-Identifier: Apache-2.0
"""One CA per cluster, a certificate per program, and kubeconfigs that carry them."""

from __future__ import annotations

import base64
import ipaddress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFE = timedelta(days=30)


class Authority:
    """A certificate authority whose files lie in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        self._key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "slicekeeper-cluster")])
        self._certificate = (
            _builder(name, name, self._key)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_file = folder / "ca.crt"
        self.ca_file.write_bytes(self._certificate.public_bytes(serialization.Encoding.PEM))

    def issue(self, name: str, *, user: str, groups: tuple[str, ...] = (), hosts: tuple[str, ...] = ()) -> None:
        """Write `name`.crt and `name`.key for a client called `user`, or a server reached as `hosts`."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name(
            [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
            + [x509.NameAttribute(NameOID.COMMON_NAME, user)]
        )
        usage = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
        builder = _builder(subject, self._certificate.subject, key).add_extension(
            x509.ExtendedKeyUsage(usage), critical=False
        )
        if hosts:
            builder = builder.add_extension(x509.SubjectAlternativeName([_san(host) for host in hosts]), critical=False)
        certificate = builder.sign(self._key, hashes.SHA256())
        (self.folder / f"{name}.crt").write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
        write_key(self.folder / f"{name}.key", key)

    def kubeconfig(self, name: str, server: str) -> dict[str, Any]:
        """Return a kubeconfig for the client called `name`, with its certificate inside."""

        def inline(file: Path) -> str:
            return base64.b64encode(file.read_bytes()).decode()

        return {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "slicekeeper",
            "clusters": [
                {
                    "name": "slicekeeper",
                    "cluster": {"server": server, "certificate-authority-data": inline(self.ca_file)},
                }
            ],
            "users": [
                {
                    "name": name,
                    "user": {
                        "client-certificate-data": inline(self.folder / f"{name}.crt"),
                        "client-key-data": inline(self.folder / f"{name}.key"),
                    },
                }
            ],
            "contexts": [{"name": "slicekeeper", "context": {"cluster": "slicekeeper", "user": name}}],
        }

    def write_kubeconfig(self, name: str, server: str, file: Path) -> Path:
        """Write `kubeconfig` to a file that only its owner reads."""
        file.touch(mode=0o600)
        file.write_text(yaml.safe_dump(self.kubeconfig(name, server)))
        return file


def write_key(file: Path, key: ec.EllipticCurvePrivateKey) -> None:
    """Write a private key for its owner alone."""
    file.touch(mode=0o600)
    file.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, serialization.NoEncryption()
        )
    )


def service_account_key(folder: Path) -> Path:
    """Write the key that signs service account tokens; return its file."""
    file = folder / "service-account.key"
    write_key(file, ec.generate_private_key(ec.SECP256R1()))
    return file


def _san(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _builder(subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + LIFE)
    )
