# SPDX-License-Identifier: Apache-2.0
"""The arbiter, the limiter and the fake driver, built for tests that use the real ones."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

VCUDA = Path(__file__).resolve().parents[2] / "vcuda"
BUILD = VCUDA / "build"
_WANTED = ("arbiter", "libvcuda.so", "fake/libnvidia-ml.so.1", "fake/libcuda.so.1", "fake/tenant", "fake/memory")


@cache
def built() -> Path:
    """Return the folder of the programs, built if they are missing or old; skip the test if they cannot be built."""
    for tool in ("gcc", "make"):
        if shutil.which(tool) is None:
            pytest.skip(f"there is no {tool} to build the arbiter and the fake driver with")
    BUILD.mkdir(exist_ok=True)
    with (BUILD / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # each worker of the suite comes here
        command = ["make", "-C", str(VCUDA), f"PYTHON={sys.executable}", *(f"build/{name}" for name in _WANTED)]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return BUILD
