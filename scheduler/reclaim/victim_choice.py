# SPDX-License-Identifier: Apache-2.0
"""Choose which pods to evict for a waiting one: the fewest possible, all on one node.

Pure. For every way to put the demand's pieces on a node's GPUs, it determines which pods must go (those that keep a GPU
from being idle if it must be, or that may not share it with the waiting pod), and the fewest others with which compute
and memory suffice. Among equally small choices, it takes the one whose highest class is lowest. It never chooses pods
that have the waiting pod's affinity label, because that pod must be placed with them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from scheduler.placement.demand import Demand, Piece
from scheduler.placement.mig import MigRow, in_order, suits
from scheduler.placement.node_search import StepBudget
from scheduler.pods import Hold, KnownPod, gpu_rows
from scheduler.reclaim.cover_search import smallest_cover
from slicekeeper import names
from slicekeeper.gpu.inventory import Gpu, is_slice, is_wanted
from slicekeeper.names import MIG
from slicekeeper.units import CORES_PER_GPU

SEARCH_STEPS: Final = 200_000
"""Steps for one waiting pod and class; beyond them a choice is enough, but perhaps not the fewest."""

_UNLIMITED: Final = 1 << 30


@dataclass(frozen=True)
class Tenant:
    """What one pod holds on a node. `rank` orders those that may be taken, the lowest class first; None: never."""

    uid: str
    hold: Hold
    rank: int | None = None
    since_ms: int = 0


@dataclass(frozen=True)
class NodeGpus:
    """A node's GPUs and the pods on them, except those on their way out."""

    name: str
    gpus: tuple[Gpu, ...]
    tenants: tuple[Tenant, ...]


@dataclass(frozen=True)
class Choice:
    """The pods to evict so that the demand fits on `node`."""

    node: str
    victims: tuple[str, ...]


def rank_of(pod: KnownPod, priority: int) -> int | None:
    """Return the rank of a pod's class: 0 is evicted first. None if it may not be evicted for a pod of `priority`.

    First comes work that its user declared as background, then pods that were admitted over budget, then pods whose
    namespace has run out of budget since: these still have their higher priority.
    """
    if pod.gpu_class == names.BACKGROUND:
        return 0
    if pod.budget_state != names.OVER_BUDGET:
        return None
    return 1 if pod.priority < priority else 2


def choose_victims(demand: Demand, nodes: Sequence[NodeGpus], *, has_friends: bool) -> Choice | None:
    """Return the best choice, None if no eviction that is allowed would help.

    `has_friends` is whether any GPU anywhere holds a pod with the demand's affinity label.
    """
    ranks = sorted({t.rank for node in nodes for t in node.tenants if t.rank is not None})
    best = _best(demand, nodes, has_friends, ranks[-1], _UNLIMITED) if ranks else None
    for rank in ranks[:-1] if best else ():
        # As few, but of lower classes only?
        lower = _best(demand, nodes, has_friends, rank, len(best.victims)) if best else None
        if lower is not None:
            return lower
    return best


def _best(demand: Demand, nodes: Sequence[NodeGpus], has_friends: bool, rank: int, most: int) -> Choice | None:
    """Return the smallest choice of at most `most` pods up to class `rank`."""
    budget = StepBudget(SEARCH_STEPS)
    best: Choice | None = None
    # Nodes on which fewer may do come first, so that most nodes of a full cluster need no search at all.
    bounds = [(_at_least(demand, node, rank), index) for index, node in enumerate(nodes)]
    for bound, index in sorted(bounds):
        if bound > most:
            break
        found = _NodeSearch(demand, nodes[index], has_friends, rank, budget).fewest(most)
        if found is not None:
            best = Choice(nodes[index].name, found)
            most = len(found) - 1
    return best


