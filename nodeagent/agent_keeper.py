# SPDX-License-Identifier: Apache-2.0
"""Keep the node's agent running: start it again at once when it is killed.

kubelet waits before it restarts a container: 10 s from its second end on, then up to 5 minutes. All that time neither a
spent budget nor a grant would reach the slices of the node, and no pod would start there. Even the first restart is too
late: a kubelet that starts too looks at its pods a second later, and fails those whose seats are not there. So each
agent is a fork of a process that has imported all of it.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from typing import Final

from nodeagent.arbiter_keeper import LONGEST_PAUSE_SECONDS, SETTLED_SECONDS

log = logging.getLogger(__name__)

FIRST_PAUSE_SECONDS: Final = 0.01
_STOP: Final = (signal.SIGTERM, signal.SIGINT)


def keep_agent() -> None:
    """Return in a new process, and in another one whenever that was killed. Call it before there are threads.

    The caller's process ends with the agent's status when the agent ends by itself, which it does only for a reason, or
    because of SIGTERM or SIGINT, which are passed on.
    """
    before = signal.pthread_sigmask(signal.SIG_BLOCK, (*_STOP, signal.SIGCHLD))
    pause = FIRST_PAUSE_SECONDS
    while True:
        began = time.monotonic()
        agent = os.fork()
        if agent == 0:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
            return
        stopped, status = _wait(agent)
        if status >= 0 or stopped:
            sys.exit(abs(status))
        if time.monotonic() - began > SETTLED_SECONDS:
            pause = FIRST_PAUSE_SECONDS
        log.error("the agent was killed by signal %d; the next one starts in %.2f s", -status, pause)
        if signal.sigtimedwait(_STOP, pause) is not None:
            sys.exit(0)
        pause = min(2 * pause, LONGEST_PAUSE_SECONDS)


def _wait(agent: int) -> tuple[bool, int]:
    """Wait for the agent's end; return whether it was asked to end, and its status, below 0 if a signal ended it."""
    stopped = False
    while True:
        number = signal.sigwait((*_STOP, signal.SIGCHLD))
        if number != signal.SIGCHLD:
            stopped = True
            os.kill(agent, number)
        while (ended := os.waitpid(-1, os.WNOHANG))[0] > 0:  # the first process of a container inherits others' too
            if ended[0] == agent:
                return stopped, os.waitstatus_to_exitcode(ended[1])
