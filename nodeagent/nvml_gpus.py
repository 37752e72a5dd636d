# SPDX-License-Identifier: Apache-2.0
"""The machine's GPUs, as NVIDIA's management library (NVML) describes them.

A driver may refuse any single query: for a GPU without ECC or one that shares the host's memory, in a virtual machine,
with an older library. A refused query yields None, never an error.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec
import pynvml

from nodeagent.gpu_health_rules import DriverReport, judge, judge_slices, judge_xid
from nodeagent.host_cdi import Devices, Edits, Index
from nodeagent.mig import SliceFound, slices_of
from nodeagent.nvml_call import UNKNOWN, ask
from nodeagent.seat_refused import SeatRefused
from nodeagent.withdrawn_gpus import WithdrawnGpus
from slicekeeper.gpu.inventory import Gpu

log = logging.getLogger(__name__)

_MIB: Final = 1 << 20
_LOST: Final = (pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED)
_CLOSED: Final = (pynvml.NVML_ERROR_UNINITIALIZED, pynvml.NVML_ERROR_DRIVER_NOT_LOADED)


@dataclass
class _NvmlDevice:
    index: int
    handle: Any
    gpu: Gpu
    bus: tuple[int, int, int] | None
    slices: tuple[SliceFound, ...] = ()


class NvmlGpus:
    """The GPUs that NVML lists; none while there is no driver, which may be installed later."""

    def __init__(self, withdrawn: Path, devices: Devices, load: Callable[[], None] = lambda: None) -> None:
        """`load` is called before the library is opened: it may have to be found outside this container."""
        self._withdrawn = WithdrawnGpus(withdrawn)
        self._made = devices
        self._load = load
        self._lock = threading.Lock()
        self._devices: list[_NvmlDevice] = []
        self._troubles: dict[str, str] = {}
        self._left_out: frozenset[str] = frozenset()
        """Slices that were logged as not offered."""
        self._events: Any = None
        self._open = False
        self._logged = ""
        self._driver = ""
        self._pause = threading.Event()
        self._refresh()

    def gpus(self) -> list[Gpu]:
        """Return the GPUs as of the last refresh, in NVML's order."""
        with self._lock:
            return [self._as_seen(device) for device in self._devices]

    def _as_seen(self, device: _NvmlDevice) -> Gpu:
        trouble = self._troubles.get(device.gpu.uuid, "")
        mig = tuple(msgspec.structs.replace(one.of, healthy=one.of.uuid not in self._troubles) for one in device.slices)
        return msgspec.structs.replace(device.gpu, healthy=not trouble, trouble=trouble, mig=mig)

    def indexes(self) -> Mapping[str, Index]:
        """Return NVML's index of each GPU and slice by UUID; a GPU that it does not describe leaves a gap."""
        with self._lock:
            gpus: dict[str, Index] = {device.gpu.uuid: device.index for device in self._devices}
            slices = {one.of.uuid: f"{device.index}:{one.index}" for device in self._devices for one in device.slices}
            return gpus | slices

    def driver(self) -> tuple[str, str]:
        """Return the driver's version and an empty text, or an empty version and why it does not answer."""
        with self._lock:
            return (self._driver, "") if self._open else ("", self._logged or "it does not answer")

    def troubles(self) -> Mapping[str, str]:
        """Return by UUID why a GPU or a MIG slice must not get new containers."""
        with self._lock:
            return dict(self._troubles)

    def look(self, seconds: float) -> None:
        """Wait for an Xid, up to `seconds`, then query the GPUs again."""
        self._wait(seconds)
        self._refresh()

    def samples(self, uuid: str, after_us: int) -> list[tuple[int, int]] | None:
        """Return pairs of an instant in µs and the GPU's utilisation in percent; None if the driver has none.

        It has none for MIG slices.
        """
        handle = self._handle(uuid)
        if handle is None:
            return None
        try:
            kind, found = pynvml.nvmlDeviceGetSamples(handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, after_us)
        except pynvml.NVMLError as error:
            return [] if error.value == pynvml.NVML_ERROR_NOT_FOUND else None
        if kind != pynvml.NVML_VALUE_TYPE_UNSIGNED_INT:
            return None
        # A driver may fill its buffer with samples that have no instant, or with old ones.
        ordered = sorted((sample.timeStamp, min(sample.sampleValue.uiVal, 100)) for sample in found)
        return [sample for sample in ordered if sample[0] > after_us]

    def memory_used(self, uuid: str) -> int | None:
        """Return how many bytes of a GPU's memory are in use; None if unknown."""
        handle = self._handle(uuid)
        if handle is None:
            return None
        memory = _memory(handle)
        return None if memory is None or memory.used == UNKNOWN else int(memory.used)

    def _handle(self, uuid: str) -> Any:
        with self._lock:
            for device in self._devices if self._open else ():
                if device.gpu.uuid == uuid:
                    return device.handle
                for one in device.slices:
                    if one.of.uuid == uuid:
                        return one.handle
        return None

    def edits(self, uuids: Sequence[str]) -> Edits:
        """Return the CDI container edits that make these GPUs usable.

        Raises SeatRefused, which names what is missing.
        """
        index = self.indexes()
        if unknown := [uuid for uuid in uuids if uuid not in index]:
            raise SeatRefused(f"the driver does not list GPU {', '.join(unknown)}; kubelet tries again")
        return self._made.edits([(index[uuid], uuid) for uuid in uuids])

    def _wait(self, seconds: float) -> None:
        if self._events is None:
            self._pause.wait(seconds)
            return
        try:
            event = pynvml.nvmlEventSetWait_v2(self._events, int(seconds * 1000))
        except pynvml.NVMLError as error:
            if error.value != pynvml.NVML_ERROR_TIMEOUT:
                self._pause.wait(seconds)
            return
        why = judge_xid(event.eventData)
        # The driver does not even tell the UUID of a GPU that has fallen off the bus, but its handle is still the same.
        known = (device.gpu.uuid for device in self._devices if _same(device.handle, event.device))
        uuid = next(known, None) or ask(pynvml.nvmlDeviceGetUUID, event.device)
        log.warning("GPU %s: Xid %d%s", uuid, event.eventData, "" if why else ", caused by a program's own error")
        if why and uuid:
            self._withdrawn.add(uuid, why)

    def _refresh(self) -> None:
        if not self._open and not self._begin():
            return
        troubles: dict[str, str] = {}
        slices: list[tuple[SliceFound, ...]] = []
        for device in self._devices:
            there, why = self._look_at(device)
            slices.append(there)
            troubles |= why
        with self._lock:
            self._troubles = troubles
            for device, there in zip(self._devices, slices, strict=True):
                device.slices = there

    def _begin(self) -> bool:
        self._load()
        try:
            pynvml.nvmlInit()
            try:
                count = pynvml.nvmlDeviceGetCount()
            except pynvml.NVMLError:
                pynvml.nvmlShutdown()  # NVML counts openings; while one remains, it does not load another driver
                raise
        except pynvml.NVMLError as error:
            if self._logged != str(error):
                log.warning("no GPU is published: NVML does not answer: %s", error)
                self._logged = str(error)
            return False
        self._logged = ""
        found = [device for index in range(count) if (device := _describe(index)) is not None]
        by_bus = {device.bus: device.gpu.uuid for device in found if device.bus is not None}
        for device, switch in zip(found, _switches(found), strict=True):
            links = _links(device.handle, by_bus)
            device.gpu = msgspec.structs.replace(device.gpu, links=links, pcie_switch=switch)
        self._events = _register(found)
        driver = ask(pynvml.nvmlSystemGetDriverVersion)
        with self._lock:
            self._devices = found
            self._open = True
            self._driver = driver or "unknown"
        log.info("driver %s: GPUs %s", driver, ", ".join(device.gpu.uuid for device in found) or "none")
        return True

    def _look_at(self, device: _NvmlDevice) -> tuple[tuple[SliceFound, ...], dict[str, str]]:
        """Return a GPU's slices, and the troubles of the GPU and its slices by UUID."""
        report = _read_report(device.handle) if self._open else None
        if report is None:
            # The driver was removed while we used it, for example for an upgrade: the next refresh starts over.
            if self._open:
                with suppress(pynvml.NVMLError):
                    pynvml.nvmlShutdown()
            self._open, self._events = False, None
            away = "the driver does not answer"
            return device.slices, dict.fromkeys([device.gpu.uuid, *(one.of.uuid for one in device.slices)], away)
        withdrawn = self._withdrawn.why(device.gpu.uuid)
        why = {device.gpu.uuid: withdrawn or judge(report)}
        slices: tuple[SliceFound, ...] = ()
        if report.mig:
            slices = self._slices(device)
            for uuid in (one.of.uuid for one in slices):
                why[uuid] = withdrawn or self._withdrawn.why(uuid) or judge_slices(report)
        return slices, {uuid: text for uuid, text in why.items() if text}

    def _slices(self, device: _NvmlDevice) -> tuple[SliceFound, ...]:
        slices, left_out = slices_of(device.handle)
        if left_out - self._left_out:
            log.warning(
                "GPU %s: MIG slices %s are not offered: they share their memory with others, or the driver does not "
                "describe them",
                device.gpu.uuid,
                ", ".join(sorted(left_out)),
            )
        self._left_out |= left_out
        return tuple(slices)