def _at_least(demand: Demand, node: NodeGpus, rank: int) -> int:
    """Return a lower bound on the number of victims on the node, larger than any number if no choice is possible.

    It considers only the largest piece, as if every victim on a GPU freed as much as the one that frees most.
    """
    piece = demand.pieces[0] if demand.pieces else None
    held = {gpu.uuid: [0, 0, 0, 0] for gpu in node.gpus}
    takeable = False
    for tenant in node.tenants:
        may_go = _takeable(tenant, demand, rank)
        takeable = takeable or may_go
        # Nearly all tenants have one share: for them, no set is built and nothing is summed up.
        shares = tenant.hold.shares
        for uuid in {share.uuid for share in shares} if len(shares) > 1 else [share.uuid for share in shares]:
            sums = held.get(uuid)
            if sums is None:
                continue
            core, memory = _held(tenant.hold, uuid) if len(shares) > 1 else (shares[0].core, shares[0].memory_mib)
            sums[0] += core
            sums[1] += memory
            if may_go:
                sums[2] = max(sums[2], core)
                sums[3] = max(sums[3], memory)
    if not takeable or piece is None:
        return _UNLIMITED + 1
    if piece.whole or len(demand.pieces) > 1 or (demand.takes_slices and any(gpu.mig for gpu in node.gpus)):
        return 1
    bounds = (
        max(
            1,
            _times(piece.core + core - CORES_PER_GPU, most_core),
            _times(piece.memory_mib + memory - gpu.memory_mib, most_memory),
        )
        for gpu, (core, memory, most_core, most_memory) in zip(node.gpus, held.values(), strict=True)
    )
    return min(bounds, default=_UNLIMITED + 1)


