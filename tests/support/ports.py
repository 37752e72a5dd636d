# SPDX-License-Identifier: Apache-2.0
"""Ports for servers that tests start as processes."""

from __future__ import annotations

import random
import socket

# Below those that the kernel gives to clients and to whoever asks for any port, and below NodePorts: from there, a port
# could go to another test's client before the server has it.
RANGE = range(20_000, 30_000)


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on."""
    chance = random.SystemRandom()  # not the generator that Hypothesis seeds alike in all processes
    while True:
        port = chance.choice(RANGE)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
        return port
