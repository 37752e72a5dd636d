# SPDX-License-Identifier: Apache-2.0
"""How many pods of a Job have succeeded, also those that were removed since: the Job's own status says it.

The pods of a started gang need no place together again. If its succeeded pods were removed (by hand, with their node,
or by Kubernetes' garbage collector), only their Job knows that they were there.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Iterable, Mapping
from heapq import nsmallest
from itertools import count
from typing import Final

from scheduler.pods import KnownPod
from slicekeeper.clock import Clock
from slicekeeper.errors import ServiceError, Unavailable
from slicekeeper.kube.client import JOBS, KubeClient
from slicekeeper.kube.pod import controller_of
from slicekeeper.untyped_json import as_list, as_map

log = logging.getLogger(__name__)

PAUSE_SECONDS: Final = 5.0
"""How long the answer for one Job counts."""


READS_PER_ROUND: Final = 20
"""How many Jobs are read in a round, and there is one round a second: the gangs wait for it."""

_SECOND_NS: Final = 1_000_000_000
_PAUSE_NS: Final = int(PAUSE_SECONDS * _SECOND_NS)


class JobProgress:
    """The Jobs of waiting pods, read again every few seconds while their gangs lack pods.

    If more are due than a round may read, the namespaces take turns: however many Jobs one of them has, another's next
    one is read as soon as the other namespaces had one each.
    """

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._clock = clock
        self._round_ns = -_SECOND_NS
        self._read_ns: dict[str, int] = {}
        """When each Job was read, by its UID."""
        self._turns: dict[str, int] = {}
        """The number of the last read of a Job of each namespace."""
        self._reads = count(1)

    def succeeded(self, pods: Iterable[KnownPod]) -> dict[str, int]:
        """Return how many pods have succeeded, by the UID of the Job; only of the Jobs that were read now.

        `pods` are those of all gangs that lack some.
        """
        jobs = {pod.controller: (pod.namespace, name) for pod in pods if (name := _job_of(pod))}
        now = self._clock.monotonic_ns()
        if now - self._round_ns < _SECOND_NS:
            return {}
        self._read_ns = {uid: at for uid, at in self._read_ns.items() if uid in jobs}
        found, there = {}, {namespace for namespace, _ in jobs.values()}
        self._turns = {namespace: turn for namespace, turn in self._turns.items() if namespace in there}
        for uid in self._next(jobs, now):
            self._round_ns = now
            namespace, name = jobs[uid]
            self._read_ns[uid], self._turns[namespace] = now, next(self._reads)
            try:
                job = self._client.find(JOBS, name, namespace)
            except ServiceError as error:
                log.warning("job %s/%s cannot be read, so pods of its gang may wait: %s", namespace, name, error)
                if isinstance(error, Unavailable):
                    break  # each further one could take as long
                continue
            if job is not None and as_map(job.get("metadata")).get("uid") == uid:
                found[uid] = _succeeded(job)
        return found

    def _next(self, jobs: Mapping[str, tuple[str, str]], now: int) -> list[str]:
        """Return the UIDs of the Jobs to read in this round."""
        long_ago = -_PAUSE_NS
        due = [uid for uid in jobs if now - self._read_ns.get(uid, long_ago) >= _PAUSE_NS]
        before: Counter[str] = Counter()
        order = []
        for uid in sorted(due, key=lambda uid: self._read_ns.get(uid, long_ago)):
            namespace, _ = jobs[uid]
            order.append((before[namespace], self._turns.get(namespace, 0), uid))
            before[namespace] += 1
        return [uid for *_, uid in nsmallest(READS_PER_ROUND, order)]


def _job_of(pod: KnownPod) -> str:
    """Return the name of the Job that controls a waiting pod; empty if none does."""
    owner = controller_of(pod.waiting or {}) or {}
    return str(owner.get("name") or "") if owner.get("kind") == "Job" else ""


def _succeeded(job: object) -> int:
    """Return the number in a Job's status, with the pods that its controller has yet to count."""
    status = as_map(as_map(job).get("status"))
    counted = status.get("succeeded")
    uncounted = as_list(as_map(status.get("uncountedTerminatedPods")).get("succeeded"))
    return (counted if isinstance(counted, int) else 0) + len(uncounted)
