# SPDX-License-Identifier: Apache-2.0
"""Read from a node's Lease how far the node's clock is from the API server's.

kubelet renews its node's Lease every 10 s with an instant of its own clock, and in the same write the API server
records its own time in `managedFields`. So the Lease compares the two clocks, however long ago the renewal was. The
difference is too small by the duration of the write, at most the 10 s after which kubelet gives up a renewal, and too
large by less than a second, because `managedFields` has whole seconds.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from slicekeeper.kube.client import Object
from slicekeeper.units import Instant, parse_instant
from slicekeeper.untyped_json import as_list, as_map

NAMESPACE: Final = "kube-node-lease"


class ClockReading(NamedTuple):
    """By how many milliseconds a node's clock was ahead of the API server's, and when, by the API server's clock."""

    at: Instant
    ahead_ms: int


def reading(lease: Object) -> ClockReading | None:
    """Return the reading at the last renewal of a node's Lease; None if the Lease has none."""
    for entry in as_list(as_map(lease.get("metadata")).get("managedFields")):
        fields = as_map(as_map(as_map(entry).get("fieldsV1")).get("f:spec"))
        if "f:renewTime" in fields:
            try:
                at = parse_instant(as_map(entry)["time"])
                return ClockReading(at, parse_instant(lease["spec"]["renewTime"]) - at)
            except (KeyError, TypeError, ValueError, OverflowError):
                return None
    return None