def _times(need: int, each: int) -> int:
    """Return how many of `each` make up `need`."""
    if need <= 0:
        return 0
    return -(-need // each) if each else _UNLIMITED + 1


def _takeable(tenant: Tenant, demand: Demand, rank: int) -> bool:
    is_friend = bool(demand.affinity) and tenant.hold.affinity == demand.affinity
    return tenant.rank is not None and tenant.rank <= rank and not is_friend


@dataclass(frozen=True)
class _Target:
    """A GPU, or a MIG slice, on which a part of the demand may go."""

    uuid: str
    memory_mib: int
    mig: MigRow | None = None


class _NodeSearch:
    """The search for victims on one node, up to one rank."""

    def __init__(self, demand: Demand, node: NodeGpus, has_friends: bool, rank: int, budget: StepBudget) -> None:
        self.demand = demand
        self.has_friends = has_friends
        self.budget = budget
        self.gpus = list(_targets(node.gpus, demand))
        self.tenants = {t.uid: t for t in node.tenants}
        self.takeable = {t.uid for t in node.tenants if _takeable(t, demand, rank)}
        # Computed once, because the search asks for it at each step: who is on a GPU, and who must go for which piece.
        self.on = {g.uuid: [t for t in node.tenants if any(s.uuid == g.uuid for s in t.hold.shares)] for g in self.gpus}
        self.must_go = {g.uuid: {w: self._must_go(g, whole=w) for w in (False, True)} for g in self.gpus}

    def fewest(self, most: int) -> tuple[str, ...] | None:
        """Return the smallest set of victims, at most `most`."""
        best: tuple[str, ...] | None = None
        for targets in self._assignments(0, (), frozenset(), most):
            limit = most if best is None else len(best) - 1
            found = self._victims(targets, limit)
            if found is not None:
                best = found
        return best

    def _assignments(
        self, index: int, targets: tuple[int, ...], gone: frozenset[str], most: int
    ) -> Iterator[tuple[int, ...]]:
        """Yield the ways to give each piece a GPU that do not already cost more than `most` pods."""
        pieces = self.demand.pieces
        if index == len(pieces):
            yield targets
            return
        piece = pieces[index]
        # Equal pieces are given GPUs in rising order: the other orders are the same choice.
        first = targets[-1] if index and pieces[index - 1] == piece else 0
        for column in range(first, len(self.gpus)):
            self.budget.steps -= 1
            if self.budget.steps <= 0:
                return
            must_go = self._required(column, piece, targets)
            if must_go is not None and len(gone | must_go) <= most:
                yield from self._assignments(index + 1, (*targets, column), gone | must_go, most)

    def _required(self, column: int, piece: Piece, targets: tuple[int, ...]) -> frozenset[str] | None:
        """Return the pods that must leave a GPU so that a piece can go there, None if it cannot go there at all."""
        gpu = self.gpus[column]
        here = [self.demand.pieces[i] for i, target in enumerate(targets) if target == column]
        if targets and is_slice(gpu.uuid) != is_slice(self.gpus[targets[0]].uuid):
            return None  # a pod is on MIG slices, or on none
        if gpu.mig is not None:
            fits = not here and suits(gpu.mig, self.demand, piece)
        elif piece.whole:
            fits = not here and gpu.memory_mib >= piece.memory_mib
        else:
            together = [*here, piece]
            fits = (
                not any(other.whole for other in here)
                and sum(s.core for s in together) <= CORES_PER_GPU
                and sum(s.memory_mib for s in together) <= gpu.memory_mib
            )
        return self.must_go[gpu.uuid][piece.whole] if fits else None

    def _must_go(self, gpu: _Target, *, whole: bool) -> frozenset[str] | None:
        """Return the pods that a piece cannot share `gpu` with, None if one of them may not be taken."""
        demand, here = self.demand, self.on[gpu.uuid]
        empty = whole or demand.alone or gpu.mig is not None
        if demand.affinity and not whole:
            friends = any(t.hold.affinity == demand.affinity and not _whole(t.hold, gpu.uuid) for t in here)
            if self.has_friends and not friends:
                return None
            empty = empty or not self.has_friends
        going = frozenset(t.uid for t in here if empty or not _company(t.hold, gpu.uuid, demand))
        return going if going <= self.takeable else None

    def _victims(self, targets: tuple[int, ...], most: int) -> tuple[str, ...] | None:
        """Return the fewest victims for one way to place the pieces, at most `most`."""
        gone: set[str] = set()
        wanted: dict[str, tuple[int, int]] = {}
        for piece, column in zip(self.demand.pieces, targets, strict=True):
            uuid = self.gpus[column].uuid
            gone |= self.must_go[uuid][piece.whole] or frozenset()
            if not piece.whole:
                core, memory = wanted.get(uuid, (0, 0))
                wanted[uuid] = (core + piece.core, memory + piece.memory_mib)
        if len(gone) > most:
            return None
        others = sorted(
            {t.uid for uuid in wanted for t in self.on[uuid]} & self.takeable - gone,
            key=lambda uid: (self.tenants[uid].rank, self._gives(uid, wanted), -self.tenants[uid].since_ms, uid),
        )
        more = smallest_cover(
            [self._gives(uid, wanted) for uid in others], self._need(wanted, gone), most - len(gone), self.budget
        )
        return None if more is None else (*sorted(gone), *(others[index] for index in more))

    def _need(self, wanted: dict[str, tuple[int, int]], gone: set[str]) -> tuple[int, ...]:
        """Return what is still short on the GPUs of `wanted`, compute and memory of each, once `gone` are gone."""
        need: list[int] = []
        for gpu in self.gpus:
            if gpu.uuid not in wanted:
                continue
            held = [_held(t.hold, gpu.uuid) for t in self.on[gpu.uuid] if t.uid not in gone]
            core, memory = wanted[gpu.uuid]
            need += [core + sum(c for c, _ in held) - CORES_PER_GPU, memory + sum(m for _, m in held) - gpu.memory_mib]
        return tuple(need)

    def _gives(self, uid: str, wanted: dict[str, tuple[int, int]]) -> tuple[int, ...]:
        """Return what a tenant's leaving gives on the GPUs of `wanted`, in the order of `_need`."""
        hold = self.tenants[uid].hold
        return tuple(amount for gpu in self.gpus if gpu.uuid in wanted for amount in _held(hold, gpu.uuid))


def _targets(gpus: Sequence[Gpu], demand: Demand) -> Iterator[_Target]:
    """Yield the GPUs that may carry a part of the demand, and then the MIG slices."""
    for gpu in gpus if demand.mode != MIG else ():
        if gpu.healthy and demand.gpu_uuid in ("", gpu.uuid) and is_wanted(gpu.model, demand.models):
            yield _Target(gpu.uuid, gpu.memory_mib)
    divided = [gpu for gpu in gpus if gpu.mig] if demand.takes_slices else []
    for one in in_order([one for row in gpu_rows(divided, ()) for one in row.mig]):
        if one.mig.healthy and suits(one, demand):
            yield _Target(one.mig.uuid, one.mig.memory_mib, one)


def _company(hold: Hold, uuid: str, demand: Demand) -> bool:
    """Whether a share of the demand may sit beside this pod."""
    if hold.alone or _whole(hold, uuid):
        return False
    foe = bool(demand.anti_affinity) and hold.anti_affinity == demand.anti_affinity
    return not foe and hold.exclusion == demand.exclusion


def _whole(hold: Hold, uuid: str) -> bool:
    return any(share.whole for share in hold.shares if share.uuid == uuid)


def _held(hold: Hold, uuid: str) -> tuple[int, int]:
    shares = [share for share in hold.shares if share.uuid == uuid]
    return sum(share.core for share in shares), sum(share.memory_mib for share in shares)
