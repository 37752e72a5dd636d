# SPDX-License-Identifier: Apache-2.0
"""All GPUs of all nodes as arrays (nodes × GPUs), set row by row, and seen through one demand's eyes.

No lock and no I/O: `scheduler.state` owns one and guards it. Names (models, labels, UUIDs) become masks here, so
that the rules of `scheduler.placement` are arithmetic on arrays alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import repeat
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scheduler.placement.demand import Demand
from slicekeeper.gpu.inventory import is_wanted
from slicekeeper.units import CORES_PER_GPU

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]
Floats = NDArray[np.float64]

MIXED = "\0mixed"
"""In place of an exclusion label if the pods on a GPU disagree: no other may join them."""


@dataclass(frozen=True, slots=True)
class GpuRow:
    """One GPU as it is now: its kind, what is free, which pods are on it."""

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


class GpuModel(NamedTuple):
    """GPUs that are alike: their model's name, and their memory in MiB."""

    name: str
    capacity: int


@dataclass(frozen=True)
class View:
    """Some nodes' GPUs as one demand sees them: arrays of nodes × GPUs, with `capacity` 0 if there is no GPU."""

    capacity: Ints
    core: Ints
    memory: Ints
    healthy: Bools
    idle: Bools
    model: Bools
    """The model is one that the demand takes."""
    named: Bools
    """The UUID is the one that the demand names, or it names none."""
    friend: Bools
    """A pod with the demand's affinity label is there."""
    foe: Bools
    """A pod with the demand's anti-affinity label is there."""
    admits: Bools
    """The GPU is idle, or all pods there have the demand's exclusion label (none counts as a label)."""
    has_friends: bool
    """Whether any GPU of the fleet holds a pod with the demand's affinity label."""
    code: Ints
    """Which of the fleet's models each GPU is."""
    cpu: Floats
    """Free cores of each node, infinite if that is not known."""
    ram: Floats
    """Free MiB of each node's own memory, infinite if that is not known."""


