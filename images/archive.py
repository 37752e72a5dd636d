# SPDX-License-Identifier: Apache-2.0
"""Build Slicekeeper's images from a checkout, without a container engine and without a registry.

The images are for machines with the same architecture and the same or a newer kernel; a Containerfile is beside this
file for those who have an engine.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from images import layers
from images.oci import Image
from images.recipes import RECIPES, ROOT, packages_of_others
from slicekeeper.config.settings import Images

ENVIRON = {"PATH": "/usr/local/bin", "LANG": "C.UTF-8", "PYTHONUNBUFFERED": "1", "PYTHONDONTWRITEBYTECODE": "1"}


def cache() -> Path:
    """Return the folder of cached layers."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "slicekeeper" / "images"


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        raise SystemExit(f"the wheel was not built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return next(folder.glob("*.whl"))


def images(wheel: Path, parts: list[str], named: Images) -> list[Image]:
    """Return the images of the named parts; layers that are not cached are built."""
    runtime = layers.runtime(cache())
    made = [
        Image(
            named.of(part),
            (
                runtime,
                layers.dependencies(cache(), wheel, RECIPES[part]["extras"], ROOT / "constraints.txt"),
                *([layers.programs(cache(), wanted)] if (wanted := RECIPES[part].get("programs")) else []),
                layers.part(cache(), wheel, RECIPES[part]["packages"], packages_of_others(part)),
            ),
            ("/usr/local/bin/slicekeeper",),
            f"{RECIPES[part]['user']}:{RECIPES[part]['user']}",
            ENVIRON,
        )
        for part in parts
    ]
    layers.prune(cache())
    return made
