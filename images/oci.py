# SPDX-License-Identifier: Apache-2.0
"""Writes images as OCI archives, without an engine and without a registry.

A layer is a tar file whose content alone decides its bytes, so an unchanged layer keeps its digest and a node that
has it does not unpack it again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_NAME: Final = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Image:
    """What an image is, beside its layers' bytes."""

    name: str
    """Full name with registry, for example registry.example/gpus/webhook:0.1.0."""
    layers: Sequence[Path]
    entrypoint: Sequence[str]
    user: str = "65532:65532"
    environ: Mapping[str, str] = field(default_factory=dict)


def write_layer(file: Path, tree: Path, *, links: Mapping[str, str] | None = None) -> None:
    """Write the folder `tree` as a layer; `links` adds symbolic links (path → target)."""
    fresh = file.with_suffix(f".{os.getpid()}.new")
    with tarfile.open(fresh, "w", format=tarfile.GNU_FORMAT) as tar:
        for path in sorted(tree.rglob("*")):
            info = tar.gettarinfo(str(path), arcname=str(path.relative_to(tree)))
            info.uid = info.gid = info.mtime = 0
            info.uname = info.gname = ""
            if info.isreg():
                with path.open("rb") as data:
                    tar.addfile(info, data)
            else:
                tar.addfile(info)
        for path_in, target in sorted((links or {}).items()):
            info = tarfile.TarInfo(path_in)
            info.type, info.linkname, info.mode = tarfile.SYMTYPE, target, 0o777
            tar.addfile(info)
    fresh.replace(file)


def write_archive(file: Path, images: Iterable[Image]) -> None:
    """Write images as one OCI archive; a layer that several of them have is in it once."""
    fresh = file.with_suffix(f".{os.getpid()}.new")
    written: set[str] = set()
    with tarfile.open(fresh, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion":"1.0.0"}')
        manifests = [_add_image(tar, image, written) for image in images]
        index = {"schemaVersion": 2, "mediaType": "application/vnd.oci.image.index.v1+json", "manifests": manifests}
        _add(tar, "index.json", json.dumps(index).encode())
    fresh.replace(file)


def digests(file: Path) -> dict[str, str]:
    """Return the digest of each image in an archive, by its name.

    Raises ValueError if it is no archive of ours.
    """
    try:
        with tarfile.open(file) as tar:
            index = tar.extractfile("index.json")
            manifests = json.load(index)["manifests"] if index is not None else []
        return {one["annotations"][_NAME]: one["digest"] for one in manifests}
    except (tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no archive of images: {error}") from error


def _add_image(tar: tarfile.TarFile, image: Image, written: set[str]) -> dict[str, Any]:
    layers = []
    for layer in image.layers:
        digest = _digest(layer)
        layers.append((digest, layer.stat().st_size))
        if digest not in written:
            written.add(digest)
            tar.add(layer, arcname=f"blobs/sha256/{digest}")
    config = {
        "architecture": _MACHINES.get(platform.machine(), platform.machine()),
        "os": "linux",
        "config": {
            "User": image.user,
            "Env": [f"{key}={value}" for key, value in image.environ.items()],
            "Entrypoint": list(image.entrypoint),
            "WorkingDir": "/",
        },
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}" for digest, _ in layers]},
    }
    manifest = {
        "schemaVersion": 2,
        "mediaType": _MANIFEST,
        "config": _blob(tar, config, "application/vnd.oci.image.config.v1+json", written),
        "layers": [
            {"mediaType": "application/vnd.oci.image.layer.v1.tar", "digest": f"sha256:{digest}", "size": size}
            for digest, size in layers
        ],
    }
    known = {"io.containerd.image.name": image.name, _NAME: image.name}  # ctr; skopeo
    return {**_blob(tar, manifest, _MANIFEST, written), "annotations": known}


def _blob(tar: tarfile.TarFile, content: Any, media_type: str, written: set[str]) -> dict[str, Any]:
    data = json.dumps(content, sort_keys=True).encode()
    digest = hashlib.sha256(data).hexdigest()
    if digest not in written:
        written.add(digest)
        _add(tar, f"blobs/sha256/{digest}", data)
    return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}


def _add(tar: tarfile.TarFile, name: str, data: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.addfile(info, io.BytesIO(data))


def _digest(file: Path) -> str:
    """Return a file's SHA-256; kept beside it, because a layer never changes once it is written."""
    kept = file.with_suffix(".sha256")
    if not kept.exists() or kept.stat().st_mtime_ns < file.stat().st_mtime_ns:
        with file.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
        kept.write_text(digest)
        os.utime(kept)
    return kept.read_text()
