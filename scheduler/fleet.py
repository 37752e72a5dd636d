# SPDX-License-Identifier: Apache-2.0
"""All GPUs of all nodes as arrays (nodes × GPUs), set row by row, and seen through one demand's eyes.

No lock and no I/O: `scheduler.state` owns one and guards it. Names (models, labels, UUIDs) become masks here, so
that the rules of `scheduler.placement` are arithmetic on arrays alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from scheduler.demand import Demand
from slicekeeper.inventory import model_matches
from slicekeeper.units import CORES_PER_GPU

Ints = NDArray[np.int64]
Bools = NDArray[np.bool_]

MIXED = "\0mixed"
"""In place of an exclusion label where the pods on a GPU disagree: nobody may join them."""


@dataclass(frozen=True)
class GpuRow:
    """One GPU as it stands: what it is, what is free, who is on it."""

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


@dataclass(frozen=True)
class View:
    """Some nodes' GPUs as one demand sees them: arrays of nodes × GPUs, `capacity` 0 where there is no GPU."""

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


class Fleet:
    """The arrays, and which row is which node's."""

    def __init__(self) -> None:
        self._row: dict[str, int] = {}
        self._free: list[int] = []
        self._names: list[str] = []
        self._models: dict[str, int] = {}
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

    def __contains__(self, name: str) -> bool:
        return name in self._row

    def __len__(self) -> int:
        return len(self._row)

    def known(self, names: Sequence[str]) -> list[str]:
        """Return those of `names` that are here, in their order."""
        row = self._row
        return [name for name in names if name in row]

    def names(self) -> list[str]:
        """Return all nodes, in order of their names."""
        return sorted(self._row)

    def uuids(self, name: str) -> tuple[str, ...]:
        """Return a node's GPUs, in the order of their columns."""
        return self._uuids[self._row[name]]

    def rows(self, names: Sequence[str]) -> Ints:
        """Return the rows of nodes that are there."""
        row = self._row
        return np.array([row[name] for name in names], np.int64)

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
            self._model[row, column] = self._models.setdefault(gpu.model, len(self._models))
            self._healthy[row, column] = gpu.healthy
            self._idle[row, column] = gpu.idle
            self._labelled[row, column] = bool(gpu.exclusion)
            self._mark(row, column, "uuid", gpu.uuid)
            for label in gpu.affinity:
                self._mark(row, column, "affinity", label)
            for label in gpu.anti_affinity:
                self._mark(row, column, "anti-affinity", label)
            if gpu.exclusion:
                self._mark(row, column, "exclusion", gpu.exclusion)

    def remove(self, name: str) -> None:
        """Forget a node."""
        row = self._row.pop(name, None)
        if row is not None:
            self._clear(row)
            self._free.append(row)

    def view(self, names: Sequence[str], demand: Demand, *, has_friends: bool = False) -> View:
        """Return the named nodes, which must be there, as `demand` sees them; the arrays are copies.

        `has_friends` says that there are pods with its affinity label elsewhere, where this fleet is only a part.
        """
        rows = self.rows(names)
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
            named=self._marked("uuid", demand.gpu_uuid, rows) if demand.gpu_uuid else np.ones_like(idle),
            friend=self._marked("affinity", demand.affinity, rows),
            foe=self._marked("anti-affinity", demand.anti_affinity, rows),
            admits=admits,
            has_friends=has_friends or bool(self._marks.get(("affinity", demand.affinity))),
        )

    def totals(self) -> tuple[int, int, int]:
        """Return the number of GPUs, their free compute in percent, and their free memory in MiB."""
        return int((self._capacity > 0).sum()), int(self._core.sum()), int(self._memory.sum())

    def _of_models(self, asked: tuple[str, ...], rows: Ints) -> Bools:
        model = self._model[rows]
        if not asked:
            return np.ones(model.shape, np.bool_)
        codes = [code for name, code in self._models.items() if any(model_matches(a, name) for a in asked)]
        return np.isin(model, np.array(codes, np.int64))

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
        return row

    def _resize(self, rows: int, columns: int) -> None:
        def grown(array: NDArray[np.generic]) -> NDArray[np.generic]:
            larger = np.zeros((rows, columns), array.dtype)
            larger[: array.shape[0], : array.shape[1]] = array
            return larger

        for name in ("_capacity", "_core", "_memory", "_model", "_healthy", "_idle", "_labelled"):
            setattr(self, name, grown(getattr(self, name)))
