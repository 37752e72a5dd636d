#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Real containers on a real NVIDIA GPU, by runc with the CDI edits of our seats: shares, caps, a budget's flip.

    containers.py [--seconds N] [--out FOLDER]          on this machine's first GPU; as root; two minutes
    containers.py [--seconds N] [--out FOLDER] --fake   the same on the fake GPU, in real time

It needs no network and no container engine: container_root.py makes what it carries along, and without that it takes
the machine's own runc and Python. The steps are agent_checks.py's, with containers in place of programs.
"""

from __future__ import annotations

import json
import sys
from typing import Final

from agent_checks import (
    FIGURES,
    agent_is_ready,
    inventory_published,
    live_policy,
    memory_caps,
    programs_started,
    run,
    seats_given,
    shares_as_asked,
)
from container_node import ContainerNode
from container_root import python
from gpu_node import ASKED, Node
from verdicts import need

from slicekeeper import names

_SEEN: Final = (
    "import json, os; print(json.dumps({'devices': sorted(os.listdir('/dev')), 'preload': "
    "open('/etc/ld.so.preload').read().split(), 'maps': 'libvcuda' in open('/proc/1/maps').read(), "
    "'environ': dict(os.environ)}))"
)


def containers_have_their_seat_alone(node: Node) -> str:
    assert isinstance(node, ContainerNode)
    node.pair()
    said = []
    for name in ASKED:
        seen = json.loads(node.inside(name, python(), "-c", _SEEN))
        need(seen["preload"] == [names.LIBRARY_PATH], f"/etc/ld.so.preload has {seen['preload']}")
        need(seen["maps"], "the limiter is not in the program")
        gpus = [device for device in seen["devices"] if device.startswith("nvidia") and device[6:].isdigit()]
        need(node.fake or len(gpus) == 1, f"device files of {len(gpus)} GPUs: {gpus}")
        said.append(f"{name} has {', '.join(gpus) or 'no device files'}")
    FIGURES["GPUs' device files in each container"] = "; ".join(said)
    return "; ".join(said)


STEPS: Final = (
    (agent_is_ready, 30.0),
    (inventory_published, 20.0),
    (seats_given, 20.0),
    (programs_started, 50.0),
    (containers_have_their_seat_alone, 20.0),
    (shares_as_asked, 40.0),
    (memory_caps, 25.0),
    (live_policy, 25.0),
)


if __name__ == "__main__":
    sys.exit(run(__doc__, STEPS, ContainerNode, "containers"))
