# SPDX-License-Identifier: Apache-2.0
"""Keep the node's agent running: start it again at once when it is killed.

kubelet waits before it starts a container again: 10 s from its second end on, then up to 5 minutes. All that time
neither a spent budget nor a grant would reach the slices of the node, and no pod would start there.
"""

from __future__ import annotations

import logging
import subprocess
import threading
import time
from collections.abc import Sequence

from nodeagent.arbiter_keeper import (
    FIRST_PAUSE_SECONDS,
    LONGEST_PAUSE_SECONDS,
    LOOK_SECONDS,
    SETTLED_SECONDS,
)

log = logging.getLogger(__name__)


def keep_agent(command: Sequence[str], stop: threading.Event) -> int:
    """Run the agent until it ends by itself, as it does with a reason, or until `stop`; return its exit status."""
    pause = FIRST_PAUSE_SECONDS
    while True:
        began = time.monotonic()
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL)  # noqa: S603 - our own program
        while process.poll() is None and not stop.wait(LOOK_SECONDS):
            pass
        if stop.is_set():
            process.terminate()
            return process.wait()  # it lets kubelet admit the pods that were bound before
        if process.returncode >= 0:
            return process.returncode
        if time.monotonic() - began > SETTLED_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        log.error("the agent was killed by signal %d; the next one starts in %.2f s", -process.returncode, pause)
        stop.wait(pause)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)
