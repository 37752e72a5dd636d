# SPDX-License-Identifier: Apache-2.0
"""All GPUs of all nodes at one version: immutable arrays, which any thread may read without a lock.

A `Fleet` makes them. Rows are kept in blocks, and two versions share every block that is the same in both. Names
(models, labels, UUIDs) become masks here, so that the rules of `scheduler.placement` are arithmetic on arrays alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.placement.demand import Demand
from scheduler.placement.mig import Sliced
from slicekeeper.gpu.inventory import is_wanted

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

BLOCK: Final = 64
"""Rows of a block: what is copied when one of them changes."""


FEW: Final = 32
"""So many rows are taken one by one."""

PER_GPU: Final = ("capacity", "core", "memory", "model", "healthy", "idle", "labelled")
"""The stored fields of each GPU: four integers, three booleans."""


class GpuModel(NamedTuple):
    """GPUs that are alike: their model's name, and their memory in MiB."""

    name: str
    capacity: int


class Mark(NamedTuple):
    """A label that a pod brought to one GPU of a row."""

    kind: str
    label: str
    column: int


@dataclass(frozen=True)
class View:
    """The GPUs of some nodes for one demand: arrays of nodes × GPUs, with `capacity` 0 if there is no GPU."""

    capacity: Ints
    core: Ints
    memory: Ints
    healthy: Bools
    idle: Bools
    model: Bools
    """Whether the demand accepts the model."""
    named: Bools
    """Whether the UUID is the one that the demand names, or it names none."""
    friend: Bools
    """Whether a pod with the demand's affinity label is there."""
    foe: Bools
    """Whether a pod with the demand's anti-affinity label is there."""
    admits: Bools
    """Whether the GPU is idle, or all pods there have the demand's exclusion label (none counts as a label)."""
    has_friends: bool
    """Whether any GPU of the fleet holds a pod with the demand's affinity label."""
    code: Ints
    """Which of the fleet's models each GPU is."""
    cpu: Floats
    """Free cores of each node; infinite if unknown."""
    ram: Floats
    """Free MiB of each node's main memory; infinite if unknown."""
    sliced: Mapping[int, Sliced] = field(default_factory=dict)
    """The MIG slices of the nodes that have some, by the nodes' indexes, if the demand may be on one."""

    def only(self, rows: Ints) -> View:
        """Return some of the nodes, without their MIG slices, which have other indexes there."""
        arrays: dict[str, Any] = {
            name: array[rows] for name, array in vars(self).items() if isinstance(array, np.ndarray)
        }
        return replace(self, **arrays, sliced={})


@dataclass(slots=True)
class Block:
    """`BLOCK` rows: their numbers in one array of records, and each row's UUIDs, marks and MIG slices.

    Once published it stays.
    """

    numbers: NDArray[Any]
    uuids: list[tuple[str, ...]]
    marks: list[tuple[Mark, ...]]
    sliced: list[Sliced | None]
    newest: int = 0
    """The version with which any of the rows changed last."""

    def copy(self) -> Block:
        """Return a block of one's own."""
        return Block(self.numbers.copy(), self.uuids.copy(), self.marks.copy(), self.sliced.copy(), self.newest)


@lru_cache
def records(columns: int) -> np.dtype[Any]:
    """Return what is kept of a row with so many GPUs. Padding is only at the end, because `states` compares bytes."""
    integers = [(name, np.int64, (columns,)) for name in PER_GPU[:4]]
    booleans = [(name, np.bool_, (columns,)) for name in PER_GPU[4:]]
    fields: list[Any] = [("changed", np.int64), *integers, ("cpu_memory", np.float64, (2,)), *booleans]
    return np.dtype(fields, align=True)


