# SPDX-License-Identifier: Apache-2.0
"""Sign images as cosign does, but without it: an artifact beside each image, in the same registry.

The payload is containers/image's "simple signing" document, signed with ECDSA P-256 over SHA-256; it is the one layer
of an OCI manifest whose tag is made of the image's digest (sigstore/cosign, specs/SIGNATURE_SPEC.md). It is not
recorded in a transparency log: verification uses the public key.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from images.oci import writing

_PAYLOAD: Final = "application/vnd.dev.cosign.simplesigning.v1+json"
_SIGNATURE: Final = "dev.cosignproject.cosign/signature"


def read_key(file: Path) -> ec.EllipticCurvePrivateKey:
    """Return the private key in a PEM file without a password.

    Raises ValueError if it is not one on the curve P-256.
    """
    try:
        key = load_pem_private_key(file.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ValueError(f"{file}: no private key is there, or it has a password: {error}") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey) or not isinstance(key.curve, ec.SECP256R1):
        raise ValueError(
            f"{file}: the key is not one on the curve P-256; openssl ecparam -genkey -noout -name prime256v1 makes one"
        )
    return key


def write_signatures(file: Path, images: Mapping[str, str], key: ec.EllipticCurvePrivateKey) -> None:
    """Write an archive with a signature of each image; `images` are their digests by name."""
    with writing(file) as archive:
        for name, digest in images.items():
            repository = name.rpartition(":")[0]
            payload = json.dumps(
                {
                    "critical": {
                        "identity": {"docker-reference": repository},
                        "image": {"docker-manifest-digest": digest},
                        "type": "cosign container image signature",
                    },
                    "optional": None,
                }
            ).encode()
            signature = base64.b64encode(key.sign(payload, ec.ECDSA(hashes.SHA256()))).decode()
            layer = {**archive.blob(payload, _PAYLOAD), "annotations": {_SIGNATURE: signature}}
            archive.image(f"{repository}:{digest.replace(':', '-')}.sig", [layer], architecture="", os="", config={})
