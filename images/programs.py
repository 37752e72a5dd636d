# SPDX-License-Identifier: Apache-2.0
"""Build the C programs that a part's image carries; for the Containerfile `python -m images.programs PART FOLDER`.

Those of vcuda/ are in one folder, because the arbiter looks for the others beside itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from images.recipes import RECIPES, ROOT

FOLDER: Final = "usr/local/slicekeeper/lib"

ENTRYPOINT: Final = "usr/local/bin/slicekeeper"
"""Each image's: the command, or the first process, which starts it."""

BEHIND: Final = f"{FOLDER}/slicekeeper"
"""The command in an image with a first process."""

SOURCE: Final = ROOT / "images/first_process.c"


def copy(programs: list[str], tree: Path) -> None:
    """Build some of vcuda's programs, and put them in their place in an image."""
    command = ["make", "-C", str(ROOT / "vcuda"), f"PYTHON={sys.executable}", *(f"build/{name}" for name in programs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(command)}: exit {done.returncode}\n{done.stdout[-1000:]}{done.stderr[-3000:]}")
    for name in programs:
        target = tree / FOLDER / name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / "vcuda/build" / name, target)
        target.chmod(0o755)


def copy_first_process(tree: Path) -> None:
    """Build the first process, and put it in its place in an image."""
    compile_first_process(tree / ENTRYPOINT, f"/{BEHIND}")


def compile_first_process(target: Path, program: str) -> None:
    """Build a first process that starts `program`: statically, since loading a library would delay it."""
    target.parent.mkdir(parents=True, exist_ok=True)
    flags = ["-std=gnu11", "-O2", "-Wall", "-Wextra", "-Werror", "-static", "-s", f'-DPROGRAM="{program}"']
    done = subprocess.run(["gcc", *flags, "-o", str(target), str(SOURCE)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{SOURCE}: gcc: exit {done.returncode}\n{done.stderr[-3000:]}")


def main() -> None:
    """Put the programs of one part below a folder, which is made if the part has none."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m images.programs PART FOLDER")
    tree = Path(sys.argv[2])
    (tree / FOLDER).mkdir(parents=True, exist_ok=True)
    recipe = RECIPES[sys.argv[1]]
    copy(recipe.get("programs", []), tree)
    if recipe.get("first_process"):
        copy_first_process(tree)


if __name__ == "__main__":
    main()
