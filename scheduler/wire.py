# SPDX-License-Identifier: Apache-2.0
"""Decodes and encodes what kube-scheduler's extender client sends and takes.

Go decodes field names without regard to case and writes unset pointers as null; so do we. What is wrong is told in
words.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from slicekeeper.errors import SlicekeeperError
from slicekeeper.wire.extender import BindingArgs, BindingResult, FilterResult


class BadRequest(SlicekeeperError):
    """The body is not what kube-scheduler sends; the message says what is wrong with it."""

    code = "extender-request-invalid"


def _fields(body: bytes) -> Mapping[str, Any]:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise BadRequest(f"the body is a JSON {type(decoded).__name__}, not an object")
    return {key.lower(): value for key, value in decoded.items()}


def decode_args(body: bytes) -> tuple[dict[str, Any], list[str]]:
    """Return the pod and the nodes' names of a filter or prioritize call."""
    fields = _fields(body)
    pod, names = fields.get("pod"), fields.get("nodenames")
    if not isinstance(pod, dict):
        raise BadRequest("Pod is missing or no object")
    if names is None and fields.get("nodes") is not None:
        raise BadRequest("Nodes came instead of NodeNames: set nodeCacheCapable: true for this extender")
    names = [] if names is None else names
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise BadRequest("NodeNames is no list of strings")
    return pod, list(dict.fromkeys(names))


def decode_binding(body: bytes) -> BindingArgs:
    """Return the arguments of a bind call."""
    fields = _fields(body)
    values: dict[str, str] = {}
    for key in BindingArgs.__annotations__:
        value = fields.get(key.lower())
        if not isinstance(value, str) or not value:
            raise BadRequest(f"{key} is missing or no string")
        values[key] = value
    return BindingArgs(
        PodName=values["PodName"], PodNamespace=values["PodNamespace"], PodUID=values["PodUID"], Node=values["Node"]
    )


def filter_result(
    names: list[str], failed: dict[str, str], unresolvable: dict[str, str], error: str = ""
) -> FilterResult:
    """Return the answer to a filter call."""
    return FilterResult(
        Nodes=None, NodeNames=names, FailedNodes=failed, FailedAndUnresolvableNodes=unresolvable, Error=error
    )


def binding_result(error: str = "") -> BindingResult:
    """Return the answer to a bind call; no error: bound."""
    return BindingResult(Error=error)