@dataclass(frozen=True)
class FleetVersion:
    """The fleet as it was at `version`."""

    blocks: tuple[Block, ...]
    row_of: Mapping[str, int]
    names: Sequence[str]
    """The nodes by row, empty if the row is no node's."""
    models: tuple[GpuModel, ...]
    """All models ever seen; a GPU's `code` is the index."""
    friends: Mapping[str, int]
    """How many GPUs hold a pod with each affinity label, here or out of sight."""
    columns: int
    version: int
    renamed: int
    """Increases when a node is added or removed."""
    sliced: int = 0
    """How many nodes have MIG slices."""
    out_of_sight: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """By node, the affinity labels of pods on GPUs that are not here; they count as friends."""

    def row(self, name: str) -> int:
        """Return a node's row, −1 if it is not here."""
        return self.row_of.get(name, -1)

    def rows(self, names: Sequence[str]) -> Ints:
        """Return the rows of nodes, −1 for those that are not here."""
        return np.fromiter(map(self.row_of.get, names, repeat(-1)), np.int64, len(names))

    def changed_since(self, version: int) -> Ints:
        """Return the rows that have changed since a version, rows of no node among them."""
        found = [
            np.flatnonzero(block.numbers["changed"] > version) + at * BLOCK
            for at, block in enumerate(self.blocks)
            if block.newest > version
        ]
        return np.concatenate(found) if found else np.zeros(0, np.int64)

    def states(self, rows: Ints) -> list[bytes]:
        """Return the numbers of rows as bytes: equal for two that differ at most in UUIDs, labels and MIG slices."""
        fields: Any = records(self.columns).fields
        begin, end = fields[PER_GPU[0]][1], fields[PER_GPU[-1]][1] + self.columns
        return [self.blocks[row // BLOCK].numbers[row % BLOCK].tobytes()[begin:end] for row in rows.tolist()]

    def uuids(self, name: str) -> tuple[str, ...]:
        """Return a node's GPUs in the order of their columns, and behind them its MIG slices."""
        row = self.row_of[name]
        block, at = self.blocks[row // BLOCK], row % BLOCK
        there = block.sliced[at]
        return (*block.uuids[at], *(one.mig.uuid for one in there.rows)) if there is not None else block.uuids[at]

    def cpu_memory(self, name: str) -> tuple[float, float]:
        """Return a node's free cores and MiB."""
        row = self.row_of[name]
        cpu, ram = self.blocks[row // BLOCK].numbers["cpu_memory"][row % BLOCK]
        return float(cpu), float(ram)

    def has_friends(self, demand: Demand) -> bool:
        """Whether any GPU holds a pod with the demand's affinity label."""
        return bool(demand.affinity) and demand.affinity in self.friends

    def view(self, names: Sequence[str], demand: Demand, *, has_friends: bool = False) -> View:
        """Return the named nodes, which must be here, as `demand` sees them; the arrays are copies.

        `has_friends` says that there are pods with its affinity label elsewhere, where this fleet is only a part.
        """
        return self.view_rows(self.rows(names), demand, has_friends=has_friends)

    def view_rows(self, rows: Ints, demand: Demand, *, has_friends: bool = False) -> View:
        """Return rows as `demand` sees them; a row of no node has no GPU."""
        found = self._records(rows)
        idle, code, label = found["idle"], found["model"], demand.exclusion
        return View(
            capacity=found["capacity"],
            core=found["core"],
            memory=found["memory"],
            healthy=found["healthy"],
            idle=idle,
            model=self._of_models(demand.models, code),
            named=self._named(demand.gpu_uuid, rows) if demand.gpu_uuid else np.ones_like(idle),
            friend=self._marked("affinity", demand.affinity, rows),
            foe=self._marked("anti-affinity", demand.anti_affinity, rows),
            admits=idle | self._marked("exclusion", label, rows) if label else ~found["labelled"],
            has_friends=has_friends or self.has_friends(demand),
            code=code,
            cpu=found["cpu_memory"][:, 0],
            ram=found["cpu_memory"][:, 1],
            sliced=self._slices(rows) if self.sliced and demand.takes_slices else {},
        )

    def _slices(self, rows: Ints) -> dict[int, Sliced]:
        there = (self.blocks[row // BLOCK].sliced[row % BLOCK] for row in rows.tolist())
        return {index: one for index, one in enumerate(there) if one is not None}

    def totals(self) -> tuple[int, int, int]:
        """Return the number of GPUs, their free compute in percent, and their free memory in MiB."""
        every = [block.numbers for block in self.blocks]
        gpus = sum(int((numbers["capacity"] > 0).sum()) for numbers in every)
        there = (one for block in self.blocks for one in block.sliced if one is not None)
        slices = [row for one in there for row in one.rows if row.free]
        return (
            gpus,
            sum(int(n["core"].sum()) for n in every) + sum(one.mig.core for one in slices),
            sum(int(n["memory"].sum()) for n in every) + sum(one.mig.memory_mib for one in slices),
        )

    def _records(self, rows: Ints) -> NDArray[Any]:
        if len(rows) <= FEW:
            found = np.empty(len(rows), records(self.columns))
            for index, row in enumerate(rows.tolist()):
                found[index] = self.blocks[row // BLOCK].numbers[row % BLOCK]
            return found
        first = int(rows.min()) // BLOCK
        blocks = self.blocks[first : int(rows.max()) // BLOCK + 1]
        together = np.concatenate([block.numbers for block in blocks])
        begin = int(rows[0]) - first * BLOCK
        if (np.diff(rows) == 1).all():
            return together[begin : begin + len(rows)]
        one: NDArray[Any] = together[rows - first * BLOCK]
        return one

    def _of_models(self, asked: tuple[str, ...], code: Ints) -> Bools:
        if not asked:
            return np.ones(code.shape, np.bool_)
        codes = [index for index, model in enumerate(self.models) if is_wanted(model.name, asked)]
        return np.isin(code, np.array(codes, np.int64))

    def _named(self, uuid: str, rows: Ints) -> Bools:
        mask = np.zeros((len(rows), self.columns), np.bool_)
        for index, row in enumerate(rows.tolist()):
            uuids = self.blocks[row // BLOCK].uuids[row % BLOCK]
            if uuid in uuids:
                mask[index, uuids.index(uuid)] = True
        return mask

    def _marked(self, kind: str, label: str, rows: Ints) -> Bools:
        mask = np.zeros((len(rows), self.columns), np.bool_)
        if label:
            for index, row in enumerate(rows.tolist()):
                for mark in self.blocks[row // BLOCK].marks[row % BLOCK]:
                    if mark.label == label and mark.kind == kind:
                        mask[index, mark.column] = True
        return mask
