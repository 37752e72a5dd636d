# SPDX-License-Identifier: Apache-2.0
"""A pod's demand for a node's GPUs, in the form used for placement: pieces, and affinity rules.

Pure. Labels are valid within their namespace: otherwise a tenant could keep others off a GPU, or get onto one, by
guessing a label.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slicekeeper.gpu.request import GpuRequest, PodRequest
from slicekeeper.names import ADAPTIVE, EXCLUSIVE, MIG, SHARED
from slicekeeper.units import CORES_PER_GPU


@dataclass(frozen=True, slots=True)
class Piece:
    """What a pod places on one GPU: a share for one or more containers, or one whole GPU of a container.

    For a share, `memory_mib` is what it takes; for a whole GPU, the minimum that the GPU must have.
    """

    containers: tuple[str, ...]
    core: int
    memory_mib: int
    whole: bool


@dataclass(frozen=True, slots=True)
class Demand:
    """A pod's pieces in the order in which they are placed, the hardest first, and their affinity rules."""

    pieces: tuple[Piece, ...]
    alone: bool = False
    """No other pod may be on the GPUs, however small the share."""
    affinity: str = ""
    anti_affinity: str = ""
    exclusion: str = ""
    gpu_uuid: str = ""
    models: tuple[str, ...] = ()
    mode: str = SHARED
    may_slice: bool = False
    """Whether its shares may be on MIG slices although it has another mode, if there is no room elsewhere on the
    node."""
    cpu_milli: int = 0
    """The pod's CPU request in thousandths of a core."""
    ram_mib: int = 0
    why: str = ""
    """The reason for this mode, for the annotation."""
    asks: str = field(default="", compare=False)
    """The demand in words, for messages."""

    @property
    def takes_slices(self) -> bool:
        """Whether it may be on MIG slices."""
        return self.may_slice or self.mode == MIG

    @property
    def is_unequal(self) -> bool:
        """Whether its pieces are unequal, so that placing them one by one may fail although all fit."""
        return len({(piece.core, piece.memory_mib, piece.whole) for piece in self.pieces}) > 1

    def mode_on(self, *, slices: bool) -> tuple[str, str]:
        """Return its mode on MIG slices, or elsewhere, and the reason."""
        if slices and self.mode != MIG:
            return MIG, "adaptive, no shared GPU here had room"
        return self.mode, self.why


def scoped(namespace: str, label: str) -> str:
    """Return a label as it is compared: within its namespace; empty stays empty."""
    return f"{namespace}/{label}" if label else ""


def demand_of(request: PodRequest, namespace: str) -> Demand:
    """Return the demand of `request`."""
    shares = [_share(r) for r in request.requests if r.is_fraction]
    mode, why = _mode(request)
    if request.affinity and len(shares) > 1 and mode != MIG:
        # All pods with the label are on one GPU, and so are this pod's own containers.
        names = tuple(name for share in shares for name in share.containers)
        shares = [Piece(names, sum(s.core for s in shares), sum(s.memory_mib for s in shares), whole=False)]
    wholes = [
        Piece((r.container,), CORES_PER_GPU, -(-r.memory_mib // r.gpus), whole=True)
        for r in request.requests
        if not r.is_fraction
        for _ in range(r.gpus)
    ]
    return Demand(
        pieces=(*sorted(wholes, key=lambda s: -s.memory_mib), *sorted(shares, key=lambda s: (-s.core, -s.memory_mib))),
        alone=mode == EXCLUSIVE,
        affinity=scoped(namespace, request.affinity),
        anti_affinity=scoped(namespace, request.anti_affinity),
        exclusion=scoped(namespace, request.exclusion),
        gpu_uuid=request.gpu_uuid,
        models=request.gpu_models,
        mode=mode,
        may_slice=request.sharing == ADAPTIVE and not wholes and bool(shares) and not request.affinity,
        why=why,
        asks=" + ".join(_words(r) for r in request.requests),
    )


def _share(request: GpuRequest) -> Piece:
    return Piece((request.container,), request.core, request.memory_mib, whole=False)


def _mode(request: PodRequest) -> tuple[str, str]:
    if request.sharing != ADAPTIVE:
        return request.sharing, "asked for"
    if request.has_fraction:
        return SHARED, "adaptive, a share was asked for"
    return EXCLUSIVE, "adaptive, whole GPUs were asked for"


def _words(request: GpuRequest) -> str:
    memory = f" with {request.memory_mib} MiB" if request.memory_blocks else ""
    if request.is_fraction:
        return f"{request.core} percent of a GPU{memory}"
    return f"{request.gpus} whole GPU{'s' if request.gpus > 1 else ''}{memory}"
