# SPDX-License-Identifier: Apache-2.0
"""Find NVIDIA's driver as its own installer leaves it, for nodes without NVIDIA's container toolkit.

The toolkit's CDI specification takes precedence: it has more, such as graphics. This is what CUDA programs need: the
GPU's device file, those of the driver, and the libraries of this driver's version. They are mounted where both Debian's
and Red Hat's loaders look without a cache, because no hook renews the container's cache. The node's file system is
mounted in the agent's container at `root`; device files and libraries are named by their places on the node.
"""

from __future__ import annotations

import ctypes
import logging
import platform
import stat
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import pynvml

from nodeagent.host_cdi import Devices, Edits, Index
from nodeagent.mounted_programs import mount
from nodeagent.seat_refused import SeatRefused
from slicekeeper.gpu.inventory import is_slice

log = logging.getLogger(__name__)

_MULTIARCH: Final = f"usr/lib/{platform.machine()}-linux-gnu"
IN_CONTAINER: Final = (f"/{_MULTIARCH}", "/usr/lib64")
"""Where containers find the libraries: Debian's and Red Hat's images."""
FOLDERS: Final = (_MULTIARCH, "usr/lib64", "usr/lib", "usr/local/nvidia/lib64", "home/kubernetes/bin/nvidia/lib64")
"""Where installers put them, the last one that of Google's images."""

CUDA: Final = "libcuda.so"
NVML: Final = "libnvidia-ml.so"
LIBRARIES: Final = (
    CUDA,
    NVML,
    "libcudadebugger.so",
    "libnvidia-gpucomp.so",
    "libnvidia-nvvm.so",
    "libnvidia-nvvm70.so",
    "libnvidia-opencl.so",
    "libnvidia-pkcs11.so",
    "libnvidia-pkcs11-openssl3.so",
    "libnvidia-ptxjitcompiler.so",
    "libnvidia-tileiras.so",
)
OF_ANY_VERSION: Final = ("libnvidia-nvvm.so.4.0.0", "libnvidia-nvvm70.so.4")
"""Libraries that drivers have under these names, without their own version."""
PROGRAM: Final = "usr/bin/nvidia-smi"
PROGRAMS: Final = (PROGRAM, "usr/local/nvidia/bin/nvidia-smi", "home/kubernetes/bin/nvidia/bin/nvidia-smi")
"""Where it is on nodes."""

MIG_MINORS: Final = Path("/proc/driver/nvidia-caps/mig-minors")
"""Where the driver lists the `/dev/nvidia-caps/nvidia-capN` of each MIG slice; the same in all containers."""

DEVICES: Final = ("nvidiactl", "nvidia-uvm")
OPTIONAL_DEVICES: Final = ("nvidia-uvm-tools",)


