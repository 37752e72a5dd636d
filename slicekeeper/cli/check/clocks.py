# SPDX-License-Identifier: Apache-2.0
"""Nodes whose clocks differ from the API server's, for `slicekeeper check`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from slicekeeper.cli.check.remedies import Finding
from slicekeeper.clock import NODE_CLOCK_MS
from slicekeeper.kube.client import Object
from slicekeeper.kube.node_lease import reading


def wrong(leases: Iterable[Object]) -> Iterator[Finding]:
    """Yield the nodes whose clock differs from the API server's."""
    for lease in leases:
        found = reading(lease)
        if found is not None and abs(found.ahead_ms) > NODE_CLOCK_MS:
            name, which = lease["metadata"]["name"], "ahead of" if found.ahead_ms > 0 else "behind"
            yield (
                f"node {name}: its clock is {abs(found.ahead_ms) / 1000:.0f} s {which} the API server's; the charges "
                "of its pods are corrected by that, with the flag clock-skew",
                "on the node: chronyc makestep, or systemctl restart systemd-timesyncd; `timedatectl` shows "
                "whether it is synchronized",
            )
