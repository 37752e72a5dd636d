# SPDX-License-Identifier: Apache-2.0
"""Run the tests: all.py [PART OF A NAME]. Ends with one line that counts them."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import check

if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("test_*.py")):
        importlib.import_module(path.stem)
    check.report(check.main(sys.argv[1] if len(sys.argv) > 1 else ""))
