# SPDX-License-Identifier: Apache-2.0
"""Nodes whose clocks differ from the API server's, for `slicekeeper check`.

kubelet renews its node's Lease with an instant of its own clock, and the API server notes in the same write when that
was, in `managedFields`. So the two clocks are compared whoever asks, whenever, and however long ago the renewal was.
The difference is too small by what the write took, at most the 10 s after which kubelet gives a renewal up, and too
large by less than the second that `managedFields` leaves out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from slicekeeper.cli.check.remedies import Remedy
from slicekeeper.kube.client import Object
from slicekeeper.units import parse_instant
from slicekeeper.untyped import as_list, as_map

NAMESPACE: Final = "kube-node-lease"
MOST_SECONDS: Final = 10
"""More than a slow write can cause."""


def wrong(leases: Iterable[Object]) -> Iterator[tuple[str, Remedy | str]]:
    """Yield the nodes whose clock differs from the API server's."""
    for lease in leases:
        ahead_ms = _ahead_ms(lease)
        if ahead_ms is not None and abs(ahead_ms) > MOST_SECONDS * 1000:
            name, which = lease["metadata"]["name"], "ahead of" if ahead_ms > 0 else "behind"
            yield (
                f"node {name}: its clock is {abs(ahead_ms) / 1000:.0f} s {which} the API server's, so what its pods "
                "are charged is wrong by as much",
                "on the node: chronyc makestep, or systemctl restart systemd-timesyncd; `timedatectl` shows "
                "whether it is synchronized",
            )


def _ahead_ms(lease: Object) -> int | None:
    """Return by how many milliseconds the node's clock was ahead at its last renewal; None if unknown."""
    for entry in as_list(as_map(lease.get("metadata")).get("managedFields")):
        fields = as_map(as_map(as_map(entry).get("fieldsV1")).get("f:spec"))
        if "f:renewTime" in fields:
            try:
                return parse_instant(lease["spec"]["renewTime"]) - parse_instant(as_map(entry)["time"])
            except (KeyError, TypeError, ValueError):
                return None
    return None
