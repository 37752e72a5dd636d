#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Make what containers.py carries to a machine without a network: a static runc, and a root with Python.

    container_root.py     writes build/container-root; needs Go, gcc and a network, and two minutes

The root has the Python that runs this, with the libraries that it loads, each in its own place, and nothing else. runc
(Apache-2.0) is built from its Go module.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

RUNC: Final = "github.com/opencontainers/runc@v1.3.2"
FOLDER: Final = Path(__file__).resolve().parents[2] / "build" / "container-root"
MOST_BYTES: Final = 60 << 20
"""What a device machine takes along."""
ALWAYS: Final = ("libpthread.so.0", "libdl.so.2", "librt.so.1", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6")
"""What any image has beside the C library: the limiter or the driver names them."""
_LEFT_OUT: Final = shutil.ignore_patterns(
    "__pycache__", "test", "tests", "site-packages", "dist-packages", "idlelib", "tkinter", "turtledemo", "ensurepip",
    "lib2to3", "pydoc_data", "config-*", "_test*", "_xxtestfuzz*", "_tkinter*",
    "_ssl.*", "_hashlib.*", "_sqlite3.*", "_curses*", "_dbm.*", "_gdbm.*", "nis.*", "readline.*",
)  # fmt: skip


def python() -> str:
    """Return the path of Python in the root, which is its path here."""
    return str(Path(sys.executable).resolve())


def fill(root: Path) -> None:
    """Copy Python, its standard library and the shared libraries of both into a root."""
    library = Path(sysconfig.get_path("stdlib"))
    shutil.copytree(library, root / library.relative_to("/"), ignore=_LEFT_OUT)
    modules = (root / library.relative_to("/")).rglob("*.so")
    _copy(Path(python()), root)
    for name in sorted({name for file in (Path(python()), *modules) for name in _libraries(file)}):
        _copy(Path(name), root)
    for name in ALWAYS:
        if (found := _libc().with_name(name)).exists():
            _copy(found, root)
    for folder in ("dev", "proc", "tmp", "etc", "run"):
        (root / folder).mkdir(exist_ok=True)


def build_runc(file: Path) -> None:
    """Build runc without a dynamic library, and without seccomp, which has none that is static."""
    told = subprocess.run(["go", "mod", "download", "-json", RUNC], capture_output=True, text=True, check=True).stdout
    linked = ["-ldflags", "-s -w -linkmode external -extldflags -static", "-tags", "netgo osusergo"]
    command = [
        "go",
        "build",
        "-C",
        json.loads(told)["Dir"],
        "-trimpath",
        "-buildvcs=false",
        *linked,
        "-o",
        str(file),
        ".",
    ]
    subprocess.run(command, env={**os.environ, "CGO_ENABLED": "1", "GOFLAGS": "-mod=readonly"}, check=True)


def _libc() -> Path:
    return next(Path(name) for name in _libraries(Path(python())) if Path(name).name == "libc.so.6")


def _libraries(file: Path) -> list[str]:
    """Return the paths of the shared libraries that a program or library loads, as the loader finds them here."""
    told = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=False).stdout
    return re.findall(r"(?:=> |^\s+)(/\S+) \(0x", told, re.MULTILINE)


def _copy(file: Path, root: Path) -> None:
    """Copy a file to its place in the root; a link becomes the file that it leads to."""
    target = root / file.relative_to("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(file, target)
    subprocess.run(["strip", "--strip-unneeded", str(target)], check=True)


def main() -> None:
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    out = FOLDER
    shutil.rmtree(out, ignore_errors=True)
    (out / "root").mkdir(parents=True)
    fill(out / "root")
    build_runc(out / "runc")
    size = sum(file.stat().st_size for file in out.rglob("*") if file.is_file())
    print(f"{out}: {size / (1 << 20):.0f} MiB")
    if size > MOST_BYTES:
        sys.exit(f"that is more than the {MOST_BYTES >> 20} MiB that a machine takes along")


if __name__ == "__main__":
    main()
