# SPDX-License-Identifier: Apache-2.0
"""What a simulated container does: it runs for a while, then exits with a code.

Both are read from an ordinary command, such as `sleep 600` or `sh -c "sleep 60; exit 1"`, so that the same manifest
does the same in a real cluster. An image with a program of its own runs by annotation or default.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from slicekeeper import names
from slicekeeper.kube.pod_manifest import annotations_of

DEFAULT_MS: Final = 600_000

_SLEEP = re.compile(r"\bsleep\s+(\d+(?:\.\d+)?)([smhd]?)\b")
_EXIT = re.compile(r"\bexit\s+(\d{1,3})\b")
_UNIT_MS: Final = {"": 1_000, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


@dataclass(frozen=True)
class Program:
    """One container's program; `run_ms` is None for one that runs until it is stopped."""

    run_ms: int | None
    exit_code: int = 0


def program_of(container: Mapping[str, Any], pod: Mapping[str, Any]) -> Program:
    """Return what a container of a pod will do."""
    text = " ".join(map(str, [*(container.get("command") or []), *(container.get("args") or [])]))
    code = _EXIT.search(text)
    sleeps = _SLEEP.findall(text)
    if sleeps:
        run_ms = sum(int(float(number) * _UNIT_MS[unit]) for number, unit in sleeps)
        return Program(run_ms, int(code[1]) if code else 0)
    seconds = annotations_of(pod).get(names.RUN_SECONDS, "")
    if re.fullmatch(r"\d{1,9}", seconds):
        return Program(int(seconds) * 1_000, int(code[1]) if code else 0)
    policy = container.get("restartPolicy") or pod["spec"].get("restartPolicy")
    forever = "sleep infinity" in text or policy == "Always"
    return Program(None if forever else DEFAULT_MS, int(code[1]) if code else 0)
