# SPDX-License-Identifier: Apache-2.0
"""Read what a container needs to use a GPU from the CDI specification that NVIDIA's tools wrote for this machine.

The seat's own specification carries a copy: a seat's GPUs are known only when its container starts, too late to name
NVIDIA's devices to kubelet.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

import msgspec
import yaml

from nodeagent.seat_refused import SeatRefused
from slicekeeper import typed_json
from slicekeeper.gpu.inventory import is_slice

log = logging.getLogger(__name__)

KIND: Final = "nvidia.com/gpu"
OLDEST_VERSION: Final = "0.6.0"
"""The oldest CDI version that has everything we write, so containerd 1.7 accepts it."""

MAKE_ONE: Final = "make one by `nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml`"

Index = int | str
"""The driver's number of a GPU; of a MIG slice the GPU's and its own, such as `0:1`."""

_Content = dict[str, list[dict[str, Any] | str | int] | dict[str, Any] | None]


def own_files(kind: str) -> str:
    """Return the beginning of the names of the files with our own devices of this CDI kind."""
    return kind.replace("/", "-") + "-"


@dataclass(frozen=True)
class Edits:
    """CDI container edits, and the version of CDI that has all of them."""

    content: dict[str, list[Any]] = field(default_factory=dict)
    version: str = OLDEST_VERSION


class Devices(Protocol):
    """Where devices for containers come from."""

    def edits(self, gpus: Sequence[tuple[Index, str]]) -> Edits:
        """Return what makes these GPUs, by index and UUID, usable; raises SeatRefused with what is missing."""


class _CdiDevice(msgspec.Struct):
    name: str
    containerEdits: _Content | None = None  # noqa: N815 - CDI's name


class _Spec(msgspec.Struct):
    kind: str
    cdiVersion: str = OLDEST_VERSION  # noqa: N815 - CDI's name
    devices: list[_CdiDevice] | None = None
    containerEdits: _Content | None = None  # noqa: N815 - CDI's name


class HostCdi:
    """NVIDIA's specification in one of the folders where container runtimes look; a later folder goes first."""

    def __init__(self, folders: Sequence[Path], own: tuple[str, ...] = ()) -> None:
        """Look in these folders, but skip files with names that begin like one of `own`."""
        self._folders = folders
        self._own = own
        self._reading = threading.Lock()
        """Held while a file is read: containers that start together read it once."""
        self._read: dict[Path, tuple[tuple[int, int], _Spec | None]] = {}

    def edits(self, gpus: Sequence[tuple[Index, str]]) -> Edits:
        """Return the edits of these GPUs, by index and UUID, and those that any of them needs.

        Raises SeatRefused if the specification, or a GPU in it, is missing.
        """
        found: list[Edits] = []
        for index, uuid in gpus:
            for spec in self._specs():
                device = _device(spec, (uuid, str(index), f"{'mig' if is_slice(uuid) else 'gpu'}{index}"))
                if device is not None:
                    found += [_edits(spec.containerEdits, spec), _edits(device.containerEdits, spec)]
                    break
            else:
                where = " or ".join(map(str, self._folders))
                again = ", after each change of MIG slices" if is_slice(uuid) else ""
                raise SeatRefused(f"no CDI specification of {KIND} in {where} has GPU {uuid}; {MAKE_ONE}{again}")
        return joined(found)

    def _specs(self) -> Iterator[_Spec]:
        for folder in reversed(self._folders):
            for file in sorted(folder.glob("*")):
                if file.suffix in (".json", ".yaml", ".yml") and not file.name.startswith(self._own):
                    spec = self._load(file)
                    if spec is not None and spec.kind == KIND:
                        yield spec

    def _load(self, file: Path) -> _Spec | None:
        """Return a file's content; None if it is gone or damaged: container runtimes skip it too."""
        with self._reading:
            try:
                stat = file.stat()
                mark = (stat.st_mtime_ns, stat.st_ino)
                if file not in self._read or self._read[file][0] != mark:
                    self._read[file] = (mark, _parsed(file))
            except OSError:
                return None
            return self._read[file][1]


def _parsed(file: Path) -> _Spec | None:
    data = file.read_bytes()
    try:
        # If a part is not valid CDI, the whole file is invalid: a container must not start with the rest of it.
        return typed_json.convert(_untyped(data), _Spec)
    # PyYAML passes on Python's errors about impossible values, such as a date in a 13th month.
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        log.warning("%s is passed over, it is no CDI specification: %s", file, error)
        return None


def _untyped(data: bytes) -> Any:
    try:
        return msgspec.json.decode(data)
    except ValueError:  # PyYAML refuses JSON with tabs
        return yaml.safe_load(data)


def joined(parts: Iterable[Edits]) -> Edits:
    """Return all edits as one, none of them twice."""
    content: dict[str, list[Any]] = {}
    version = OLDEST_VERSION
    for part in parts:
        version = max(version, part.version, key=_number)
        for key, values in part.content.items():
            have = content.setdefault(key, [])
            have += [value for value in values if value not in have]
    return Edits(content, version)


def _device(spec: _Spec, names: Sequence[str]) -> _CdiDevice | None:
    devices = {device.name: device for device in spec.devices or ()}
    return next((devices[name] for name in names if name in devices), None)


def _edits(content: _Content | None, spec: _Spec) -> Edits:
    lists = {key: values for key, values in (content or {}).items() if isinstance(values, list)}
    return Edits(lists, spec.cdiVersion)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".") if part.isdecimal())
