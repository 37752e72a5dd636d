# SPDX-License-Identifier: Apache-2.0
"""Copy programs from the agent's image to where they can be mounted into the node's containers.

Each is in a folder named after its content: a newer release adds its own and removes none from a running container.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any, Final

from nodeagent.atomic_write import replace_file
from slicekeeper.names import LIBRARY_PATH

PRELOAD: Final = "/etc/ld.so.preload"


def ship(data: bytes, name: str, folder: Path) -> Path:
    """Return the file of this name and content below a folder of the node, which is written if it is missing."""
    file = folder / hashlib.sha256(data).hexdigest()[:16] / name
    if not file.exists():
        for made in (folder, file.parent):
            made.mkdir(mode=0o755, parents=True, exist_ok=True)
        replace_file(file, data, durable=True, mode=0o755)
    return file


def mount(source: Path, target: str, *options: str) -> dict[str, Any]:
    """Return the CDI mount of a file, read-only unless the options say otherwise."""
    return {
        "hostPath": str(source),
        "containerPath": target,
        "options": [*(options or ("ro",)), "nosuid", "nodev", "bind"],
    }


def limiter(programs: Path, folder: Path) -> list[dict[str, Any]]:
    """Return the mounts by which every dynamic program of a container loads the limiter; none if it is not there."""
    if not (programs / "libvcuda.so").exists():
        return []
    library = ship((programs / "libvcuda.so").read_bytes(), "libvcuda.so", folder)
    preload = ship(f"{LIBRARY_PATH}\n".encode(), "ld.so.preload", folder)
    return [mount(library, LIBRARY_PATH), mount(preload, PRELOAD)]
