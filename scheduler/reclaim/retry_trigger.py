# SPDX-License-Identifier: Apache-2.0
"""Trigger kube-scheduler to retry a pod for which there is room.

kube-scheduler tries a refused pod again when it sees a pod end, and its watch may be ahead of ours: then we refuse the
pod once more. Kubernetes 1.36 tries again at the next event of any kind; 1.30 knows fewer kinds, and on a quiet cluster
the pod stays where it is until all are tried, every five minutes. A change of the pod's own metadata is what
every version takes for a reason. It goes through `pods/status`, which kube-scheduler's account may patch anyway.
"""

from __future__ import annotations

import logging
from collections.abc import Set
from typing import Final

from scheduler.pods import KnownPod
from scheduler.reclaim.back_off import BackOff
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import PODS, KubeClient
from slicekeeper.units import format_instant

log = logging.getLogger(__name__)

LONGEST_PAUSE: Final = 128
"""A pod that is not retried (it may wait for CPU) gets at most one trigger in as many first pauses."""


class RetryTrigger:
    """Triggers a retry of each pod after `pause_seconds`, because most are retried without it, then ever less often."""

    def __init__(self, client: KubeClient, clock: Clock, *, pause_seconds: float) -> None:
        self._client = client
        self._clock = clock
        self._pause_ns = int(pause_seconds * 1_000_000_000)
        self._back_offs: dict[str, BackOff] = {}

    def keep(self, waiting: Set[str]) -> None:
        """Forget all pods but those with these UIDs."""
        self._back_offs = {uid: back_off for uid, back_off in self._back_offs.items() if uid in waiting}

    def trigger(self, pod: KnownPod, *, at_once: bool = False) -> None:
        """Trigger a retry of a pod for which there is room, if that is due, or for the first time.

        Unless `at_once`, a pod that kube-scheduler has not refused yet is left alone: it waits for its first turn.
        """
        if not (at_once or pod.is_refused):
            return
        now = self._clock.monotonic_ns()
        first_ns = now if at_once else now + self._pause_ns
        back_off = self._back_offs.setdefault(pod.uid, BackOff(not_before_ns=first_ns))
        if now < back_off.not_before_ns:
            return
        back_off.times += 1
        back_off.put_off(now, self._pause_ns, LONGEST_PAUSE)
        # The UID cannot be changed: a pod of the same name that was made later is not touched.
        seen = {names.ROOM_SEEN_AT: format_instant(self._clock.now_ms())}
        try:
            patch = {"metadata": {"uid": pod.uid, "annotations": seen}}
            self._client.patch(PODS, pod.name, patch, pod.namespace, subresource="status")
        except ServiceError as error:
            log.info("pod %s was not nudged: %s", pod.key, error)
        else:
            log.info("there is room for pod %s; kube-scheduler is to try it again", pod.key)
