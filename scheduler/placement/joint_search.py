# SPDX-License-Identifier: Apache-2.0
"""Search for places for several unequal pods together, with backtracking, if placing them one by one has failed.

The pods with one share each are placed last, by filling one GPU after the other (`bin_completion`): that is the hard
part of most gangs. The pieces of the others come first, depth first. Of the places for a piece, those that it fills to
the last percent come first, then those on the nodes with the most free. A branch is left if the pieces to come cannot
fill what they would have to by their sizes (the sums that they can make; Martello and Toth, 1990, "Knapsack Problems",
ch. 8), and a state that was left is not tried again. Nodes that are alike are tried once. If that fails, all pods are
placed depth first: with pods of both kinds, each way finds places that the other does not. Packing is hard in general:
who calls gives the steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from scheduler.placement.bin_completion import Portion, Space, complete
from scheduler.placement.demand import Demand, Piece
from scheduler.placement.node_search import MOST_PIECES, StepBudget
from slicekeeper.units import CORES_PER_GPU

SEARCH_STEPS: Final = (6_000, 100)
"""Steps of a search for unequal pods, with more for each pod: 15 ms for a few pods."""

SEARCH_NODES: Final = 64
"""How many nodes are searched for each demand, those with the most free."""

SEARCH_DEMANDS: Final = 32
"""Maximum number of different pods of a gang that is searched for."""

COMPLETIONS: Final = 4
"""One completion takes at most this part of the steps, so that others can follow if it fails."""


class Item(NamedTuple):
    """One piece of one pod; `demand` is the demand's bit."""

    pod: int
    demand: int
    piece: Piece
    needs_idle: bool
    closes: bool
    """No other pod may join its GPU, as far as is known here."""


class Step(NamedTuple):
    """An item's place: a node in a state, one of its GPUs, and what that becomes."""

    node: tuple[Space, ...]
    gpu: Space
    after: Space


