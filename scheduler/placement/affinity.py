# SPDX-License-Identifier: Apache-2.0
"""Decide which pods may share a GPU: affinity, anti-affinity, exclusion and exclusive sharing.

The rules are KubeShare's, in its order: affinity (a GPU that holds the label; if none does, an idle one),
anti-affinity (no GPU that holds the label), exclusion (labels equal, none counts as a label). They concern shares: a
whole GPU is idle when it is allocated, and no other pod joins it afterwards.
"""

from __future__ import annotations

from scheduler.placement.demand import Demand
from scheduler.placement.fleet_version import Bools, View


def admitting(view: View, demand: Demand) -> Bools:
    """Return the GPUs, nodes × GPUs, on which the demand's labels and those of the pods there allow a share."""
    allowed = ~view.foe & view.admits
    if demand.affinity:
        allowed &= view.friend if view.has_friends else view.idle
    if demand.alone:
        allowed &= view.idle
    return allowed


def company_of(demand: Demand) -> str:
    """Return a demand's affinity and sharing rules, for a message."""
    company = [
        f"{name} {label.partition('/')[2]}"
        for name, label in (
            ("affinity", demand.affinity),
            ("anti-affinity", demand.anti_affinity),
            ("exclusion", demand.exclusion),
        )
        if label
    ]
    if demand.alone:
        company.append("sharing exclusive")
    return ", ".join(company) or "they exclude other pods"
