# SPDX-License-Identifier: Apache-2.0
"""Install one part into a folder, for the Containerfile: `python -m images.install_part PART WHEEL FOLDER`."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

from images.recipes import RECIPES, ROOT, packages_of_others


def main() -> None:
    """Install the part's extras, then remove every other part's packages."""
    if len(sys.argv) != 4:
        raise SystemExit("usage: python -m images.install_part PART WHEEL FOLDER")
    part, wheel, folder = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if part not in RECIPES:
        raise SystemExit(f"PART is {part!r}: it must be one of {', '.join(RECIPES)}")
    wanted = f"slicekeeper[{','.join(RECIPES[part]['extras'])}] @ {wheel.resolve().as_uri()}"
    constraints = str(ROOT / "constraints.txt")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--target", str(folder), "-c", constraints, wanted],
        check=True,
    )
    for package in packages_of_others(part):
        shutil.rmtree(folder / package, ignore_errors=True)


if __name__ == "__main__":
    main()
