# SPDX-License-Identifier: Apache-2.0
"""A disk that is small enough to be filled up."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support import leftovers

MIB = 1 << 20


@contextmanager
def small_disk(mib: int) -> Iterator[Path]:
    """Mount a separate disk; skip the test if that is not allowed."""
    with leftovers.folder("small") as folder:
        options = ["-t", "tmpfs", "-o", f"size={mib}m,mode=0777", "tmpfs", str(folder)]
        try:
            mounted = subprocess.run(["mount", *options], capture_output=True, check=False).returncode == 0
        except OSError:
            mounted = False
        if not mounted:
            pytest.skip("a file system of its own cannot be mounted here: that needs root and CAP_SYS_ADMIN")
        yield folder


def fill_up(folder: Path) -> Path:
    """Leave no byte free."""
    file = folder / "filler"
    with file.open("wb", buffering=0) as filler:
        for size in (MIB, 4096, 1):
            try:
                while True:
                    filler.write(b"x" * size)
            except OSError:
                continue
    return file
