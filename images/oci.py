# SPDX-License-Identifier: Apache-2.0
"""Write images as OCI archives, without a container engine and without a registry.

A layer is a tar file whose bytes depend only on its content, so an unchanged layer keeps its digest, and a node that
has it does not unpack it again.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import platform
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

_MACHINES: Final = {"x86_64": "amd64", "aarch64": "arm64"}
_MANIFEST: Final = "application/vnd.oci.image.manifest.v1+json"
_NAME: Final = "org.opencontainers.image.ref.name"


@dataclass(frozen=True)
class Image:
    """The metadata of an image."""

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


class Archive:
    """An OCI archive that is being written; shared layers are in it once."""

    def __init__(self, tar: tarfile.TarFile) -> None:
        self._tar = tar
        self._written: set[str] = set()
        self._manifests: list[dict[str, Any]] = []
        self._add("oci-layout", b'{"imageLayoutVersion":"1.0.0"}')

    def blob(self, data: bytes, media_type: str) -> dict[str, Any]:
        """Add some bytes, and return their descriptor."""
        digest = hashlib.sha256(data).hexdigest()
        if digest not in self._written:
            self._written.add(digest)
            self._add(f"blobs/sha256/{digest}", data)
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": len(data)}

    def layer(self, file: Path) -> dict[str, Any]:
        """Add a layer, and return its descriptor."""
        digest = _digest(file)
        if digest not in self._written:
            self._written.add(digest)
            self._tar.add(file, arcname=f"blobs/sha256/{digest}")
        media_type = "application/vnd.oci.image.layer.v1.tar"
        return {"mediaType": media_type, "digest": f"sha256:{digest}", "size": file.stat().st_size}

    def image(self, name: str, layers: Sequence[dict[str, Any]], **config: object) -> None:
        """Add an image of layers that are in the archive; `config` is the rest of its configuration."""
        config["rootfs"] = {"type": "layers", "diff_ids": [layer["digest"] for layer in layers]}
        manifest = {
            "schemaVersion": 2,
            "mediaType": _MANIFEST,
            "config": self.blob(_encoded(config), "application/vnd.oci.image.config.v1+json"),
            "layers": list(layers),
        }
        known = {"io.containerd.image.name": name, _NAME: name}  # ctr; skopeo
        self._manifests.append({**self.blob(_encoded(manifest), _MANIFEST), "annotations": known})

    def end(self) -> None:
        """Write the index of all images."""
        media_type = "application/vnd.oci.image.index.v1+json"
        index = {"schemaVersion": 2, "mediaType": media_type, "manifests": self._manifests}
        self._add("index.json", json.dumps(index).encode())

    def _add(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))


@contextmanager
def writing(file: Path) -> Iterator[Archive]:
    """Write an archive, which replaces `file` once it is complete."""
    fresh = file.with_suffix(f".{os.getpid()}.new")
    with tarfile.open(fresh, "w") as tar:
        archive = Archive(tar)
        yield archive
        archive.end()
    fresh.replace(file)


def write_archive(file: Path, images: Iterable[Image]) -> None:
    """Write images as one OCI archive; shared layers are in it once."""
    with writing(file) as archive:
        for image in images:
            archive.image(
                image.name,
                [archive.layer(layer) for layer in image.layers],
                architecture=_MACHINES.get(platform.machine(), platform.machine()),
                os="linux",
                config={
                    "User": image.user,
                    "Env": [f"{key}={value}" for key, value in image.environ.items()],
                    "Entrypoint": list(image.entrypoint),
                    "WorkingDir": "/",
                },
            )


def digests(file: Path) -> dict[str, str]:
    """Return the digest of each image in an archive, by its name.

    Raises ValueError if it is not an archive of ours.
    """
    try:
        with tarfile.open(file) as tar:
            index = tar.extractfile("index.json")
            manifests = json.load(index)["manifests"] if index is not None else []
        return {one["annotations"][_NAME]: one["digest"] for one in manifests}
    except (tarfile.TarError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no archive of images: {error}") from error


def _encoded(content: object) -> bytes:
    return json.dumps(content, sort_keys=True).encode()


def _digest(file: Path) -> str:
    """Return a file's SHA-256; kept beside it, because a layer never changes once it is written."""
    kept = file.with_suffix(".sha256")
    if not kept.exists() or kept.stat().st_mtime_ns < file.stat().st_mtime_ns:
        with file.open("rb") as data:
            digest = hashlib.file_digest(data, "sha256").hexdigest()
        kept.write_text(digest)
        os.utime(kept)
    return kept.read_text()