class Fleet:
    """The arrays, and which row is which node's."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        self._free: list[int] = []
        self._names: list[str] = []
        self._models: dict[GpuModel, int] = {}
        self._marks: dict[tuple[str, str], set[tuple[int, int]]] = {}
        self._marks_of: list[list[tuple[str, str, int]]] = []
        self._uuids: list[tuple[str, ...]] = []
        self._capacity: Ints = np.zeros((0, 1), np.int64)
        self._core: Ints = np.zeros((0, 1), np.int64)
        self._memory: Ints = np.zeros((0, 1), np.int64)
        self._model: Ints = np.zeros((0, 1), np.int64)
        self._healthy: Bools = np.zeros((0, 1), np.bool_)
        self._idle: Bools = np.zeros((0, 1), np.bool_)
        self._labelled: Bools = np.zeros((0, 1), np.bool_)
        self._beside: Floats = np.zeros((0, 2))
        """Free cores and MiB of each node, whatever its GPUs."""
        self.version = 0
        """Rises with every change."""
        self.renamed = 0
        """Rises when a node comes or goes."""
        self._changed: Ints = np.zeros(0, np.int64)
        """The version with which each row changed last."""

    def __contains__(self, name: str) -> bool:
        return name in self._row

    def __len__(self) -> int:
        return len(self._row)

    def row(self, name: str) -> int:
        """Return a node's row, −1 if it is not here."""
        return self._row.get(name, -1)

    def version_of(self, row: int) -> int:
        """Return the version with which a row changed last."""
        return int(self._changed[row])

    def names(self) -> list[str]:
        """Return all nodes, in order of their names."""
        return sorted(self._row)

    def names_by_row(self) -> list[str]:
        """Return the nodes by row, empty if the row is no node's."""
        return list(self._names)

    def uuids(self, name: str) -> tuple[str, ...]:
        """Return a node's GPUs, in the order of their columns."""
        return self._uuids[self._row[name]]

    def rows(self, names: Sequence[str]) -> Ints:
        """Return the rows of nodes, −1 for those that are not here."""
        return np.fromiter(map(self._row.get, names, repeat(-1)), np.int64, len(names))

    def set(self, name: str, gpus: Sequence[GpuRow]) -> None:
        """Put a node's GPUs in place of what was known of it."""
        row = self._row.get(name)
        if row is None:
            row = self._new_row(name)
        self._clear(row)
        if len(gpus) > self._core.shape[1]:
            self._resize(self._core.shape[0], len(gpus))
        self._uuids[row] = tuple(gpu.uuid for gpu in gpus)
        for column, gpu in enumerate(gpus):
            self._capacity[row, column] = gpu.capacity
            self._core[row, column] = max(gpu.core, 0)
            self._memory[row, column] = max(gpu.capacity if gpu.memory < 0 else gpu.memory, 0)
            model = GpuModel(gpu.model, gpu.capacity)
            self._model[row, column] = self._models.setdefault(model, len(self._models))
            self._healthy[row, column] = gpu.healthy
            self._idle[row, column] = gpu.idle
            self._labelled[row, column] = bool(gpu.exclusion)
            for label in gpu.affinity:
                self._mark(row, column, "affinity", label)
            for label in gpu.anti_affinity:
                self._mark(row, column, "anti-affinity", label)
            if gpu.exclusion:
                self._mark(row, column, "exclusion", gpu.exclusion)

    def copy(self) -> Fleet:
        """Return the same arrays once more, at the same version."""
        other = Fleet()
        for name, value in vars(self).items():
            setattr(other, name, value.copy() if hasattr(value, "copy") else value)
        other._marks = {mark: places.copy() for mark, places in self._marks.items()}
        other._marks_of = [marks.copy() for marks in self._marks_of]
        return other

    def beside(self, name: str) -> tuple[float, float]:
        """Return a node's free cores and MiB."""
        cpu, ram = self._beside[self._row[name]]
        return float(cpu), float(ram)

    def idle(self) -> Fleet:
        """Return a copy in which nothing is held."""
        other = self.copy()
        there = other._capacity > 0
        other._core[there] = CORES_PER_GPU
        other._memory[there] = other._capacity[there]
        other._idle[there] = True
        other._labelled[:] = False
        other._marks = {}
        other._marks_of = [[] for _ in other._marks_of]
        return other

    def set_beside(self, name: str, cpu: float, ram: float) -> None:
        """Take a node's free cores and MiB; the node must be here."""
        row = self._row[name]
        self._beside[row] = cpu, ram
        self._touch(row)

    @property
    def models(self) -> list[GpuModel]:
        """All models ever seen; a GPU's `code` is the index."""
        return list(self._models)

    def changed_since(self, version: int) -> Ints:
        """Return the rows that have changed since a version, rows of no node among them."""
        return np.flatnonzero(self._changed > version)

    def remove(self, name: str) -> None:
        """Forget a node."""
        row = self._row.pop(name, None)
        if row is not None:
            self._clear(row)
            self._beside[row] = np.inf
            self._free.append(row)
            self._names[row] = ""
            self.renamed += 1

    def view(self, names: Sequence[str], demand: Demand, *, has_friends: bool = False) -> View:
        """Return the named nodes, which must be here, as `demand` sees them; the arrays are copies.

        `has_friends` says that there are pods with its affinity label elsewhere, where this fleet is only a part.
        """
        return self.view_rows(self.rows(names), demand, has_friends=has_friends)

    def has_friends(self, demand: Demand) -> bool:
        """Whether any GPU holds a pod with the demand's affinity label."""
        return bool(demand.affinity) and bool(self._marks.get(("affinity", demand.affinity)))

    def view_rows(self, rows: Ints, demand: Demand, *, has_friends: bool = False) -> View:
        """Return rows as `demand` sees them; a row of no node has no GPU."""
        idle = self._idle[rows]
        label = demand.exclusion
        admits = idle | self._marked("exclusion", label, rows) if label else ~self._labelled[rows]
        return View(
            capacity=self._capacity[rows],
            core=self._core[rows],
            memory=self._memory[rows],
            healthy=self._healthy[rows],
            idle=idle,
            model=self._of_models(demand.models, rows),
            named=self._named(demand.gpu_uuid, rows) if demand.gpu_uuid else np.ones_like(idle),
            friend=self._marked("affinity", demand.affinity, rows),
            foe=self._marked("anti-affinity", demand.anti_affinity, rows),
            admits=admits,
            has_friends=has_friends or self.has_friends(demand),
            code=self._model[rows],
            cpu=self._beside[rows, 0],
            ram=self._beside[rows, 1],
        )

    def totals(self) -> tuple[int, int, int]:
        """Return the number of GPUs, their free compute in percent, and their free memory in MiB."""
        return int((self._capacity > 0).sum()), int(self._core.sum()), int(self._memory.sum())

    def _of_models(self, asked: tuple[str, ...], rows: Ints) -> Bools:
        code = self._model[rows]
        if not asked:
            return np.ones(code.shape, np.bool_)
        codes = [code for model, code in self._models.items() if is_wanted(model.name, asked)]
        return np.isin(code, np.array(codes, np.int64))

    def _named(self, uuid: str, rows: Ints) -> Bools:
        mask = np.zeros((len(rows), self._core.shape[1]), np.bool_)
        for index, row in enumerate(rows.tolist()):
            uuids = self._uuids[row]
            if uuid in uuids:
                mask[index, uuids.index(uuid)] = True
        return mask

    def _marked(self, kind: str, key: str, rows: Ints) -> Bools:
        places = self._marks.get((kind, key)) if key else None
        if not places:
            return np.zeros((len(rows), self._core.shape[1]), np.bool_)
        mask = np.zeros(self._core.shape, np.bool_)
        at = np.array(sorted(places), np.int64)
        mask[at[:, 0], at[:, 1]] = True
        marked: Bools = mask[rows]
        return marked

    def _mark(self, row: int, column: int, kind: str, key: str) -> None:
        self._marks.setdefault((kind, key), set()).add((row, column))
        self._marks_of[row].append((kind, key, column))

    def _clear(self, row: int) -> None:
        for kind, key, column in self._marks_of[row]:
            places = self._marks[kind, key]
            places.discard((row, column))
            if not places:
                del self._marks[kind, key]
        self._marks_of[row] = []
        self._uuids[row] = ()
        for array in (self._capacity, self._core, self._memory, self._model):
            array[row] = 0
        for flags in (self._healthy, self._idle, self._labelled):
            flags[row] = False
        self._touch(row)

    def _touch(self, row: int) -> None:
        self.version += 1
        self._changed[row] = self.version

    def _new_row(self, name: str) -> int:
        if self._free:
            row = self._free.pop()
            self._names[row] = name
        else:
            row = len(self._names)
            self._names.append(name)
            self._marks_of.append([])
            self._uuids.append(())
            if row >= self._core.shape[0]:
                self._resize(max(64, 2 * row), self._core.shape[1])
        self._row[name] = row
        self.renamed += 1
        return row

    def _resize(self, rows: int, columns: int) -> None:
        def grown(array: NDArray[np.generic]) -> NDArray[np.generic]:
            larger = np.zeros((rows, columns), array.dtype)
            larger[: array.shape[0], : array.shape[1]] = array
            return larger

        for name in ("_capacity", "_core", "_memory", "_model", "_healthy", "_idle", "_labelled"):
            setattr(self, name, grown(getattr(self, name)))
        beside = np.full((rows, 2), np.inf)
        beside[: self._beside.shape[0]] = self._beside
        self._beside = beside
        self._changed = np.append(self._changed, np.zeros(rows - len(self._changed), np.int64))
