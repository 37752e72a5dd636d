# SPDX-License-Identifier: Apache-2.0
"""Stand in for the programs with PyTorch in dry runs: the same lines in and out, and sleep in place of work.

stand_in.py callbacks|events|model
"""

from __future__ import annotations

import json
import sys
import time


def main() -> None:
    """Sleep when told to."""
    print("ready", flush=True)
    for line in sys.stdin:
        words = line.split()
        time.sleep(float(words[0]))
        answer: dict[str, float | str] = {"rate": 100.0, "p50": 10.0, "p99": 12.0}
        if sys.argv[1] == "model":
            answer["rate"] *= int(words[1])
            answer["tokens"] = f"those of {words[1]}"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
