# SPDX-License-Identifier: Apache-2.0
"""What a GpuPolicy's status says: whether it holds, for how many namespaces, and which other one comes before it."""

from __future__ import annotations

from typing import Final

from objects.conditions import READY, condition
from objects.status_writes import written_at
from slicekeeper.config.policy_objects import Laid, matches_of, read
from slicekeeper.kube.client import Object
from slicekeeper.units import Instant, format_seconds
from slicekeeper.untyped import as_map

COUNT_MS: Final = 30_000
"""The shortest time between two writes of the number of namespaces alone: every part watches the object."""


def status_of(obj: Object, laid: Laid, namespaces: int, now: Instant) -> Object | None:
    """Return the status to write, as a merge patch has it; None: the one that is there may stay.

    `namespaces` is the number of namespaces that go by the object.
    """
    old = as_map(obj.get("status"))
    status, reason, message = _judged(obj, laid)
    new = {
        "namespaces": namespaces,
        "observedGeneration": obj["metadata"]["generation"],
        "conditions": [condition(obj, READY, status, reason, message, now)],
    }
    changed = [key for key, value in new.items() if old.get(key) != value]
    if not changed or (changed == ["namespaces"] and now - written_at(obj) < COUNT_MS):
        return None
    return {**new, "asOf": format_seconds(now)}


def _judged(obj: Object, laid: Laid) -> tuple[str, str, str]:
    uid = obj["metadata"]["uid"]
    if uid in laid.errors:
        return "False", "SpecInvalid", f"{laid.errors[uid]}; until then the object is ignored"
    matches = matches_of(read(obj))
    holders = ((match, laid.holders[match]) for match in matches)
    taken = [f"GpuPolicy {holder.name} has {match}" for match, holder in holders if holder.uid != uid]
    older = f"{', '.join(taken)}: the older one applies"
    if len(taken) == len(matches):
        return "False", "Taken", older
    if taken:
        return "True", "PartlyTaken", older
    return "True", "InForce", "namespaces follow this spec"
