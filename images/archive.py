# SPDX-License-Identifier: Apache-2.0
"""Makes Slicekeeper's images as one OCI archive: `python -m images.archive --out images.tar [PART…]`.

Import it with `ctr -n k8s.io images import images.tar`, or take images out of it by `skopeo copy`. The images
are for machines with the same architecture and the same or a newer kernel; a Containerfile is beside this file for
those who have an engine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from images import layers
from images.oci import Image, write_archive
from slicekeeper.config.settings import Images, convert
from slicekeeper.errors import SettingsError

ROOT = Path(__file__).resolve().parent.parent
ENVIRON = {
    "PATH": "/usr/local/bin",
    "LANG": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
}


def recipes() -> dict[str, dict[str, Any]]:
    """Return the recipe of every image."""
    return tomllib.loads((ROOT / "images/recipes.toml").read_text())


def cache() -> Path:
    """Return where layers are kept."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "slicekeeper" / "images"


def build_wheel(folder: Path) -> Path:
    """Build the wheel of this checkout."""
    done = subprocess.run(
        [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(folder), str(ROOT)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode != 0:
        raise SystemExit(f"the wheel was not built:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")
    return next(folder.glob("*.whl"))


def images(wheel: Path, parts: list[str], named: Images) -> list[Image]:
    """Return the images of the named parts, their layers made if they are not kept yet."""
    known = recipes()
    every = {package for recipe in known.values() for package in recipe["packages"]} | {"simulator"}
    runtime = layers.runtime(cache())
    made = [
        Image(
            named.of(part),
            (
                runtime,
                layers.dependencies(cache(), wheel, known[part]["extras"], ROOT / "constraints.txt"),
                *([layers.programs(cache(), wanted)] if (wanted := known[part].get("programs")) else []),
                layers.part(cache(), wheel, known[part]["packages"], every),
            ),
            ("/usr/local/bin/slicekeeper",),
            f"{known[part]['user']}:{known[part]['user']}",
            ENVIRON,
        )
        for part in parts
    ]
    layers.prune(cache())
    return made


def main() -> None:
    """Read the command line and write the archive."""
    parser = argparse.ArgumentParser(description="Make Slicekeeper's images as one OCI archive.")
    parser.add_argument("--out", type=Path, required=True, help="file to write")
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"default: all of {', '.join(recipes())}")
    parser.add_argument(
        "--registry", default=Images().registry, help="registry that the images are named by (default: %(default)s)"
    )
    asked = parser.parse_args()
    unknown = sorted(set(asked.parts) - set(recipes()))
    if unknown:
        parser.error(f"unknown part {unknown[0]}; known: {', '.join(recipes())}")
    try:
        named = convert({"registry": asked.registry}, Images, "--registry")
    except SettingsError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory() as folder:
        write_archive(asked.out, images(build_wheel(Path(folder)), asked.parts or list(recipes()), named))


if __name__ == "__main__":
    main()