class PlainDriver:
    """NVIDIA's CDI specification, or without one the driver's own files."""

    def __init__(self, root: Path, specification: Devices, mig_minors: Path = MIG_MINORS) -> None:
        self._root = root
        self._specification = specification
        self._mig_minors = mig_minors

    def edits(self, gpus: Sequence[tuple[Index, str]]) -> Edits:
        """Return what makes these GPUs, by index and UUID, usable; raises SeatRefused with what is missing."""
        try:
            return self._specification.edits(gpus)
        except SeatRefused as missing:
            try:
                return self._made(gpus)
            except SeatRefused as error:
                raise SeatRefused(f"{missing}. Nor do the driver's own files do: {error}") from error

    def _made(self, gpus: Sequence[tuple[Index, str]]) -> Edits:
        found = libraries(self._root)
        if f"{CUDA}.1" not in found:
            where = ", ".join(f"/{folder}" for folder in FOLDERS)
            raise SeatRefused(f"there is no {CUDA}.1 that leads to a driver's version in any of {where}")
        mounts = [
            mount(self._on_node(file), f"{folder}/{name}") for folder in IN_CONTAINER for name, file in found.items()
        ]
        programs = (_resolved(self._root, self._root / place) for place in PROGRAMS)
        if program := next((file for file in programs if file.is_file()), None):
            mounts.append(mount(self._on_node(program), f"/{PROGRAM}"))
        nodes = [self._device(name) for name in DEVICES]
        nodes += [f"/dev/{name}" for name in OPTIONAL_DEVICES if self._is_device(name)]
        nodes += [path for _, uuid in gpus for path in (self._slice(uuid) if is_slice(uuid) else self._whole(uuid))]
        return Edits({"deviceNodes": [{"path": path} for path in dict.fromkeys(nodes)], "mounts": mounts})

    def _whole(self, uuid: str) -> list[str]:
        return [self._device(f"nvidia{_asked(uuid, pynvml.nvmlDeviceGetMinorNumber, _handle(uuid))}")]

    def _slice(self, uuid: str) -> list[str]:
        """Return a MIG slice's device files: its GPU's, and one for each of the two accesses that it consists of."""
        handle = _handle(uuid)
        parent = _asked(uuid, pynvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle, handle)
        gpu = _asked(uuid, pynvml.nvmlDeviceGetMinorNumber, parent)
        instance = f"gpu{gpu}/gi{_asked(uuid, pynvml.nvmlDeviceGetGpuInstanceId, handle)}"
        compute = f"{instance}/ci{_asked(uuid, pynvml.nvmlDeviceGetComputeInstanceId, handle)}"
        try:
            minors = dict(line.split() for line in self._mig_minors.read_text().splitlines())
            caps = [f"nvidia-caps/nvidia-cap{minors[f'{access}/access']}" for access in (instance, compute)]
        except (OSError, ValueError, KeyError) as error:
            which = f"which device files MIG slice {uuid} has"
            raise SeatRefused(f"{self._mig_minors} does not say {which}: {error}") from None
        made = f"`nvidia-modprobe -f /proc/driver/nvidia/capabilities/{instance.replace('/', '/mig/')}"
        return [
            self._device(f"nvidia{gpu}"),
            self._device(caps[0], f"{made}/access`"),
            self._device(caps[1], f"{made}/{compute.rpartition('/')[2]}/access`"),
        ]

    def _device(self, name: str, made_by: str = "`nvidia-modprobe -u -c 0`") -> str:
        if not self._is_device(name):
            raise SeatRefused(f"the node has no device /dev/{name}; {made_by} makes it")
        return f"/dev/{name}"

    def _is_device(self, name: str) -> bool:
        with suppress(OSError):
            return stat.S_ISCHR((self._root / "dev" / name).stat().st_mode)
        return False

    def _on_node(self, file: Path) -> Path:
        return Path("/") / file.relative_to(self._root)


def libraries(root: Path) -> dict[str, Path]:
    """Return the driver's libraries below a node's root, each under all names by which programs load it.

    The driver's version is that of the file to which `libcuda.so.1` leads, and the others are beside the link or that
    file. The first folder from which it leads to one counts.
    """
    for place in FOLDERS:
        cuda = _resolved(root, root / place / f"{CUDA}.1")
        version = cuda.name.removeprefix(f"{CUDA}.")
        if version[:1].isdecimal() and "." in version and cuda.is_file():
            folders = dict.fromkeys((_resolved(root, root / place), cuda.parent))
            there = [file for folder in folders for file in folder.iterdir() if file.name.startswith(LIBRARIES)]
            ends = {file.name: _resolved(root, file) for file in there}
            return {
                name: end
                for name, end in sorted(ends.items())
                if end.is_file() and (end.name.endswith(f".so.{version}") or end.name in OF_ANY_VERSION)
            }
    return {}


def _resolved(root: Path, path: Path) -> Path:
    """Return the file to which a path below `root` leads: links are those of the node, not of the agent."""
    at, rest, links_left = root, list(path.relative_to(root).parts), 40
    while rest:
        part = rest.pop(0)
        try:
            target = (at / part).readlink() if links_left and part != ".." else None
        except OSError:
            target = None
        if target is not None:
            links_left -= 1
            at = root if target.is_absolute() else at
            rest = [*target.parts[target.is_absolute() :], *rest]
        elif part != "..":
            at /= part
        elif at != root:
            at = at.parent
    return at


def _handle(uuid: str) -> Any:
    return _asked(uuid, pynvml.nvmlDeviceGetHandleByUUID, uuid)


def _asked(uuid: str, function: Callable[[Any], Any], of: Any) -> Any:
    try:
        return function(of)
    except pynvml.NVMLError as error:
        raise SeatRefused(f"the driver does not say which device file GPU {uuid} has: {error}") from error


def links(root: Path, folder: Path) -> Path:
    """Make `folder` lead to the libraries that the agent and the arbiter load themselves, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, file in libraries(root).items():
        link = folder / name
        if not link.is_symlink() or link.readlink() != file:
            link.unlink(missing_ok=True)
            link.symlink_to(file)
    return folder


def load(root: Path) -> None:
    """Load the node's NVML, so that the loader finds it under its name. Without one, nothing is done."""
    library: Any = libraries(root).get(f"{NVML}.1")
    if library is not None:
        try:
            ctypes.CDLL(str(library), mode=ctypes.RTLD_GLOBAL)
        except OSError as error:
            log.warning("%s cannot be loaded: %s", library, error)
