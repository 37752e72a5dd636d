# SPDX-License-Identifier: Apache-2.0
"""The status of a GpuPolicy: whether it is in force, for how many namespaces, and which other one overrides it."""

from __future__ import annotations

from objects.conditions import READY, condition
from objects.status_writes import worth_writing
from slicekeeper.config.policy_objects import AppliedPolicies, matches_of, read
from slicekeeper.kube.client import Object
from slicekeeper.units import Instant


def status_of(obj: Object, applied: AppliedPolicies, namespaces: int, now: Instant) -> Object | None:
    """Return the status as a merge patch; None if the current one may stay.

    `namespaces` is the number of namespaces that follow the object.
    """
    status, reason, message = _judged(obj, applied)
    new = {
        "namespaces": namespaces,
        "observedGeneration": obj["metadata"]["generation"],
        "conditions": [condition(obj, READY, status, reason, message, now)],
    }
    return worth_writing(obj, new, ("namespaces",), now)


def _judged(obj: Object, applied: AppliedPolicies) -> tuple[str, str, str]:
    uid = obj["metadata"]["uid"]
    if uid in applied.errors:
        return "False", "SpecInvalid", f"{applied.errors[uid]}; until then the object is ignored"
    matches = matches_of(read(obj))
    holders = ((match, applied.holders[match]) for match in matches)
    taken = [f"GpuPolicy {holder.name} has {match}" for match, holder in holders if holder.uid != uid]
    older = f"{', '.join(taken)}: the older one applies"
    if len(taken) == len(matches):
        return "False", "Taken", older
    if taken:
        return "True", "PartlyTaken", older
    return "True", "InForce", "namespaces follow this spec"
