# SPDX-License-Identifier: Apache-2.0
"""Where local mode keeps its state, and whether it runs there.

Local mode holds a lock on its home while it runs, which ends with it even if it is killed. What it leaves behind names
servers that are gone, so no command may use that.
"""

from __future__ import annotations

import fcntl
import os
from pathlib import Path
from typing import Final

LOCK: Final = "lock"
SETTINGS: Final = "config.yaml"


def home() -> Path:
    """Return the folder in which local mode keeps its state: `$SLICEKEEPER_HOME`, or `.slicekeeper` here."""
    return Path(os.environ.get("SLICEKEEPER_HOME") or ".slicekeeper")


def is_elsewhere() -> bool:
    """Whether a variable of this shell says where the home is; another shell need not have it."""
    return bool(os.environ.get("SLICEKEEPER_HOME"))


def settings_file() -> Path | None:
    """Return the settings of the local mode that runs in the home; None if none runs, or if we may not look."""
    if not _is_locked(home() / LOCK):
        return None
    file = home().absolute() / SETTINGS
    return file if os.access(file, os.F_OK) else None


def _is_locked(file: Path) -> bool:
    try:
        with file.open("rb") as lock:
            # Held for an instant only: `LocalCluster` tries for longer to take it.
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False
