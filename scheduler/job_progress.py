# SPDX-License-Identifier: Apache-2.0
"""How many pods of a Job have succeeded, also those that were removed since: the Job's own status says it.

The pods of a started gang need no place together again. If its succeeded pods were removed (by hand, with their node,
or by Kubernetes' garbage collector), only their Job knows that they were there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

from scheduler.pods import Pod
from slicekeeper.clock import Clock
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import JOBS, KubeClient
from slicekeeper.kube.pod import controller_of
from slicekeeper.untyped_json import as_list, as_map

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 5.0
"""How long the answer for one Job counts."""


class JobProgress:
    """The Jobs of waiting pods, read again every few seconds while their gangs lack pods."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._read_ns: dict[str, int] = {}

    def succeeded(self, pods: Iterable[Pod]) -> dict[str, int]:
        """Return how many pods have succeeded, by the UID of the Job; only of the Jobs that were read now."""
        jobs = {pod.controller: (pod.namespace, name) for pod in pods if (name := _job_of(pod))}
        now = self._clock.monotonic_ns()
        due = [uid for uid in jobs if now - self._read_ns.get(uid, -_PAUSE_NS) >= _PAUSE_NS]
        self._read_ns = {uid: at for uid, at in self._read_ns.items() if now - at < _PAUSE_NS}
        found = {}
        for uid in due:
            self._read_ns[uid] = now
            namespace, name = jobs[uid]
            try:
                job = self._client.find(JOBS, name, namespace)
            except ServiceError as error:
                log.warning("job %s/%s cannot be read, so pods of its gang may wait: %s", namespace, name, error)
                continue
            if job is not None and as_map(job.get("metadata")).get("uid") == uid:
                found[uid] = _succeeded(job)
        return found


_PAUSE_NS: Final = int(PAUSE_SECONDS * 1_000_000_000)


def _job_of(pod: Pod) -> str:
    """Return the name of the Job that controls a waiting pod; empty if none does."""
    owner = controller_of(pod.waiting or {}) or {}
    return str(owner.get("name") or "") if owner.get("kind") == "Job" else ""


def _succeeded(job: object) -> int:
    """Return the number in a Job's status, with the pods that its controller has yet to count."""
    status = as_map(as_map(job).get("status"))
    counted = status.get("succeeded")
    uncounted = as_list(as_map(status.get("uncountedTerminatedPods")).get("succeeded"))
    return (counted if isinstance(counted, int) else 0) + len(uncounted)
