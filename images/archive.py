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
from images.programs import BEHIND, ENTRYPOINT
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
    made = []
    for part in parts:
        recipe = RECIPES[part]
        contents = [runtime, layers.dependencies(cache(), wheel, recipe["extras"], ROOT / "constraints.txt")]
        if wanted := recipe.get("programs"):
            contents.append(layers.programs(cache(), wanted))
        command = ENTRYPOINT
        if recipe.get("first_process"):
            contents.append(layers.first_process(cache()))
            command = BEHIND
        contents.append(layers.part(cache(), wheel, recipe["packages"], packages_of_others(part), command))
        user = f"{recipe['user']}:{recipe['user']}"
        made.append(Image(named.of(part), contents, (f"/{ENTRYPOINT}",), user, ENVIRON))
    layers.prune(cache())
    return made
