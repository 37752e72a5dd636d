# SPDX-License-Identifier: Apache-2.0
"""Rank the nodes that fit, and express the ranks as scores for kube-scheduler."""

from __future__ import annotations

from typing import Final

import numpy as np

from scheduler.placement.assignment import NOWHERE
from scheduler.placement.fleet_version import Bools, Ints

MAX_SCORE: Final = 10
"""kube-scheduler's highest score of an extender."""


def best_of(fits: Bools, price: Ints, rank: Ints) -> int | None:
    """Return the index of the cheapest that fits, of the lowest rank among equals."""
    fitting = np.flatnonzero(fits)
    if not len(fitting):
        return None
    prices = price[fitting]
    equal = fitting[prices == prices.min()]
    return int(equal[rank[equal].argmin()])


def scores(fits: Bools, price: Ints, best: int | None) -> Ints:
    """Return each node's score, 0 to 10: 10 for `best` alone, 9 to 0 for the others that fit, by their price.

    kube-scheduler chooses at random among equals, so one node alone has the most. Places on MIG slices are priced far
    behind all others, so they do not count when these are graded.
    """
    if best is None:
        return np.zeros(len(fits), np.int64)
    prices = price[fits]
    compared = prices[prices < NOWHERE] if (prices < NOWHERE).any() else prices
    least, span = int(compared.min()), int(compared.max() - compared.min())
    second = MAX_SCORE - 1
    graded = np.where(fits, np.maximum(second - (price - least) * second // max(span, 1), 0), 0)
    graded[best] = MAX_SCORE
    return graded
