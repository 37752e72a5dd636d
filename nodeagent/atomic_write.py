# SPDX-License-Identifier: Apache-2.0
"""Replace a file so that no reader ever sees a part of it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path


def replace_file(
    file: Path,
    data: bytes,
    *,
    durable: bool = False,
    mode: int = 0o600,
    before: Callable[[Path], object] = lambda _whole: None,
) -> None:
    """Write a file so that a reader sees the old one or the whole new one, also after a crash if `durable`.

    `before` is called with the whole new one before it can be found under its name.
    """
    fresh = file.with_name(f".{file.name}.new")
    try:
        with fresh.open("wb") as out:
            out.write(data)
            out.flush()
            fresh.chmod(mode)
            if durable:
                os.fsync(out.fileno())
        before(fresh)
        fresh.replace(file)
    except OSError:  # on a full disk, what was written so far would stay
        fresh.unlink(missing_ok=True)
        raise
