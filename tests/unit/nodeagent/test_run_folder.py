# SPDX-License-Identifier: Apache-2.0
"""That the node's folder of seats was removed is noticed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from nodeagent.run_folder import RunFolderRemoved, check_run_folder


def test_a_removed_folder_is_noticed_through_its_mount_too(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    open_folder = os.open(folder, os.O_PATH)
    mounted = Path(f"/proc/self/fd/{open_folder}")  # goes on to lead to the folder, as a mount does
    check_run_folder(mounted)
    folder.rmdir()
    folder.mkdir()
    with pytest.raises(RunFolderRemoved):
        check_run_folder(mounted)
    os.close(open_folder)
