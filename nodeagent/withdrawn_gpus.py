# SPDX-License-Identifier: Apache-2.0
"""GPUs that were withdrawn because of an Xid, or by an operator: a file for each, named by its UUID, with the reason.

Such a GPU stays withdrawn until an operator removes its file, or the machine reboots, which empties the folder.
"""

from __future__ import annotations

import logging
from contextlib import suppress
from pathlib import Path

from nodeagent.atomic_write import replace_file

log = logging.getLogger(__name__)


class WithdrawnGpus:
    """The folder of withdrawn GPUs."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._unsaved: dict[str, str] = {}
        """Reasons by UUID that could not be written: they hold until the agent ends."""
        folder.mkdir(parents=True, exist_ok=True)

    def add(self, uuid: str, why: str) -> None:
        """Withdraw a GPU."""
        try:
            replace_file(self._folder / uuid, f"{why}\n".encode(), mode=0o644)
        except OSError as error:
            log.error("the next agent will not know that GPU %s is withdrawn (%s): %s", uuid, why, error)
            self._unsaved[uuid] = why

    def why(self, uuid: str) -> str:
        """Return why a GPU or a MIG slice is withdrawn; empty if it is not."""
        with suppress(OSError):
            return (self._folder / uuid).read_text().strip() or "an operator withdrew it"
        return self._unsaved.get(uuid, "")