def search_jointly(
    nodes: Sequence[Sequence[Space]], pods: Sequence[tuple[int, Demand]], budget: StepBudget
) -> list[tuple[int, list[int]]] | None:
    """Return each pod's node and the columns of its pieces' GPUs; None if they were not found within the budget.

    Each pod comes with its demand and that demand's bit. Affinity is not looked at; anti-affinity keeps everything off.
    """
    if sum(len(demand.pieces) for _, demand in pods) > MOST_PIECES:
        return None
    free = [_shares_freely(demand) for _, demand in pods]
    ways = [free, [False] * len(pods)] if any(free) and not all(free) else [free]
    for left, last in zip(range(len(ways), 0, -1), ways, strict=True):
        mine = StepBudget(budget.steps // left)
        budget.steps -= mine.steps
        found = _placed(nodes, pods, last, mine)
        budget.steps += mine.steps
        if found is not None:
            return found
    return None


def _shares_freely(demand: Demand) -> bool:
    """Whether a pod needs one share only, and others may be on its GPU."""
    return len(demand.pieces) == 1 and not (demand.pieces[0].whole or demand.alone or demand.anti_affinity)


def _placed(
    nodes: Sequence[Sequence[Space]], pods: Sequence[tuple[int, Demand]], last: Sequence[bool], budget: StepBudget
) -> list[tuple[int, list[int]]] | None:
    """Search, with some of the pods placed last, by completion."""
    items: list[Item] = []
    shares: dict[Portion, list[int]] = {}
    for number, (bit, demand) in enumerate(pods):
        if last[number]:
            piece = demand.pieces[0]
            shares.setdefault(Portion(piece.core, piece.memory_mib, bit), []).append(number)
            continue
        for piece in demand.pieces:
            needs_idle = piece.whole or demand.alone
            items.append(Item(number, bit, piece, needs_idle, needs_idle or bool(demand.anti_affinity)))
    search = _Search(nodes, items, Counter({share: len(numbers) for share, numbers in shares.items()}), budget)
    steps = search.run()
    return _on_nodes(nodes, items, steps, search.filled, shares) if steps is not None else None


class _Search:
    """One search: nodes are counted by their state, because equal ones need not be distinguished."""

    def __init__(
        self, nodes: Sequence[Sequence[Space]], items: Sequence[Item], shares: Counter[Portion], budget: StepBudget
    ) -> None:
        self._items = items
        self._shares = shares
        self._budget = budget
        self._most_of_a_completion = budget.steps // COMPLETIONS if items else budget.steps
        self.filled: list[tuple[Space, list[Portion]]] = []
        """The shares that were placed last, and their GPUs."""
        self._nodes = Counter(tuple(sorted(node)) for node in nodes)
        self._free = Counter(gpu.core for node in nodes for gpu in node)
        """The number of GPUs by their free compute."""
        cores = [item.piece.core for item in items] + [share.core for share in shares.elements()]
        self._asked = [sum(cores[index:]) for index in range(len(cores) + 1)]
        self._most = _fillable(cores)
        self._dead: set[tuple[int, tuple[Space, ...] | None, int]] = set()

    def run(self) -> list[Step] | None:
        """Return a place for each item."""
        return self._place(0, None, sum(hash((node,)) * count for node, count in self._nodes.items()))

    def _place(self, index: int, at: tuple[Space, ...] | None, seen: int) -> list[Step] | None:
        """Return places for the items from `index` on; `at` is where the item's pod is, `seen` stands for all nodes."""
        if index == len(self._items) or self._items[index].pod != self._items[index - 1].pod:
            at = None
        most = self._most[index]
        if sum(most[core] * count for core, count in self._free.items()) < self._asked[index]:
            return None
        if (index, at, seen) in self._dead or self._budget.steps <= 0:
            return None
        if index == len(self._items):
            if self._complete():
                return []
        else:
            for step in self._options(self._items[index], self._nodes if at is None else [at]):
                column = step.node.index(step.gpu)
                new = tuple(sorted((*step.node[:column], step.after, *step.node[column + 1 :])))
                self._move(step.node, new, step.gpu.core, step.after.core)
                rest = self._place(index + 1, new, seen - hash((step.node,)) + hash((new,)))
                if rest is not None:
                    return [step, *rest]
                self._move(new, step.node, step.after.core, step.gpu.core)
                if self._budget.steps <= 0:
                    return None
        self._dead.add((index, at, seen))
        return None

    def _complete(self) -> bool:
        """Place the shares on what is left, and return whether that was possible."""
        gpus: Counter[Space] = Counter()
        for node, count in self._nodes.items():
            for gpu in node:
                gpus[gpu] += count
        steps = min(self._budget.steps, self._most_of_a_completion)
        mine = StepBudget(steps)
        filled = complete(gpus, self._shares, mine)
        self._budget.steps -= steps - mine.steps
        self.filled = filled or []
        return filled is not None

    def _options(self, item: Item, nodes: Sequence[tuple[Space, ...]] | Counter[tuple[Space, ...]]) -> list[Step]:
        """Return the places for an item, in the order in which they are tried."""
        found = []
        for node in nodes:
            free = sum(gpu.core for gpu in node)
            for gpu in dict.fromkeys(node):
                self._budget.steps -= 1
                after = _after(gpu, item)
                if after is not None:
                    wasted = gpu.core - item.piece.core - after.core
                    order = wasted, after.core > 0, -free, -after.core, after.memory
                    found.append((order, Step(node, gpu, after)))
        return [step for _, step in sorted(found, key=lambda one: one[0])]

    def _move(self, node: tuple[Space, ...], new: tuple[Space, ...], core: int, core_after: int) -> None:
        self._nodes[new] += 1
        self._nodes[node] -= 1
        if not self._nodes[node]:
            del self._nodes[node]
        self._free[core] -= 1
        self._free[core_after] += 1


def _after(gpu: Space, item: Item) -> Space | None:
    """Return what is left of a GPU with `item` on it, None if it does not fit."""
    piece = item.piece
    if not gpu.open_to & item.demand or (item.needs_idle and not gpu.idle):
        return None
    if piece.whole:
        return Space(0, 0, gpu.capacity, idle=False, open_to=0) if gpu.capacity >= piece.memory_mib else None
    if gpu.core < piece.core or gpu.memory < piece.memory_mib:
        return None
    if item.closes:
        return Space(0, 0, gpu.capacity, idle=False, open_to=0)
    return Space(gpu.core - piece.core, gpu.memory - piece.memory_mib, gpu.capacity, idle=False, open_to=gpu.open_to)


def _fillable(cores: Sequence[int]) -> list[list[int]]:
    """Return for each index how much the pieces from there on fill at most of each amount that is free, by their sums.

    The last index, behind all pieces, fills nothing.

    Bit n of `sums` is whether some of them ask for n percent together.
    """
    sums, found = 1, [[0] * (CORES_PER_GPU + 1)]
    for core in reversed(cores):
        sums |= (sums << core) & ((1 << CORES_PER_GPU + 1) - 1)
        most = 0
        found.append([most := free if sums >> free & 1 else most for free in range(CORES_PER_GPU + 1)])
    return found[::-1]


def _on_nodes(
    nodes: Sequence[Sequence[Space]],
    items: Sequence[Item],
    steps: Sequence[Step],
    filled: Sequence[tuple[Space, list[Portion]]],
    shares: Mapping[Portion, list[int]],
) -> list[tuple[int, list[int]]]:
    """Return each pod's node and columns: steps tell nodes that are alike not apart, nor `filled` GPUs or shares."""
    now = [list(node) for node in nodes]
    alike: dict[tuple[Space, ...], list[int]] = {}
    for number, node in enumerate(now):
        alike.setdefault(tuple(sorted(node)), []).append(number)
    found: dict[int, tuple[int, list[int]]] = {}
    for item, step in zip(items, steps, strict=True):
        number = alike[step.node].pop()  # for a pod's later pieces the node of its first one, which came last
        column = now[number].index(step.gpu)
        now[number][column] = step.after
        alike.setdefault(tuple(sorted(now[number])), []).append(number)
        found.setdefault(item.pod, (number, []))[1].append(column)
    there: dict[Space, list[tuple[int, int]]] = {}
    for number, node in enumerate(now):
        for column, gpu in enumerate(node):
            there.setdefault(gpu, []).append((number, column))
    waiting = {share: list(pods) for share, pods in shares.items()}
    for gpu, here in filled:
        number, column = there[gpu].pop()
        for share in here:
            found[waiting[share].pop()] = number, [column]
    return [found[pod] for pod in range(len(found))]
