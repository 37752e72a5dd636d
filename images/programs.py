# SPDX-License-Identifier: Apache-2.0
"""Build the C programs that a part's image carries; for the Containerfile `python -m images.programs PART FOLDER`.

They are in one folder, because the arbiter looks for the others beside itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from images.recipes import RECIPES, ROOT

FOLDER: Final = "usr/local/slicekeeper/lib"


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


def main() -> None:
    """Put the programs of one part below a folder, which is made if the part has none."""
    if len(sys.argv) != 3:
        raise SystemExit("usage: python -m images.programs PART FOLDER")
    tree = Path(sys.argv[2])
    (tree / FOLDER).mkdir(parents=True, exist_ok=True)
    copy(RECIPES[sys.argv[1]].get("programs", []), tree)


if __name__ == "__main__":
    main()
