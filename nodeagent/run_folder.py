# SPDX-License-Identifier: Apache-2.0
"""Notice that the node's folder of seats was removed.

In a pod the folder is a mount, so nothing can be created there any more. Only a new container gets the new folder
mounted, so agent and arbiter end.
"""

from __future__ import annotations

from pathlib import Path

from slicekeeper.errors import SlicekeeperError


class RunFolderRemoved(SlicekeeperError):
    """The node's seats can no longer be reached from this process."""


def check_run_folder(folder: Path) -> None:
    """Raise RunFolderRemoved if the folder was removed."""
    try:
        there = folder.stat().st_nlink > 0
    except FileNotFoundError:
        there = False
    if not there:
        raise RunFolderRemoved(f"{folder} was removed; kubelet starts this container again, with a new one")