def _same(one: Any, other: Any) -> bool:
    """Whether two of NVML's handles, which are pointers, are those of the same GPU."""
    addresses = [ctypes.cast(handle, ctypes.c_void_p).value for handle in (one, other)]
    return addresses[0] == addresses[1]


def _describe(index: int) -> _NvmlDevice | None:
    handle = ask(pynvml.nvmlDeviceGetHandleByIndex, index)
    uuid = ask(pynvml.nvmlDeviceGetUUID, handle) if handle is not None else None
    if not uuid:
        log.warning("GPU %d is left out: the driver does not say which one it is", index)
        return None
    memory = _memory(handle)
    known = memory is not None and memory.total not in (0, UNKNOWN)
    total = memory.total - getattr(memory, "reserved", 0) if known else _host_memory()
    info = ask(pynvml.nvmlDeviceGetPciInfo, handle)
    bus = (info.domain, info.bus, info.device) if info is not None else None
    model = ask(pynvml.nvmlDeviceGetName, handle) or "unknown"
    return _NvmlDevice(index, handle, Gpu(uuid, model, total // _MIB, numa_node=_numa_node(bus)), bus)


def _memory(handle: Any) -> Any:
    """Return NVML's second version, which tells apart what the driver keeps for itself, or the first.

    The driver keeps half a GiB or more, which no program can have; the first version counts that as in use.
    """
    newer = ask(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    return newer if newer is not None else ask(pynvml.nvmlDeviceGetMemoryInfo, handle)


def _host_memory() -> int:
    """Return the machine's memory in bytes: a GPU that does not report its own shares it."""
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _numa_node(bus: tuple[int, int, int] | None) -> int:
    if bus is not None:
        domain, number, device = bus
        with suppress(OSError, ValueError):
            folder = Path("/sys/bus/pci/devices") / f"{domain:04x}:{number:02x}:{device:02x}.0"
            return int((folder / "numa_node").read_text())
    return -1


def _links(handle: Any, by_bus: Mapping[tuple[int, int, int], str]) -> dict[str, int]:
    """Return the number of direct NVLinks to each other GPU, by UUID."""
    found: dict[str, int] = {}
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        active = ask(pynvml.nvmlDeviceGetNvLinkState, handle, link)
        if active is None:
            break
        info = ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link) if active else None
        other = by_bus.get((info.domain, info.bus, info.device)) if info is not None else None
        if other is not None:
            found[other] = found.get(other, 0) + 1
    return found


def _switches(devices: Sequence[_NvmlDevice]) -> list[int]:
    """Return a number for each GPU: equal for GPUs with only PCIe switches between them, −1 for one without others."""
    groups: list[list[int]] = []
    for index, device in enumerate(devices):
        for group in groups:
            level = ask(pynvml.nvmlDeviceGetTopologyCommonAncestor, devices[group[0]].handle, device.handle)
            if level is not None and level <= pynvml.NVML_TOPOLOGY_MULTIPLE:
                group.append(index)
                break
        else:
            groups.append([index])
    shared = [group for group in groups if len(group) > 1]
    number = {index: switch for switch, group in enumerate(shared) for index in group}
    return [number.get(index, -1) for index in range(len(devices))]


def _register(devices: list[_NvmlDevice]) -> Any:
    """Return NVML's set of events for Xids, None if the driver reports none."""
    events = ask(pynvml.nvmlEventSetCreate)
    heard = False
    for device in devices if events is not None else []:
        types = ask(pynvml.nvmlDeviceGetSupportedEventTypes, device.handle) or 0
        if not types & pynvml.nvmlEventTypeXidCriticalError:
            continue
        try:
            pynvml.nvmlDeviceRegisterEvents(device.handle, pynvml.nvmlEventTypeXidCriticalError, events)
            heard = True
        except pynvml.NVMLError as error:
            log.warning("GPU %s: Xids will not be noticed: %s", device.gpu.uuid, error)
    return events if heard else None


def _read_report(handle: Any) -> DriverReport | None:
    """Return the driver's current report on a GPU; None if there is no driver."""
    lost, answers = False, []
    for function, *more in (
        (pynvml.nvmlDeviceGetTotalEccErrors, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC),
        (pynvml.nvmlDeviceGetRemappedRows,),
        (pynvml.nvmlDeviceGetMigMode,),
        (
            pynvml.nvmlDeviceGetMemoryInfo,
        ),  # supported even by a GPU that supports none of the others, unless it is lost
    ):
        try:
            answers.append(function(handle, *more))
        except pynvml.NVMLError as error:
            if error.value in _CLOSED:
                return None
            lost = lost or error.value in _LOST
            answers.append(None)
    uncorrected, rows, mig, _ = answers
    return DriverReport(
        lost=lost,
        mig=None if mig is None else bool(mig[0]),
        mig_next=None if mig is None else bool(mig[1]),
        rows=None if rows is None else (rows[2], rows[3]),
        uncorrected=None if uncorrected == UNKNOWN else uncorrected,
    )
