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
_INDEX: Final = "application/vnd.oci.image.index.v1+json"
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
        self._name(name, self.blob(_encoded(manifest), _MANIFEST))

    def manifest_list(self, name: str, manifests: Sequence[dict[str, Any]]) -> None:
        """Add an image for several architectures; `manifests` are the descriptors of one for each, with `platform`."""
        self._name(name, self.blob(_encoded(_index(manifests)), _INDEX))

    def blobs_of(self, other: tarfile.TarFile) -> None:
        """Add everything that the images of another archive are made of."""
        for member in other:
            digest = member.name.removeprefix("blobs/sha256/")
            if digest != member.name and member.isreg() and digest not in self._written:
                self._written.add(digest)
                self._tar.addfile(member, other.extractfile(member))

    def end(self) -> None:
        """Write the index of all images."""
        self._add("index.json", json.dumps(_index(self._manifests)).encode())

    def _name(self, name: str, descriptor: dict[str, Any]) -> None:
        known = {"io.containerd.image.name": name, _NAME: name}  # ctr; skopeo
        self._manifests.append({**descriptor, "annotations": known})

    def _add(self, name: str, data: bytes) -> None:
        info = tarfile.TarInfo(name)
        info.size = len(data)
        self._tar.addfile(info, io.BytesIO(data))


@contextmanager
def writing(file: Path) -> Iterator[Archive]:
    """Write an archive, which replaces `file` once it is complete."""
    fresh = file.with_suffix(f".{os.getpid()}.new")
    try:
        with tarfile.open(fresh, "w") as tar:
            archive = Archive(tar)
            yield archive
            archive.end()
        fresh.replace(file)
    finally:
        fresh.unlink(missing_ok=True)


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


def join_archives(file: Path, archives: Sequence[Path]) -> None:
    """Write one archive of several that have the same images, each for another architecture.

    Raises ValueError if they do not.
    """
    found: dict[str, dict[str, tuple[Path, dict[str, Any]]]] = {}
    with writing(file) as joined:
        for archive in archives:
            with _opened(archive) as tar:
                for name, descriptor in _images(tar).items():
                    platform_ = _platform(tar, name, descriptor)
                    by_platform = found.setdefault(name, {})
                    key = "/".join(platform_.values())
                    if key in by_platform:
                        raise ValueError(
                            f"{name} for {key} is in {by_platform[key][0]} and in {archive}: leave one out"
                        )
                    by_platform[key] = archive, {**descriptor, "platform": platform_}
                joined.blobs_of(tar)
        for name, by_platform in found.items():
            if absent := set(archives) - {archive for archive, _ in by_platform.values()}:
                raise ValueError(
                    f"{name} is not in {min(absent)}: build the same parts, release and registry everywhere"
                )
            joined.manifest_list(name, [descriptor for _, descriptor in by_platform.values()])


def digests(file: Path) -> dict[str, str]:
    """Return the digest of each image in an archive, by its name.

    Raises ValueError if it is not an archive of ours.
    """
    with _opened(file) as tar:
        return {name: descriptor["digest"] for name, descriptor in _images(tar).items()}


@contextmanager
def _opened(file: Path) -> Iterator[tarfile.TarFile]:
    """Open an archive; raise ValueError for all that is wrong with it."""
    try:
        with tarfile.open(file) as tar:
            yield tar
    except (tarfile.TarError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ValueError(f"{file} is no archive of images: {error}") from error


def _images(tar: tarfile.TarFile) -> dict[str, dict[str, Any]]:
    """Return the descriptors of an archive's images by name."""
    return {one["annotations"][_NAME]: {**one, "annotations": {}} for one in _json(tar, "index.json")["manifests"]}


def _platform(tar: tarfile.TarFile, name: str, descriptor: dict[str, Any]) -> dict[str, str]:
    if descriptor["mediaType"] != _MANIFEST:
        raise ValueError(f"{name} in {tar.name} is joined already: name the archives that it was joined from")
    config = _json(tar, _file(_json(tar, _file(descriptor))["config"]))
    return {"os": config["os"], "architecture": config["architecture"]}


def _file(descriptor: dict[str, Any]) -> str:
    return "blobs/" + descriptor["digest"].replace(":", "/")


def _json(tar: tarfile.TarFile, name: str) -> Any:
    with tar.extractfile(name) as data:  # type: ignore[union-attr] # None for a folder alone, and then a TypeError
        return json.load(data)


def _index(manifests: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {"schemaVersion": 2, "mediaType": _INDEX, "manifests": list(manifests)}


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
