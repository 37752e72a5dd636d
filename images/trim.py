# SPDX-License-Identifier: Apache-2.0
"""Install one part into a folder, for the Containerfile: `python images/trim.py install PART WHEEL FOLDER`."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main() -> None:
    """Install the part's extras, then remove every other part's packages."""
    if len(sys.argv) != 5 or sys.argv[1] != "install":
        raise SystemExit("usage: trim.py install PART WHEEL FOLDER")
    part, wheel, folder = sys.argv[2], sys.argv[3], Path(sys.argv[4])
    recipes = tomllib.loads((ROOT / "images/recipes.toml").read_text())
    if part not in recipes:
        raise SystemExit(f"PART is {part!r}: it must be one of {', '.join(recipes)}")
    wanted = f"slicekeeper[{','.join(recipes[part]['extras'])}] @ {Path(wheel).resolve().as_uri()}"
    constraints = str(ROOT / "constraints.txt")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--no-cache-dir", "--target", str(folder), "-c", constraints, wanted],
        check=True,
    )
    others = {package for recipe in recipes.values() for package in recipe["packages"]} | {"simulator"}
    for package in others - set(recipes[part]["packages"]):
        shutil.rmtree(folder / package, ignore_errors=True)


if __name__ == "__main__":
    main()
