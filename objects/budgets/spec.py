# SPDX-License-Identifier: Apache-2.0
"""The request that an object's spec makes of the timekeeper."""

from __future__ import annotations

from typing import Any

from slicekeeper.config.policy import MAX_AMOUNT_MS
from slicekeeper.kube import changed_by
from slicekeeper.kube.client import Object
from slicekeeper.units import MS_PER_HOUR, parse_duration
from slicekeeper.untyped_json import as_map, show


class SpecInvalid(ValueError):
    """A spec that passes the schema but cannot be applied; the message names the field and the value."""


def body_of(obj: Object, seen: str) -> dict[str, Any]:
    """Return the body of the request that reports an object to the timekeeper.

    `seen` is the budget's `object_version` as it was before the object was read, empty if there was no budget. Raises
    SpecInvalid if an amount is not a duration, or more than the ledger can hold.
    """
    metadata, spec = obj["metadata"], as_map(obj.get("spec"))
    body = {
        "uid": metadata["uid"],
        "createdAt": metadata["creationTimestamp"],
        "generation": metadata["generation"],
        "objectVersion": seen,
        "changedBy": changed_by.writer_of(obj),
        "amountMs": _gpu_time(spec, "amount"),
        "period": spec.get("period"),
        "parent": spec.get("parent"),
    }
    body |= {f"{key}Ms": _gpu_time(spec, key) for key in ("credit", "rollover") if key in spec}
    return body | {key: spec[key] for key in ("kind", "timeZone", "anchor") if key in spec}


def _gpu_time(spec: Any, key: str) -> int:
    try:
        amount = parse_duration(str(spec[key]))
    except (KeyError, ValueError) as error:
        raise SpecInvalid(f"spec.{key} is {show(spec.get(key))}: it must be GPU time such as 20h or 1h30m") from error
    if amount > MAX_AMOUNT_MS:  # it might not even fit the wire format
        raise SpecInvalid(f"spec.{key} is {show(spec[key])}: at most {MAX_AMOUNT_MS // MS_PER_HOUR}h can be kept")
    return amount
