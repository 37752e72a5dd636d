# SPDX-License-Identifier: Apache-2.0
"""The writer's side of all GPUs of all nodes: rows are set one by one, then published as an immutable version.

No lock and no I/O: only one thread writes at a time, and readers use a `FleetVersion`. A block of rows is copied when
it is first written to after it was published, so publishing costs no more than a tuple of references.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from scheduler.placement.demand import Demand
from scheduler.placement.fleet_version import BLOCK, PER_GPU, Block, FleetVersion, GpuModel, Mark, View, records
from scheduler.placement.mig import MigRow, Sliced, sliced
from slicekeeper.units import CORES_PER_GPU

MIXED = "\0mixed"
"""The exclusion label of a GPU whose pods have different ones: no other pod may join them."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """The current state of one GPU: its kind, what is free, which pods are on it."""

    uuid: str
    model: str
    capacity: int
    core: int = CORES_PER_GPU
    memory: int = -1
    healthy: bool = True
    idle: bool = True
    affinity: frozenset[str] = frozenset()
    anti_affinity: frozenset[str] = frozenset()
    exclusion: str = ""
    mig: tuple[MigRow, ...] = ()


class Fleet:
    """The arrays, and which row is which node's."""

    def __init__(self, begin: FleetVersion | None = None) -> None:
        """Begin empty, or with a published version, which does not change."""
        self._published = begin or FleetVersion((), {}, [], (), {}, columns=1, version=0, renamed=0)
        begin = self._published
        self._blocks = list(begin.blocks)
        self._own: set[int] = set()
        """Blocks that are not part of a version yet."""
        self._row: dict[str, int] = {}
        self._names: list[str] = []
        self._free: list[int] = []
        self._own_names = False
        """Whether these three are this fleet's own copies; if not, the published ones are valid."""
        self._models = {model: code for code, model in enumerate(begin.models)}
        self._friends = dict(begin.friends)
        self._out_of_sight = dict(begin.out_of_sight)
        self._befriended = False
        """Whether the friends have changed since they were published."""
        self._sliced = begin.sliced
        self._columns = begin.columns
        self.version = begin.version
        """Increases with every change."""
        self._renamed = begin.renamed

    def __contains__(self, name: str) -> bool:
        return name in self._rows

    @property
    def _rows(self) -> Mapping[str, int]:
        return self._row if self._own_names else self._published.row_of

    def row(self, name: str) -> int:
        """Return a node's row, −1 if the node is unknown."""
        return self._rows.get(name, -1)

    def version_of(self, row: int) -> int:
        """Return the version with which a row changed last."""
        return int(self._blocks[row // BLOCK].numbers["changed"][row % BLOCK])

    def publish(self) -> FleetVersion:
        """Return the current state."""
        last = self._published
        if last.version == self.version and last.renamed == self._renamed:
            return last
        renamed = last.renamed != self._renamed
        self._published = FleetVersion(
            tuple(self._blocks),
            self._row if renamed else last.row_of,
            self._names if renamed else last.names,
            tuple(self._models) if len(last.models) != len(self._models) else last.models,
            dict(self._friends) if self._befriended else last.friends,
            self._columns,
            self.version,
            self._renamed,
            self._sliced,
            dict(self._out_of_sight) if self._befriended else last.out_of_sight,
        )
        self._own.clear()
        self._own_names = False
        self._befriended = False
        return self._published

    def view(self, names: Sequence[str], demand: Demand, *, has_friends: bool = False) -> View:
        """Return the named nodes as `demand` sees them; see `FleetVersion.view`."""
        return self.publish().view(names, demand, has_friends=has_friends)

    def set(self, name: str, gpus: Sequence[GpuRow]) -> None:
        """Replace a node's GPUs."""
        row = self.row(name)
        if row < 0:
            row = self._new_row(name)
        if len(gpus) > self._columns:
            self._widen(len(gpus))
        block, at = self._touch(row)
        block.uuids[at] = tuple(gpu.uuid for gpu in gpus)
        self._divide(block, at, sliced(len(gpus), [row for gpu in gpus for row in gpu.mig]))
        marks: list[Mark] = []
        none = [0] * (self._columns - len(gpus))
        block.numbers[at] = (
            self.version,
            [*(gpu.capacity for gpu in gpus), *none],
            [*(max(gpu.core, 0) for gpu in gpus), *none],
            [*(max(gpu.capacity if gpu.memory < 0 else gpu.memory, 0) for gpu in gpus), *none],
            [*(self._code(gpu) for gpu in gpus), *none],
            block.numbers["cpu_memory"][at],
            [*(gpu.healthy for gpu in gpus), *none],
            [*(gpu.idle for gpu in gpus), *none],
            [*(bool(gpu.exclusion) for gpu in gpus), *none],
        )
        for column, gpu in enumerate(gpus):
            marks += [Mark("affinity", label, column) for label in gpu.affinity]
            marks += [Mark("anti-affinity", label, column) for label in gpu.anti_affinity]
            if gpu.exclusion:
                marks.append(Mark("exclusion", gpu.exclusion, column))
        self._mark(block, at, tuple(marks))

    def set_cpu_memory(self, name: str, cpu: float, ram: float) -> None:
        """Set a known node's free cores and MiB."""
        row = self._rows[name]
        if self._blocks[row // BLOCK].numbers["cpu_memory"][row % BLOCK].tolist() != [cpu, ram]:
            block, at = self._touch(row)
            block.numbers["cpu_memory"][at] = cpu, ram

    def remove(self, name: str) -> None:
        """Forget a node."""
        row = self.row(name)
        if row >= 0:
            self._take_names()
            del self._row[name]
            block, at = self._touch(row)
            self._mark(block, at, ())
            self._divide(block, at, None)
            block.uuids[at] = ()
            block.numbers[at] = _empty(self._columns)[0]
            block.numbers["changed"][at] = self.version
            self._free.append(row)
            self._names[row] = ""
            self._renamed += 1

    def set_out_of_sight(self, name: str, labels: tuple[str, ...]) -> None:
        """Set the affinity labels of pods on GPUs that a node is not known to have: it may have them again."""
        before = self._out_of_sight.pop(name, ())
        if labels:
            self._out_of_sight[name] = labels
        if before != labels:
            self.version += 1
            for change, some in ((-1, before), (1, labels)):
                for label in some:
                    self._befriend(label, change)

    def idle(self) -> Fleet:
        """Return a copy in which nothing is held."""
        other = Fleet(self.publish())
        for name in self._out_of_sight:
            other.set_out_of_sight(name, ())
        for row in other._rows.values():
            block, at = other._touch(row)
            numbers = block.numbers[at]
            gpus = numbers["capacity"] > 0
            numbers["core"][gpus] = CORES_PER_GPU
            numbers["memory"][gpus] = numbers["capacity"][gpus]
            numbers["idle"][gpus] = True
            numbers["labelled"][:] = False
            other._mark(block, at, ())
            there = block.sliced[at]
            if there is not None:
                rows = [replace(one, free=one.mig.healthy) for one in there.rows]
                other._divide(block, at, sliced(there.gpus, rows))
        return other

    def _divide(self, block: Block, at: int, there: Sliced | None) -> None:
        self._sliced += (there is not None) - (block.sliced[at] is not None)
        block.sliced[at] = there

    def _mark(self, block: Block, at: int, marks: tuple[Mark, ...]) -> None:
        for change, some in ((-1, block.marks[at]), (1, marks)):
            for mark in some:
                if mark.kind == "affinity":
                    self._befriend(mark.label, change)
        block.marks[at] = marks

    def _befriend(self, label: str, change: int) -> None:
        self._befriended = True
        self._friends[label] = self._friends.get(label, 0) + change
        if not self._friends[label]:
            del self._friends[label]

    def _code(self, gpu: GpuRow) -> int:
        return self._models.setdefault(GpuModel(gpu.model, gpu.capacity), len(self._models))

    def _touch(self, row: int) -> tuple[Block, int]:
        """Return a row's block, to be written to, and the row's place in it."""
        at = row // BLOCK
        if at not in self._own:
            self._blocks[at] = self._blocks[at].copy()
            self._own.add(at)
        block = self._blocks[at]
        self.version += 1
        block.numbers["changed"][row % BLOCK] = self.version
        block.newest = self.version
        return block, row % BLOCK

    def _new_row(self, name: str) -> int:
        self._take_names()
        if self._free:
            row = min(self._free)
            self._free.remove(row)
            self._names[row] = name
        else:
            row = len(self._names)
            self._names.append(name)
            if row // BLOCK >= len(self._blocks):
                self._own.add(len(self._blocks))
                self._blocks.append(Block(_empty(self._columns), [()] * BLOCK, [()] * BLOCK, [None] * BLOCK))
        self._row[name] = row
        self._renamed += 1
        return row

    def _take_names(self) -> None:
        if not self._own_names:
            last = self._published
            self._row, self._names = dict(last.row_of), list(last.names)
            self._free = [row for row, name in enumerate(self._names) if not name]
            self._own_names = True

    def _widen(self, columns: int) -> None:
        """Make room for nodes with more GPUs."""
        for at, block in enumerate(self._blocks):
            wider, old = _empty(columns), block.numbers
            for name in PER_GPU:
                wider[name][:, : self._columns] = old[name]
            for name in ("cpu_memory", "changed"):
                wider[name] = old[name]
            self._blocks[at] = replace(block.copy(), numbers=wider)
        self._own = set(range(len(self._blocks)))
        self._columns = columns


def _empty(columns: int) -> NDArray[np.void]:
    rows = np.zeros(BLOCK, records(columns))
    rows["cpu_memory"] = np.inf
    return rows
