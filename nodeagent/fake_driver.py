# SPDX-License-Identifier: Apache-2.0
"""Simulated GPUs: the fake driver of `vcuda/` instead of the machine's, for everything that uses a driver here.

The fake `libnvidia-ml.so.1` is loaded before any code asks for that name, so the loader returns it for every request,
and no other module knows that the GPUs are not real.
"""

from __future__ import annotations

import ctypes
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from nodeagent.host_cdi import Edits, Index
from nodeagent.mounted_programs import mount, ship
from slicekeeper.errors import SettingsError

MODELS: Final[dict[str, int]] = {
    "Tesla-T4": 15360,
    "Tesla-V100-SXM2-32GB": 32768,
    "A10": 23040,
    "A100-SXM4-40GB": 40960,
    "A100-SXM4-80GB": 81920,
    "H100-SXM5-80GB": 81920,
    "H200": 143360,
}
"""Models that can be simulated, with their memory in MiB."""

DEFAULT_MODEL: Final = "A100-SXM4-80GB"
MAX_GPUS: Final = 8
"""The fake driver's limit."""

FOLDER: Final = "/usr/lib/x86_64-linux-gnu"
WORLD: Final = "/run/slicekeeper-fake/world"

LIBRARY: Final = "fake/libnvidia-ml.so.1"

_PROFILE: Final = r"(?:[1-7]c\.)?[1-7]g\.[1-9][0-9]{0,2}gb"
_PROFILES: Final = re.compile(rf"{_PROFILE}(?:\+{_PROFILE}){{0,6}}")


@dataclass(frozen=True)
class FakeGpus:
    """A number of GPUs of one model."""

    count: int
    model: str
    mig: str = ""
    """The MIG slices of the first GPU, then those of the next, and so on, as `parse` takes them."""

    def environ(self, node: str, world: Path) -> dict[str, str]:
        """Return the variables with which the fake driver creates them; `world` is the file that all processes share.

        The UUIDs are the same at every start of the same node.
        """
        prefix = "SLICEKEEPER_FAKE_"
        return {
            f"{prefix}WORLD": str(world),
            f"{prefix}GPUS": str(self.count),
            f"{prefix}MEMORY": f"{MODELS[self.model]}M",
            f"{prefix}MODEL": self.model,
            f"{prefix}NODE": node,
            f"{prefix}MIG": self.mig,
        }


def parse(text: str) -> FakeGpus:
    """Parse `N`, `N:MODEL` or `N:MODEL:SLICES`.

    Slices are those of the first GPU, `+` between them, then those of the next after a `/`: `3g.40gb+4g.40gb/7g.80gb`.
    Raises SettingsError naming what is allowed.
    """
    count, _, rest = text.partition(":")
    model, _, mig = rest.partition(":")
    if not (count.isascii() and count.isdecimal() and len(count) <= 3):
        raise SettingsError(f"nodeAgent.fakeGpus is {text!r}: it must be N or N:MODEL, for example 4:{DEFAULT_MODEL}")
    if not 1 <= int(count) <= MAX_GPUS:
        raise SettingsError(f"nodeAgent.fakeGpus is {text!r}: there can be 1 to {MAX_GPUS} of them, for example 4")
    if model and model not in MODELS:
        raise SettingsError(f"nodeAgent.fakeGpus: unknown model {model!r}; known: {', '.join(MODELS)}")
    divided = mig.split("/") if mig else []
    if len(divided) > int(count) or not all(_PROFILES.fullmatch(profiles) for profiles in divided if profiles):
        raise SettingsError(
            f"nodeAgent.fakeGpus is {text!r}: MIG slices are named by their profiles, + between them and / between the "
            f"GPUs, of which there are {count}; for example {count}:{DEFAULT_MODEL}:3g.40gb+4g.40gb"
        )
    return FakeGpus(int(count), model or DEFAULT_MODEL, mig)


class FakeDevices:
    """Simulated GPUs in containers: the fake driver where loaders look for NVIDIA's, and the file that all share."""

    def __init__(self, programs: Path, folder: Path, world: Path) -> None:
        self._programs = programs
        self._folder = folder
        self._world = world

    def edits(self, gpus: Sequence[tuple[Index, str]]) -> Edits:
        """Return the mounts of the fake driver; containers of any user write its file."""
        if self._world.exists() and self._world.stat().st_mode & 0o666 != 0o666:
            self._world.chmod(0o666)
        libraries = [
            mount(ship((self._programs / "fake" / name).read_bytes(), name, self._folder), f"{FOLDER}/{name}")
            for name in ("libcuda.so.1", "libnvidia-ml.so.1")
        ]
        environ = [f"SLICEKEEPER_FAKE_WORLD={WORLD}", "CUDA_VISIBLE_DEVICES=" + ",".join(uuid for _, uuid in gpus)]
        return Edits({"env": environ, "mounts": [*libraries, mount(self._world, WORLD, "rw", "noexec")]})


def install(text: str, node: str, programs: Path, run_dir: Path) -> Path:
    """Let this process and those that it starts find the fake driver where they look for NVIDIA's.

    Return the file that all processes which use these GPUs share. Raises SettingsError if the fake driver is not there.
    """
    wanted = parse(text)
    library = programs / LIBRARY
    if not library.exists():
        raise SettingsError(
            f"nodeAgent.fakeGpus is {text!r} and there is no fake driver at {library}: `make -C vcuda` builds it into "
            "vcuda/build; name that folder by nodeAgent.programsDir"
        )
    # A file of earlier settings with another kind of GPU is not used.
    world = run_dir / "fake" / "-".join(filter(None, (str(wanted.count), wanted.model, wanted.mig.replace("/", ","))))
    world.parent.mkdir(parents=True, exist_ok=True)
    os.environ.update(wanted.environ(node, world))
    ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
    return world
