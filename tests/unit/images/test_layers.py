# SPDX-License-Identifier: Apache-2.0
"""Layers depend only on their content, and those that nothing needs any more are removed."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tarfile
import time
from functools import partial
from pathlib import Path

import pytest

from images import layers, oci


def test_the_same_files_make_the_same_layer_and_an_archive_has_each_layer_once(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / "etc").mkdir(parents=True)
        (tmp_path / name / "etc/file").write_text("text")
        oci.write_layer(tmp_path / f"{name}.tar", tmp_path / name)
    assert (tmp_path / "a.tar").read_bytes() == (tmp_path / "b.tar").read_bytes()
    images = [oci.Image(f"docker.io/x/{n}:1", (tmp_path / f"{n}.tar",), ("/x",)) for n in ("a", "b")]
    oci.write_archive(tmp_path / "out.tar", images)
    with tarfile.open(tmp_path / "out.tar") as tar:
        names = tar.getnames()
    assert len(names) == len(set(names))
    assert {"oci-layout", "index.json"} <= set(names)
    assert sum(name.startswith("blobs/") for name in names) == 3  # layer, config, manifest


def test_layers_that_were_replaced_are_removed(tmp_path: Path) -> None:
    now = time.time()
    for age_days in range(6):
        file = tmp_path / f"part-webhook-{age_days:016x}.tar"
        for path in (file, file.with_suffix(".sha256")):
            path.touch()
            os.utime(path, (now, now - age_days * 86400))
    (tmp_path / "busybox.tar").touch()
    os.utime(tmp_path / "busybox.tar", (now, now - 1e7))
    layers.prune(tmp_path)
    left = {path.name for path in tmp_path.iterdir()}
    assert left == {"busybox.tar", *(f"part-webhook-{n:016x}.{end}" for n in range(3) for end in ("tar", "sha256"))}


def archive_for(machine: str, *names: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an archive of images with one layer, as a machine of an architecture would build it."""
    tree = folder / machine
    tree.mkdir(exist_ok=True)
    (tree / "file").write_text(machine)
    oci.write_layer(folder / f"{machine}.layer", tree)
    monkeypatch.setattr(platform, "machine", lambda: machine)
    images = [oci.Image(name, (folder / f"{machine}.layer",), (name,)) for name in names]
    oci.write_archive(folder / f"{machine}-{len(names)}.tar", images)
    return folder / f"{machine}-{len(names)}.tar"


def test_archives_of_two_architectures_are_joined(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(archive_for, folder=tmp_path, monkeypatch=monkeypatch)
    sources = [make(machine, "registry.test/a:1", "registry.test/b:1") for machine in ("x86_64", "aarch64")]
    oci.join_archives(tmp_path / "all.tar", sources)
    with tarfile.open(tmp_path / "all.tar") as tar:
        assert len(tar.getnames()) == len(set(tar.getnames()))
        files = {name: (tar.extractfile(name) or pytest.fail(name)).read() for name in tar.getnames()}
    assert all(hashlib.sha256(files[name]).hexdigest() == name[13:] for name in files if name.startswith("blobs/"))
    [a, _] = json.loads(files["index.json"])["manifests"]
    assert a["mediaType"] == "application/vnd.oci.image.index.v1+json"
    assert oci.digests(tmp_path / "all.tar")["registry.test/a:1"] == a["digest"]
    platforms = {}
    for one in json.loads(files["blobs/" + a["digest"].replace(":", "/")])["manifests"]:
        assert oci.digests(sources[len(platforms)])["registry.test/a:1"] == one["digest"]
        platforms[one["platform"]["architecture"]] = one["platform"]["os"]
    assert platforms == {"amd64": "linux", "arm64": "linux"}


def test_archives_that_cannot_be_joined_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make = partial(archive_for, folder=tmp_path, monkeypatch=monkeypatch)
    one, both = make("x86_64", "registry.test/a:1"), make("x86_64", "registry.test/a:1", "registry.test/b:1")
    other = make("aarch64", "registry.test/a:1", "registry.test/b:1")
    oci.join_archives(tmp_path / "all.tar", [both, other])
    (tmp_path / "text.tar").write_text("text")
    out = tmp_path / "none.tar"
    for archives, said in (
        ([one, both], rf"a:1 for linux/amd64 is in {one} and in {both}"),
        ([one, other], rf"b:1 is not in {one}"),
        ([tmp_path / "all.tar", one], "a:1 in .*all.tar is joined already"),
        ([tmp_path / "text.tar"], "text.tar is no archive of images"),
    ):
        with pytest.raises(ValueError, match=said):
            oci.join_archives(out, archives)
        assert not list(tmp_path.glob("none*"))
