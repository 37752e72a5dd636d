# SPDX-License-Identifier: Apache-2.0
"""Rates of GPU models, versioned: what a pod is charged per millisecond, and when that changes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fractions import Fraction

import msgspec

from slicekeeper.units import Instant
from timekeeper.core.accumulated_charge import Claim

ONE = Fraction(1)


def encode_shares(shares: Mapping[str, Fraction]) -> str:
    """Return a pod's GPUs by model as they are stored."""
    texts = {model: f"{share.numerator}/{share.denominator}" for model, share in sorted(shares.items())}
    return msgspec.json.encode(texts).decode()


class RateBook:
    """All rates that have ever been set."""

    def __init__(self, rows: Sequence[tuple[str, Instant, Fraction]]) -> None:
        self._by_model: dict[str, list[tuple[Instant, Fraction]]] = {}
        for model, since, rate in sorted(rows):
            self._by_model.setdefault(model, []).append((since, rate))
        self._shares: dict[str, dict[str, Fraction]] = {}
        self._newest: dict[str, Fraction] = {}
        """GPU-milliseconds per millisecond of some shares (as stored) since their models' rates last changed."""

    def rate(self, model: str, at: Instant) -> Fraction:
        """Return a model's rate at an instant; 1 if none was set."""
        return next((rate for since, rate in reversed(self._by_model.get(model, [])) if since <= at), ONE)

    def highest(self, model: str, since: Instant) -> Fraction:
        """Return the highest rate that a model has at an instant or later, as far as it is set today."""
        return max([self.rate(model, since), *(rate for at, rate in self._by_model.get(model, ()) if at > since)])

    def highest_of_all(self, since: Instant) -> Fraction:
        """Return the highest rate of any model at an instant or later; at least that of a model without one."""
        return max((self.highest(model, since) for model in self._by_model), default=ONE)

    def claim(self, key: str, start: Instant, end: Instant | None, shares: str) -> Claim:
        """Return a pod's claim, with the rates of its models from its start on."""
        mine = self._shares.get(shares)
        if mine is None:
            found = msgspec.json.decode(shares, type=dict[str, str])
            mine = self._shares[shares] = {model: Fraction(text) for model, text in found.items()}
        instants = {since for model in mine for since, _ in self._by_model.get(model, ()) if since > start}
        if not instants:
            rate = self._newest.get(shares)
            if rate is None:
                rate = self._newest[shares] = self._total(mine, start)
            return Claim(key, start, end, rate.numerator, rate.denominator)
        first, *later = [(at, self._total(mine, at)) for at in (start, *sorted(instants))]
        changes = []
        last = first[1]
        for at, rate in later:
            if rate != last and (end is None or at < end):
                changes.append((at, rate.numerator, rate.denominator))
                last = rate
        return Claim(key, start, end, first[1].numerator, first[1].denominator, tuple(changes))

    def _total(self, shares: Mapping[str, Fraction], at: Instant) -> Fraction:
        return sum((share * self.rate(model, at) for model, share in shares.items()), Fraction(0))
