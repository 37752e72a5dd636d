# SPDX-License-Identifier: Apache-2.0
"""Expected fill: a place costs what the arrivals to come can no longer fill because of it. A rule of our own.

From the mix of pods that arrive, each model of GPU gets a table: how much of a GPU with so much free, and so many cores
beside it, the next `HORIZON` slices are expected to fill. With class m of weight q wanting D of a GPU and c cores:

    u₀ = 0;  gain = D + u(R − D, C − c) − u(R, C)
    u(R, C) ← u(R, C) + Σ q·[R ≥ D and C ≥ c]·(gain if it is positive, otherwise (1 − choice)·gain)

A GPU that would rather wait for another pod can leave this one to others, but not always: `choice` says how often.
A node is worth the sum of its GPUs' u. Its free CPU (or its memory, if that is shorter) is divided among the GPUs as
they would use it if there were enough: the same recursion with the cores used in place of the GPU filled. Tables of
single GPUs know nothing of pods that want several on one node, so for each number n of GPUs the pods of weight q that
the idle GPUs and the cores still have room for are worth `ROOM`·q·n each, more if pods end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from scheduler.placement.arrivals import Arrival, Mix
from scheduler.placement.fleet_version import Bools, Floats, GpuModel, Ints
from scheduler.placement.policy import Gpus, Piece
from slicekeeper.gpu.inventory import is_wanted
from slicekeeper.units import CORES_PER_GPU

HORIZON: Final = 40
"""Slices looked ahead. Every GPU is judged as if all of them were for it alone: with 100, a gap looks as if it were
filled that is not, because the few pods of its size are shared by all GPUs."""

CHOICE: Final = 0.4
CHOICE_IN_TURNOVER: Final = 1.0
"""How often a GPU leaves a pod to others that it would rather not take, in between the more pods end for each that
comes. With 0, cores look short wherever a GPU could not take every pod, and small nodes with cores enough are filled
before they need be. With 1, while a cluster fills, every GPU counts on the few pods that want no cores."""

WITHOUT_CHOICE: Final = 0.2
"""If this part of all pods wants no GPU, the choice stays what it is while a cluster fills, and it grows towards the
other value the fewer there are: such pods take the cores of a GPU that waits."""

MOST_CORES: Final = 128
"""Cores beside one GPU that the tables tell apart; more are as good."""

WHOLE: Final = 5.0
"""Price of a node with 8 idle GPUs, in thousandths of a GPU: it decides where nothing else does, and keeps idle GPUs
together. With 20, kube-scheduler puts the pods without GPUs on the nodes that are kept idle, and less is given out."""

ROOM: Final = 50.0
"""Price of the room for pods that want several GPUs, in thousandths of a GPU for each GPU that they want. Without it a
cluster at 97 % load refuses pods of 8 GPUs that best fit has room for. While a cluster fills, a higher price costs more
than it gives: kube-scheduler puts the pods without GPUs on the idle nodes, whose GPUs then have no cores left."""

SHORT: Final = 0.1
ROOM_IF_SHORT: Final = 60.0
"""How much dearer room becomes if pods of one GPU would need more cores than a node has free for its free GPUs, by the
part that is lacking beyond `SHORT`: pods of several GPUs want fewer cores for each, and fill such a node as no others
do. Without it best fit gives out 2 % more on nodes with 6 cores for each GPU."""

ROOM_IN_TURNOVER: Final = 80.0
"""The same if as many pods end as come, in between it rises with them: a share on an idle node keeps pods of several
GPUs out for as long as it lives, and what it would have blocked elsewhere is free again sooner."""

MICRO: Final = 1_000
"""Prices are in thousandths of a thousandth of a GPU, so that what is equal but for rounding stays equal."""

MOST_GPUS: Final = 8

OFFSET: Final = 1 << 34


@dataclass(frozen=True)
class _Tables:
    """By model, percent of the GPU free, and cores beside it."""

    fill: Floats
    cores: Floats
    ram_per_core: float
    cores_per_gpu: float
    """Of pods that want one GPU or less, for a whole one."""
    several: tuple[tuple[int, float, float], ...]
    """Of pods that want several GPUs: how many, the cores of one, and the price of the room for it."""


class ExpectedFill:
    """The cheapest place by what it takes from the pods to come."""

    def __init__(self, mix: Mix, models: Sequence[GpuModel]) -> None:
        """Build the tables: some tenths of a second for each model."""
        kinds = mix.kinds
        stay = max(1 - mix.without_gpus / WITHOUT_CHOICE, 0.0)
        choice = CHOICE + (CHOICE_IN_TURNOVER - CHOICE) * mix.turnover * stay
        tables = [_table(kinds, model, HORIZON, choice) for model in models]
        cores = sum(arrival.weight * arrival.cpu for arrival in kinds)
        ram = sum(arrival.weight * arrival.ram for arrival in kinds)
        self._tables = _Tables(
            np.array([fill for fill, _ in tables]),
            np.array([used for _, used in tables]),
            ram / cores if cores and ram else 0.0,
            _cores_per_gpu(kinds),
            tuple(_several(kinds, ROOM + (ROOM_IN_TURNOVER - ROOM) * mix.turnover)),
        )

    def prices(self, gpus: Gpus, piece: Piece, possible: Bools) -> Ints:
        """Return what each place takes from the pods to come, in millionths of a GPU."""
        tables = self._tables
        free = gpus.free()
        if piece.whole:
            rows = np.flatnonzero(possible.any(axis=1))
            after = np.where(gpus.taken_whole(piece), 0, free)[rows]
        else:
            rows, columns = np.nonzero(possible)
            after = free[rows]
            capacity = gpus.capacity[rows, columns]
            memory = (gpus.memory[rows, columns] - piece.memory_mib) * CORES_PER_GPU // np.maximum(capacity, 1)
            after[np.arange(len(rows)), columns] = np.minimum(gpus.core[rows, columns] - piece.core, memory)
        model = np.minimum(gpus.model, len(tables.fill) - 1)  # one may have come since
        cpu, ram = gpus.cpu - piece.cpu, gpus.ram - piece.ram
        cores, left = _cores(tables, gpus.cpu, gpus.ram), _cores(tables, cpu, ram)[rows]
        idle, still_idle = (free >= CORES_PER_GPU).sum(axis=1), (after >= CORES_PER_GPU).sum(axis=1)
        now = _value(tables, free, model, cores)
        then = _value(tables, after, model[rows], left)
        wanted = free.sum(axis=-1) / CORES_PER_GPU * tables.cores_per_gpu
        short = 1 - cores / np.maximum(wanted, 1e-9)
        dearer = 1 + ROOM_IF_SHORT * np.maximum(short - SHORT, 0.0)
        room = (dearer * _room(tables, idle, cores))[rows] - dearer[rows] * _room(tables, still_idle, left)
        whole = WHOLE * still_idle / MOST_GPUS
        price = np.rint((now[rows] - then + room + whole) * MICRO).astype(np.int64) + OFFSET
        prices = np.zeros(free.shape, np.int64)
        if piece.whole:
            prices[rows] = price[:, None]
        else:
            prices[rows, columns] = price
        return prices


def _cores_per_gpu(kinds: Sequence[Arrival]) -> float:
    """Return the cores that pods of one GPU or less want for each whole one."""
    alone = [arrival for arrival in kinds if arrival.gpus == 1]
    gpus = sum(arrival.weight * arrival.core for arrival in alone) / CORES_PER_GPU
    return sum(arrival.weight * arrival.cpu for arrival in alone) / gpus if gpus else 0.0


def _several(kinds: Sequence[Arrival], room: float) -> Iterator[tuple[int, float, float]]:
    """Yield each number of GPUs that pods want several of, the mean cores of such a pod, and the price of its room."""
    for count in sorted({arrival.gpus for arrival in kinds} - {1}):
        alike = [arrival for arrival in kinds if arrival.gpus == count]
        weight = sum(arrival.weight for arrival in alike)
        yield count, count * sum(arrival.weight * arrival.cpu for arrival in alike) / weight, room * weight * count


def _room(tables: _Tables, idle: Ints, cores: Floats) -> Floats:
    """Return what nodes' room for pods that want several GPUs is worth, in thousandths of a GPU."""
    worth = np.zeros(idle.shape)
    for count, wants, price in tables.several:
        worth += price * np.minimum(idle // count, np.floor(cores / wants) if wants else np.inf)
    return worth


def _cores(tables: _Tables, cpu: Floats, ram: Floats) -> Floats:
    """Return the cores that pods can use: memory may run out before them."""
    return np.maximum(np.minimum(cpu, ram / tables.ram_per_core if tables.ram_per_core else np.inf), 0.0)


def _value(tables: _Tables, free: Ints, model: Ints, cores: Floats) -> Floats:
    """Return what nodes are worth, in thousandths of a GPU, summed over the last axis."""
    wanted = tables.cores[model, free]
    sums = wanted.sum(axis=-1, keepdims=True)
    share = np.minimum(cores, MOST_CORES * free.shape[-1])[..., None] * (wanted / np.maximum(sums, 1e-9))
    share = np.minimum(share, MOST_CORES - 1e-6)
    low = share.astype(np.int64)
    part = share - low
    fill = tables.fill[model, free, low] * (1 - part) + tables.fill[model, free, low + 1] * part
    total: Floats = fill.sum(axis=-1)
    return total


def _table(kinds: Sequence[Arrival], model: GpuModel, horizon: int, choice: float) -> tuple[Floats, Floats]:
    """Return for one model what is filled (thousandths, by percent free and cores), and the cores used by that."""
    classes: dict[tuple[int, float], float] = {}
    for arrival in kinds:
        if not is_wanted(model.name, arrival.models):
            continue
        wants = max(arrival.core, -(-arrival.memory_mib * CORES_PER_GPU // max(model.capacity, 1)))
        if 0 < wants <= CORES_PER_GPU and arrival.cpu <= MOST_CORES:
            key = (wants, round(arrival.cpu, 1))
            classes[key] = classes.get(key, 0.0) + arrival.weight
    fill = np.zeros((CORES_PER_GPU + 1, MOST_CORES + 1))
    used = np.zeros(CORES_PER_GPU + 1)
    for _ in range(horizon):
        then, cores = fill.copy(), used.copy()
        for (wants, cpu), weight in classes.items():
            first = int(np.ceil(cpu))
            part = first - cpu
            rest = fill[: CORES_PER_GPU + 1 - wants]
            width = MOST_CORES + 1 - first
            gained = rest[:, :width] * (1 - part)
            if part:
                gained = gained + rest[:, 1 : width + 1] * part
            gain = wants * 10 + gained - fill[wants:, first:]
            then[wants:, first:] += weight * np.maximum(gain, (1 - choice) * gain)
            takes = np.where(gain[:, -1] < 0, 1 - choice, 1.0)
            cores[wants:] += weight * takes * (cpu + used[: CORES_PER_GPU + 1 - wants] - used[wants:])
        fill, used = then, cores
    return fill, used
