# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that tests start as processes."""

from __future__ import annotations

import random
import socket
from contextlib import closing

# Below those that the kernel gives to clients and to whoever asks for any port, and below NodePorts: from there, a port
# could go to another test's client before the server has it.
RANGE = range(20_000, 30_000)


def free_port() -> int:
    """Return a port of 127.0.0.1 on which no process listens.

    It is this process's until it ends: no other worker and no other run of the tests gets it, also while a test's
    server has not come up yet or is away.
    """
    chance = random.SystemRandom()  # not the generator that Hypothesis seeds alike in all processes
    while True:
        port = chance.choice(RANGE)
        with closing(socket.socket(socket.AF_UNIX)) as claim, socket.socket() as probe:
            try:
                claim.bind(f"\0slicekeeper-test-port-{port}")  # a name without a file: it goes with the process
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            claim.detach()
        return port
