# SPDX-License-Identifier: Apache-2.0
"""Decode the requests of kube-scheduler's extender client, and encode the answers.

Go decodes field names without regard to case and writes unset pointers as null; so do we. Errors are reported as text.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import orjson

from slicekeeper import typed_json
from slicekeeper.errors import SlicekeeperError
from slicekeeper.wire.extender import BindingArgs, MetaPod, MetaVictims

_NAMES: Final = msgspec.json.Decoder(list[str])


class BadRequest(SlicekeeperError):
    """The body is not as kube-scheduler writes it; the message names the error."""


def _fields(body: bytes | bytearray) -> Mapping[str, Any]:
    try:
        decoded = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadRequest(f"the body is not JSON: {error}") from error
    if not isinstance(decoded, dict):
        raise BadRequest(f"the body is a JSON {type(decoded).__name__}, not an object")
    return {key.lower(): value for key, value in decoded.items()}


def _pod(fields: Mapping[str, Any]) -> dict[str, Any]:
    pod = fields.get("pod")
    if not isinstance(pod, dict):
        raise BadRequest("Pod is missing or no object")
    return pod


class _Args(msgspec.Struct):
    """The fields in Go's own spelling."""

    Pod: dict[str, Any]
    NodeNames: msgspec.Raw


_ARGS: Final = msgspec.json.Decoder(_Args)


def decode_args(body: bytes | bytearray) -> tuple[dict[str, Any], bytes]:
    """Return the pod of a filter or prioritize call, and the nodes' names as JSON, not decoded yet."""
    try:
        args = _ARGS.decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _decode_any_args(body)
    names = bytes(args.NodeNames)
    return (args.Pod, names) if names.startswith(b"[") else _decode_any_args(body)


def decode_names(text: bytes) -> list[str]:
    """Return a JSON list of nodes' names."""
    try:
        return _NAMES.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadRequest("NodeNames is no list of strings") from error


def _decode_any_args(body: bytes | bytearray) -> tuple[dict[str, Any], bytes]:
    """Return the same for a body with another spelling, or raise an error."""
    fields = _fields(body)
    pod, names = _pod(fields), fields.get("nodenames")
    if names is None and fields.get("nodes") is not None:
        raise BadRequest("Nodes came instead of NodeNames: set nodeCacheCapable: true for this extender")
    text = orjson.dumps([] if names is None else names)
    decode_names(text)
    return pod, text


def decode_binding(body: bytes | bytearray) -> BindingArgs:
    """Return the arguments of a bind call."""
    fields = _fields(body)
    values = {key: fields.get(key.lower()) for key in BindingArgs.__annotations__}
    for key, value in values.items():
        if not isinstance(value, str) or not value:
            raise BadRequest(f"{key} is missing or no string")
    return typed_json.convert(values, BindingArgs)


def decode_preemption(body: bytes | bytearray) -> tuple[dict[str, Any], dict[str, MetaVictims]]:
    """Return the pod of a preempt call, and for each node the pods that kube-scheduler would evict there."""
    fields = _fields(body)
    pod, nodes = _pod(fields), fields.get("nodenametometavictims")
    if nodes is None and fields.get("nodenametovictims") is not None:
        raise BadRequest("NodeNameToVictims came instead of NodeNameToMetaVictims: set nodeCacheCapable: true")
    nodes = {} if nodes is None else nodes
    if not isinstance(nodes, dict):
        raise BadRequest("NodeNameToMetaVictims is no object")
    return pod, {node: _victims(node, listed) for node, listed in nodes.items()}


def _victims(node: str, listed: object) -> MetaVictims:
    found = {key.lower(): value for key, value in listed.items()} if isinstance(listed, dict) else {}
    pods, violations = found.get("pods"), found.get("numpdbviolations") or 0
    uids = [
        next((value for key, value in pod.items() if key.lower() == "uid"), None) if isinstance(pod, dict) else None
        for pod in (pods if isinstance(pods, list) else [None])
    ]
    if not all(isinstance(uid, str) for uid in uids) or not isinstance(violations, int):
        raise BadRequest(f"NodeNameToMetaVictims[{node}] is no list of victims: Pods, each with its UID")
    return MetaVictims(Pods=[MetaPod(UID=str(uid)) for uid in uids], NumPDBViolations=violations)


def filter_result(names: bytes, failed: bytes = b"{}", unresolvable: bytes = b"{}", error: str = "") -> bytes:
    """Return the answer to a filter call, made of JSON: the nodes that fit, and why others do not.

    On an unresolvable one kube-scheduler does not preempt.
    """
    return b'{"Nodes":null,"NodeNames":%b,"FailedNodes":%b,"FailedAndUnresolvableNodes":%b,"Error":%b}' % (
        names,
        failed,
        unresolvable,
        orjson.dumps(error),
    )
