# SPDX-License-Identifier: Apache-2.0
"""Gangs of a workload's own pods: whether enough of them can exist at the same time.

A gang with a name may have pods of other workloads too, so nothing is refused for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from slicekeeper import names
from slicekeeper.errors import Violation
from slicekeeper.gpu.request import PodRequest
from slicekeeper.untyped_json import as_map, show


def refusal(workload: Mapping[str, Any], request: PodRequest) -> Iterator[Violation]:
    """Yield why a workload's gang can never be complete, with its field from the workload's root."""
    size, spec = request.gang_size, as_map(workload.get("spec"))
    if not size or request.gang:
        return
    if is_ordered(workload):
        yield _never(
            "spec.podManagementPolicy",
            spec.get("podManagementPolicy"),
            f"a StatefulSet creates each pod when the one before it is ready, so {size} pods never wait together",
            "podManagementPolicy: Parallel",
        )
    job, at = (spec, "spec") if workload.get("kind") == "Job" else _job_of(spec)
    if job and (most := _most_at_once(job)) and most < size:
        key = "completions" if job.get("completions") == most else "parallelism"
        rule = f"at most {most} pods of the Job exist at the same time, and its gang needs {size} before any starts"
        yield _never(f"{at}.{key}", job.get(key), rule, f"{key}: {size}")


def warnings(workload: Mapping[str, Any], request: PodRequest) -> Iterator[str]:
    """Yield what keeps a workload's gang from its start as long as nothing changes."""
    size, replicas = request.gang_size, as_map(workload.get("spec")).get("replicas", 1)
    if size and request.gang and is_ordered(workload):
        yield (
            f"a StatefulSet with podManagementPolicy OrderedReady creates each pod when the one before it is ready, so "
            f"only one of its pods waits for the gang {request.gang} of {size} at a time; use Parallel"
        )
    has_replicas = workload.get("kind") in ("Deployment", "ReplicaSet", "ReplicationController", "StatefulSet")
    if size and not request.gang and has_replicas and isinstance(replicas, int) and 0 < replicas < size:
        yield f"replicas is {replicas} and {names.GANG_SIZE} is {size}: no pod starts until there are {size} replicas"


def is_ordered(workload: Mapping[str, Any]) -> bool:
    """Whether a workload is a StatefulSet that creates its pods one after the other."""
    policy = as_map(workload.get("spec")).get("podManagementPolicy")
    return workload.get("kind") == "StatefulSet" and policy in (None, "", "OrderedReady")


def _job_of(spec: Mapping[str, Any]) -> tuple[Mapping[str, Any], str]:
    """Return the spec of a CronJob's Jobs, and where it is; empty for any other kind."""
    return as_map(as_map(spec.get("jobTemplate")).get("spec")), "spec.jobTemplate.spec"


def _most_at_once(job: Mapping[str, Any]) -> int:
    """Return how many pods a Job has at most at the same time; 0 if it is paused, or what it says is not valid."""
    given = [1 if (parallelism := job.get("parallelism")) is None else parallelism, job.get("completions")]
    numbers = [number for number in given if number is not None]
    return min(numbers) if all(isinstance(number, int) for number in numbers) else 0


def _never(field: str, value: object, rule: str, example: str) -> Violation:
    return Violation(code="gang-never-complete", field=field, value=show(value), rule=rule, example=example)
