#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fetch cuda.h of a CUDA major version into a cache folder and print its path.

The headers come out of the wheels that carry the CUDA runtime, so a build needs pip and nothing of
the CUDA toolkit. A folder given in CUDA_HEADERS_<major> is used as it is (for builds without a
network).
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

WHEELS = {"12": "nvidia-cuda-runtime-cu12==12.9.*", "13": "nvidia-cuda-runtime==13.*"}
WANTED = ("/cuda.h", "/cudaTypedefs.h")


def cache_root() -> Path:
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "slicekeeper"


def fetch(major: str) -> Path:
    """Return the folder that holds cuda.h of this major version, downloading it once."""
    given = os.environ.get(f"CUDA_HEADERS_{major}")
    if given:
        return Path(given)
    target = cache_root() / f"cuda-{major}"
    if (target / "cuda.h").exists() and (target / "libcudart.so").exists():
        return target
    target.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pip = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary=:all:"]
        subprocess.run([*pip, "-d", scratch, WHEELS[major]], check=True, stdout=sys.stderr)
        (wheel,) = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                runtime = f"/libcudart.so.{major}"
                if name.endswith((*WANTED, runtime)):
                    leaf = "libcudart.so" if name.endswith(runtime) else Path(name).name
                    # Written aside and renamed: two builds may fetch at the same time.
                    part = target / f".{leaf}.{os.getpid()}"
                    part.write_bytes(archive.read(name))
                    part.rename(target / leaf)
    return target


if __name__ == "__main__":
    print(fetch(sys.argv[1]))
