# SPDX-License-Identifier: Apache-2.0
"""The pure core: on which nodes a demand fits, on which GPUs, what that costs, and why it does not elsewhere.

Rules about company are KubeShare's, in its order: affinity (a GPU that holds the label; where none does, an idle
one), anti-affinity (no GPU that holds the label), exclusion (labels equal, none counts as a label). They are about
shares: a whole GPU is idle when it is given and nobody joins it afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

import numpy as np

from scheduler.demand import Demand, Slice
from scheduler.fleet import Bools, Ints, View
from scheduler.packing import Bin, Budget, pack
from scheduler.policy import Gpus, Policy

NOWHERE: Final = 1 << 50
"""The price of a GPU on which a slice does not fit."""

SEARCH_STEPS: Final = 100_000
"""Steps of exact search for one demand on all nodes together: some 0.2 s at the very most."""


class Why(IntEnum):
    """Why a node does not do. From `UUID` on, no pod's leaving would change it."""

    FITS = 0
    FULL = 1
    COMPANY = 2
    UUID = 3
    MODEL = 4
    HEALTH = 5
    TOO_SMALL = 6
    NO_GPUS = 7
    DAMAGED = 8

    @property
    def unresolvable(self) -> bool:
        """Whether evicting pods from the node could not help."""
        return self >= Why.UUID


@dataclass(frozen=True)
class Survey:
    """The answer for each node of a view: `gpus` has one column for each slice of the demand."""

    fits: Bools
    price: Ints
    gpus: Ints
    why: Ints


def survey(view: View, demand: Demand, policy: Policy, *, reasons: bool = True) -> Survey:
    """Judge every node of `view`; without `reasons`, what does not fit is merely FULL."""
    right = (view.capacity > 0) & view.named & view.model
    able = right & view.healthy
    now = Gpus(view.capacity, view.core, view.memory, view.idle)
    fits, price, gpus = _assign(now, demand.slices, able & _company(view, demand), able & view.idle, policy)
    why = np.where(fits, int(Why.FITS), int(Why.FULL))
    if reasons and not fits.all():
        failed = np.flatnonzero(~fits)
        why[failed] = _reasons(_only(view, failed), demand, policy)
    return Survey(fits, price, gpus, why)


def _company(view: View, demand: Demand) -> Bools:
    """Return where the rules about company let a share go."""
    allowed = ~view.foe & view.admits
    if demand.affinity:
        allowed &= view.friend if view.has_friends else view.idle
    if demand.alone:
        allowed &= view.idle
    return allowed


def _assign(
    gpus: Gpus, slices: Sequence[Slice], shares: Bools, wholes: Bools, policy: Policy
) -> tuple[Bools, Ints, Ints]:
    """Place `slices` on each node: by the policy, one after the other, and where that fails by search."""
    count = len(gpus.core)
    every = np.arange(count)
    now = Gpus(gpus.capacity, gpus.core.copy(), gpus.memory.copy(), gpus.idle.copy())
    vacant = wholes.copy()
    fits = np.ones(count, np.bool_)
    price = np.zeros(count, np.int64)
    chosen = np.full((count, len(slices)), -1, np.int64)
    for index, piece in enumerate(slices):
        if not fits.any():
            break
        if piece.whole:
            possible = vacant & (now.capacity >= piece.memory_mib)
        else:
            possible = shares & (now.core >= piece.core) & (now.memory >= piece.memory_mib)
        prices = np.where(possible, policy.prices(now, piece), NOWHERE)
        best = prices.argmin(axis=1)
        least = prices[every, best]
        fits &= least < NOWHERE
        price += np.where(fits, least, 0)
        chosen[:, index] = np.where(fits, best, -1)
        if index + 1 < len(slices):
            taken, at = every[fits], best[fits]
            now.core[taken, at] -= piece.core
            now.memory[taken, at] -= now.memory[taken, at] if piece.whole else piece.memory_mib
            now.idle[taken, at] = False
            vacant[taken, at] = False
    if len(set(slices)) > 1:  # with equal slices, the order of placing cannot fail
        _search(gpus, slices, shares, wholes, fits, price, chosen)
    return fits, price, chosen


def _search(
    gpus: Gpus, slices: Sequence[Slice], shares: Bools, wholes: Bools, fits: Bools, price: Ints, chosen: Ints
) -> None:
    """Try exactly where the policy's order of placing found nothing; equal nodes are searched once."""
    known: dict[bytes, list[int] | None] = {}
    budget = Budget(SEARCH_STEPS)
    core = sum(piece.core for piece in slices)
    enough = np.where(shares | wholes, gpus.core, 0).sum(axis=1) >= core
    for row in np.flatnonzero(~fits & enough):
        parts = (gpus.core[row], gpus.memory[row], gpus.capacity[row], shares[row], wholes[row])
        key = b"".join(part.tobytes() for part in parts)
        if key not in known:
            bins = [Bin(*values) for values in zip(*(part.tolist() for part in parts), strict=True)]
            known[key] = pack(bins, slices, budget)
        found = known[key]
        if found is not None:
            fits[row] = True
            # Such a node is tight: it is priced behind all that the policy priced, and ahead of none.
            price[row] = NOWHERE - 1
            chosen[row] = found
        else:
            chosen[row] = -1


def _reasons(view: View, demand: Demand, policy: Policy) -> Ints:
    """Return why the nodes of `view` do not do, the reason that nothing can change first."""
    there = view.capacity > 0
    named = there & view.named
    right = named & view.model
    able = right & view.healthy
    empty = Gpus(view.capacity, np.where(able, 100, 0), np.where(able, view.capacity, 0), able)
    possible, _, _ = _assign(empty, demand.slices, able, able, policy)
    now = Gpus(view.capacity, view.core, view.memory, view.idle)
    free, _, _ = _assign(now, demand.slices, able, able & view.idle, policy)
    checks = (
        (~there.any(axis=1), Why.NO_GPUS),
        (~named.any(axis=1), Why.UUID),
        (~right.any(axis=1), Why.MODEL),
        (~able.any(axis=1), Why.HEALTH),
        (~possible, Why.TOO_SMALL),
        (free, Why.COMPANY),
    )
    return np.select([check for check, _ in checks], [int(why) for _, why in checks], int(Why.FULL))


def _only(view: View, rows: Ints) -> View:
    return View(
        view.capacity[rows], view.core[rows], view.memory[rows], view.healthy[rows], view.idle[rows],
        view.model[rows], view.named[rows], view.friend[rows], view.foe[rows], view.admits[rows],
        view.has_friends,
    )  # fmt: skip


def explain(why: int, demand: Demand) -> str:
    """Return a reason in words that a user understands; alike for all nodes, because kube-scheduler counts equals."""
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
    return {
        Why.FULL: f"too little is free for {demand.asks} (what is held for other pods counts as taken)",
        Why.COMPANY: f"free GPUs, but not with the company allowed ({', '.join(company) or 'they exclude other pods'})",
        Why.UUID: f"GPU {demand.gpu_uuid} is not on this node",
        Why.MODEL: f"no GPU of model {' or '.join(demand.models)}",
        Why.HEALTH: "no healthy GPU",
        Why.TOO_SMALL: f"its GPUs could not hold {demand.asks} even if they were idle",
        Why.NO_GPUS: "the node has no GPUs that Slicekeeper manages",
        Why.DAMAGED: "the node's list of GPUs cannot be read (annotation slicekeeper.io/gpus)",
    }.get(Why(why), "fits")
