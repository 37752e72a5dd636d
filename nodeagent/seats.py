# SPDX-License-Identifier: Apache-2.0
"""Assign seats: record allocations, and find out at a container's start exactly which container owns a seat.

kubelet's PodResources names the one container that holds a seat's id, so nothing is guessed from the order of arrival.
Independent of gRPC; `device_plugin` passes kubelet's calls on.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

import msgspec

from nodeagent.arbiter_client import ArbiterAway, ArbiterRefused
from nodeagent.booked_gpus import ContainerHold, check_gpus, holds, slice_memory
from nodeagent.gpu_source import GpuList
from nodeagent.node_pods import NodePods, may_start
from nodeagent.seat_files import SeatFiles
from nodeagent.seat_refused import SeatRefused
from nodeagent.seat_store import Seat, SeatStore
from nodeagent.shares import Shares
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.errors import ServiceError
from slicekeeper.gpu.inventory import slices
from slicekeeper.kube.client import Object
from slicekeeper.kube.pod_manifest import sharing_mode

log = logging.getLogger(__name__)

Owner = tuple[str, str, str]
"""Namespace, pod and container."""

POD_SECONDS = 10.0
"""Longest wait for the watch to show a pod that kubelet starts; kubelet gives up on the whole call after 30 s."""


NO_CDI: Final = (
    "the node's container runtime reads no CDI specification, so the container would start without its GPU and its "
    "limits; turn CDI on in the runtime's configuration and restart it, and kubelet tries again: containerd before 2.0 "
    "needs enable_cdi = true (nvidia-ctk runtime configure --runtime=containerd --cdi.enabled), in newer ones it must "
    "not be false"
)


def seat_ids(number: int) -> list[str]:
    """Return the ids of the seats that are offered to kubelet."""
    return [f"seat-{index:04}" for index in range(number)]


class Seats:
    """All seats of the node."""

    def __init__(
        self,
        store: SeatStore,
        files: SeatFiles,
        pods: NodePods,
        source: GpuList,
        resources: Resources,
        owners: Callable[[str], list[Owner]],
        refused: Callable[[Object, str], None],
        shares: Shares,
    ) -> None:
        self._store = store
        self._files = files
        self._pods = pods
        self._source = source
        self._resources = resources
        self._owners = owners
        self._refused = refused
        self._shares = shares
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def restore(self) -> None:
        """Restore the folder of every saved seat: a reboot empties their parent folder."""
        seats = self._store.all()
        for known in seats:
            with self._unless_busy(known) as seat:
                if seat is not None and seat.taken:
                    self._files.make_folder(seat)
        self._files.sweep(seats)

    def tidy(self) -> None:
        """Remove files that are needed only at a container's start, for containers that have been started."""
        for known in self._store.all():
            with self._unless_busy(known) as seat:
                if seat is not None:
                    self._files.tidy(seat)

    def allocate(self, seat_id: str) -> str:
        """Return the CDI device for a seat that kubelet allocates again."""
        with self._locks[seat_id]:
            seat = Seat(id=seat_id, nonce=secrets.token_hex(6))
            before = self._store.put(seat)
            if before is not None:
                self._files.remove(before)  # kubelet allocates an ID again only when its last container is gone
                self._shares.changed()
        return self._files.device(seat)

    def start(self, seat_id: str) -> None:
        """Make the seat ready for a container that is about to start, at each of its starts.

        Raises SeatRefused if the container must not run.
        """
        began = time.monotonic()
        seat = self._store.get(seat_id)
        if seat is None:
            raise SeatRefused(f"seat {seat_id} is not known here; delete the pod, so that it gets a new one")
        owned = seat if seat.taken else self._owned(seat)  # may wait, so the seat is not locked
        with self._locks[seat_id]:
            seat = self._store.get(seat_id)
            if seat is None or seat.name != owned.name:
                raise SeatRefused(f"seat {seat_id} was taken from this container while it was looked at")
            new = not seat.taken
            if new:
                seat = owned
                self._store.put(seat)
                log.info(
                    "seat %s goes to %s/%s, container %s, in %d ms",
                    seat.id,
                    seat.namespace,
                    seat.pod,
                    seat.container,
                    (time.monotonic() - began) * 1000,
                )
            elif seat.gpus and self._files.probe.ignored():
                raise SeatRefused(NO_CDI)
            with self._files.written(seat, new=new):
                try:
                    self._shares.give(seat)
                except (ArbiterAway, ArbiterRefused) as error:
                    raise SeatRefused(f"{error}; kubelet tries again") from error

    def free(self) -> None:
        """Free the seats of pods that are gone from the API server, unless their container is being started."""
        seats = self._store.all()  # read first, so that the pod of each allocated seat is already known
        uids = {pod["metadata"]["uid"] for pod in self._pods.all()}
        for known in seats:
            if known.taken and known.uid not in uids:
                with self._unless_busy(known) as seat:
                    if seat is not None and self._store.drop(known):
                        self._files.remove(known)
                        self._shares.changed()
                        log.info("seat %s of pod %s/%s is free", known.id, known.namespace, known.pod)

    @contextmanager
    def _unless_busy(self, known: Seat) -> Iterator[Seat | None]:
        """Lock a seat; yield what it is now, or None if it is gone, or locked by another.

        An error of the disk is only logged, so that it stops neither the agent nor what is done with other seats.
        """
        lock = self._locks[known.id]
        if not lock.acquire(blocking=False):
            yield None
            return
        try:
            yield self._store.get(known.id)
        except OSError as error:
            log.warning("seat %s is not tidied up: %s", known.id, error)
        finally:
            lock.release()

    def _owned(self, seat: Seat) -> Seat:
        """Return a seat as that of the container that is about to start with it."""
        owners = self._owners(seat.id)
        if len(owners) != 1:
            raise SeatRefused(f"kubelet names {len(owners)} containers for seat {seat.id}, exactly one is needed")
        namespace, name, container = owners[0]
        pod = self._pods.find(namespace, name, POD_SECONDS)
        if pod is not None and self._doubtful(pod, container):
            pod = self._asked(namespace, name)
        if pod is None:
            raise SeatRefused(f"the API server has not shown pod {namespace}/{name} yet; kubelet tries again")
        try:
            hold = self._hold(pod, container)
            if hold.gpus:
                self._check_cdi(pod)
        except SeatRefused as error:
            self._refused(pod, str(error))
            raise
        seat = msgspec.structs.replace(
            seat,
            namespace=namespace,
            pod=name,
            uid=pod["metadata"]["uid"],
            container=container,
            gpus=hold.gpus,
            core=hold.core,
            memory_mib=slice_memory(hold, pod, self._source.gpus(), self._resources),
            limited=hold.limited,
            preload=hold.preload,
            limit=sum(mig.core for uuid, (mig, _) in slices(self._source.gpus()).items() if uuid in hold.gpus),
        )
        return self._shares.as_pod_says(pod, seat)

    def _check_cdi(self, pod: Object) -> None:
        """Raise SeatRefused if a container of the pod would start without what its seat brings.

        Proof comes from the pod itself: kubelet starts it only after the sidecar's container, which has a seat too.
        """
        uid = pod["metadata"]["uid"]
        for seat in self._store.all():
            if seat.uid == uid and seat.container == names.SIDECAR:
                self._files.probe.created(seat.name)
        if self._files.probe.ignored():
            raise SeatRefused(NO_CDI)

    def _doubtful(self, pod: Object, container: str) -> bool:
        """Whether a pod may be one before it of the same name: kubelet can be ahead of our watch.

        A container gets one seat in its pod's life (unless kubelet lost its records), and none once the pod ends.
        """
        uid = pod["metadata"]["uid"]
        seated = any(seat.uid == uid and seat.container == container for seat in self._store.all())
        return seated or not may_start(pod)

    def _asked(self, namespace: str, name: str) -> Object | None:
        try:
            pod = self._pods.ask(namespace, name)
        except ServiceError as error:
            raise SeatRefused(f"the API server does not say which pod {namespace}/{name} is: {error}") from error
        if pod is not None and not may_start(pod):
            raise SeatRefused(f"pod {namespace}/{name} has ended or is being deleted")
        return pod

    def _hold(self, pod: Object, container: str) -> ContainerHold:
        """Return what the container holds, after the second check of its GPUs; the sidecar of a GPU pod holds none."""
        mode = sharing_mode(pod)
        if mode not in ("", names.EXCLUSIVE, names.SHARED, names.MIG):
            raise SeatRefused(
                f"the scheduler chose the mode {mode!r}, which this node's agent does not know: update it"
            )
        held = holds(pod, self._resources)
        if held and container == names.SIDECAR:
            return ContainerHold((), 0, 0)
        hold = held.get(container)
        if hold is None:
            raise SeatRefused(
                f"container {container} has a seat and no GPU: only Slicekeeper's scheduler gives out GPUs; "
                "delete the pod and leave the seat out of its manifest"
            )
        check_gpus(pod, self._pods.all(), self._source.gpus(), self._resources)
        return hold
