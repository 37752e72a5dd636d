# SPDX-License-Identifier: Apache-2.0
"""Names that a reader meets in more than one file."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[3]
PARTS = (
    "slicekeeper",
    "webhook",
    "timekeeper",
    "sidecar",
    "scheduler",
    "nodeagent",
    "certificates",
    "objects",
    "simulator",
    "images",
)


def test_no_two_types_share_a_name() -> None:
    found = defaultdict(list)
    for part in PARTS:
        for file in sorted((ROOT / part).rglob("*.py")):
            for node in ast.parse(file.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef):
                    found[node.name].append(str(file.relative_to(ROOT)))
    assert len(found) > 300
    assert {name: files for name, files in found.items() if len(files) > 1} == {}
