# SPDX-License-Identifier: Apache-2.0
"""Servers that keep a ledger are tested on SQLite and on PostgreSQL; whatever fails is shown with the parts' logs."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path

import pytest
from support.databases import _kept_url, database_url, databases, server

__all__ = ["_kept_url", "database_url", "databases", "server"]

LINES = 60
"""So many of each log's last lines are shown."""

FOLDER = pytest.StashKey[Path]()


@pytest.fixture(autouse=True)
def _folder(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    request.node.stash[FOLDER] = tmp_path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Add the logs that the test's processes have written so far."""
    report = yield
    folder = item.stash.get(FOLDER, None)
    if report.failed and folder is not None:
        for file in sorted(folder.rglob("*")):
            if (file.name == "log" or file.suffix in (".log", ".out")) and file.is_file():
                lines = file.read_text("utf-8", "replace").splitlines()[-LINES:]
                report.sections.append((f"{file.relative_to(folder)}", "\n".join(lines)))
    return report
