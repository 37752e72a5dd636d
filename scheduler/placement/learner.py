# SPDX-License-Identifier: Apache-2.0
"""All policies by name, and the one in force: a policy that looks ahead learns from the pods that arrive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from scheduler.placement.arrivals import Arrivals, Mix
from scheduler.placement.best_fit import BestFit
from scheduler.placement.expected_fill import ExpectedFill
from scheduler.placement.fgd import FragmentationGradient
from scheduler.placement.fleet_version import FleetVersion, GpuModel
from scheduler.placement.packing import Packing
from scheduler.placement.policy import Policy
from scheduler.placement.random_place import Random
from scheduler.placement.spread import Spread

ENOUGH: Final = 150
"""Until this many pods have arrived, best fit replaces a policy that looks ahead. With 300, 0.2 less is given out of
clusters of 300 to 1,200 GPUs."""

LEARNING: Final[dict[str, Callable[[Mix, FleetVersion], Policy]]] = {
    "expected-fill": ExpectedFill,
    "fgd": FragmentationGradient,
}

FIXED: Final[dict[str, Callable[[], Policy]]] = {
    "best-fit": BestFit,
    "packing": Packing,
    "spread": Spread,
    "random": Random,
}


class Learner:
    """The policy in force. One that looks ahead is made again when enough has arrived since, or another model is there.

    Making it takes long and needs no lock: `due` says whether it is time, and copies the mix.
    """

    GROWTH: Final = 1.25
    MOST: Final = 2_000
    """It is made again when this many times as many pods have arrived, or this many more; in a small fleet, half as
    many as it has GPUs, because what places cost depends on how many there are left."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._make = LEARNING.get(name)
        self._models = 0
        self._next = ENOUGH
        self._most = self.MOST
        self.arrivals = Arrivals()
        self.policy: Policy = FIXED[name]() if name in FIXED else BestFit()

    @property
    def name(self) -> str:
        """The name of the policy in force."""
        return "best-fit" if self._make is not None and isinstance(self.policy, BestFit) else self._name

    def due(self, models: Sequence[GpuModel]) -> Mix | None:
        """Return the mix to learn from if it is time, None if it is not."""
        seen = self.arrivals.seen
        is_due = seen >= self._next or (seen >= ENOUGH and len(models) != self._models)
        if self._make is None or not models or not is_due:
            return None
        self._next = min(int(seen * self.GROWTH), seen + self._most) + 1
        return self.arrivals.mix()

    def learn(self, mix: Mix, fleet: FleetVersion) -> None:
        """Make the policy for this mix, and the models and the room of this fleet."""
        if self._make is not None:
            self.policy = self._make(mix, fleet)
            self._models = len(fleet.models)
            self._most = min(max(fleet.totals()[0] // 2, ENOUGH), self.MOST)
