# SPDX-License-Identifier: Apache-2.0
"""Layers depend only on their content, and those that nothing needs any more are removed."""

from __future__ import annotations

import os
import tarfile
import time
from pathlib import Path

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
