# SPDX-License-Identifier: Apache-2.0
"""Check whether kube-scheduler would allow a pod on a node, as far as the node's own fields show.

For code that acts without kube-scheduler's filters: places for a whole gang, evictions, notices of waiting pods. The
extender itself does not need it, because it is called after those filters. Of CPU and memory only what a node has in
all is considered here: pods that are not ours use them, too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slicekeeper.kube import agent_address
from slicekeeper.untyped_json import as_list, as_map

_BLOCKING: Final = ("NoSchedule", "NoExecute")
_CORDON: Final = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}


@dataclass(frozen=True)
class NodeFacts:
    """The fields of a node that decide which pods it accepts."""

    name: str
    labels: Mapping[str, Any]
    taints: tuple[Mapping[str, Any], ...]
    unschedulable: bool
    agent: str = ""
    """The address of its agent, in the annotation's form."""
    offered: tuple[int, int] | None = None
    """The thousandths of a core and MiB that it has for pods; None if unknown."""

    def has(self, cpu_milli: int, ram_mib: int) -> bool:
        """Whether it would have that much CPU and memory if no pod was there."""
        return self.offered is None or (cpu_milli <= self.offered[0] and ram_mib <= self.offered[1])


def read_node(obj: Mapping[str, Any]) -> NodeFacts:
    """Return the facts of a Node object."""
    metadata, spec = as_map(obj.get("metadata")), as_map(obj.get("spec"))
    return NodeFacts(
        str(metadata.get("name", "")),
        as_map(metadata.get("labels")),
        tuple(as_map(taint) for taint in as_list(spec.get("taints"))),
        spec.get("unschedulable") is True,
        agent_address.of_node(obj),
    )


def admits(node: NodeFacts, pod: Mapping[str, Any]) -> bool:
    """Whether the node accepts the pod: cordon, taints, nodeSelector and required node affinity."""
    return not closed_because(node, pod)


def closed_because(node: NodeFacts, pod: Mapping[str, Any]) -> str:
    """Return why the node does not accept the pod; empty if it does."""
    spec = as_map(pod.get("spec"))
    tolerations = [as_map(entry) for entry in as_list(spec.get("tolerations"))]
    if node.unschedulable and not any(_tolerates(toleration, _CORDON) for toleration in tolerations):
        return "the node is cordoned"
    if any(t.get("effect") in _BLOCKING and not any(_tolerates(x, t) for x in tolerations) for t in node.taints):
        return "the node has a taint that the pod does not tolerate"
    if any(node.labels.get(key) != value for key, value in as_map(spec.get("nodeSelector")).items()):
        return "the pod's nodeSelector excludes the node"
    affinity = as_map(as_map(spec.get("affinity")).get("nodeAffinity"))
    required = affinity.get("requiredDuringSchedulingIgnoredDuringExecution")
    if required and not any(_term(as_map(term), node) for term in as_list(as_map(required).get("nodeSelectorTerms"))):
        return "the pod's required node affinity excludes the node"
    return ""


def fields_judged(pod: Mapping[str, Any]) -> str:
    """Return the fields of a pod that `admits` reads: of two pods with equal ones, a node accepts both or neither."""
    spec = as_map(pod.get("spec"))
    return repr([spec.get(key) for key in ("nodeSelector", "affinity", "tolerations")])


def _tolerates(toleration: Mapping[str, Any], taint: Mapping[str, Any]) -> bool:
    key, effect = toleration.get("key"), toleration.get("effect")
    if effect and effect != taint.get("effect"):
        return False
    if toleration.get("operator") == "Exists":
        return not key or key == taint.get("key")
    if toleration.get("operator") not in (None, "", "Equal") or key != taint.get("key"):
        return False
    return (toleration.get("value") or "") == (taint.get("value") or "")


def has_preferences(pod: Mapping[str, Any]) -> bool:
    """Whether a pod prefers some of the nodes that it may use: by affinity, anti-affinity or a soft spread."""
    spec = as_map(pod.get("spec"))
    preferred = "preferredDuringSchedulingIgnoredDuringExecution"
    spread = map(as_map, as_list(spec.get("topologySpreadConstraints")))
    return any(as_map(kind).get(preferred) for kind in as_map(spec.get("affinity")).values()) or any(
        constraint.get("whenUnsatisfiable") == "ScheduleAnyway" for constraint in spread
    )


def selects(selector: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    """Whether a label selector holds for labels; an empty one always does."""
    return all(labels.get(key) == value for key, value in as_map(selector.get("matchLabels")).items()) and all(
        _matches(as_map(entry), labels) for entry in as_list(selector.get("matchExpressions"))
    )


def _term(term: Mapping[str, Any], node: NodeFacts) -> bool:
    """Whether one selector term holds; an empty one never does."""
    labels, fields = as_list(term.get("matchExpressions")), as_list(term.get("matchFields"))
    if not labels and not fields:
        return False
    named = {"metadata.name": node.name}
    return all(_matches(as_map(entry), node.labels) for entry in labels) and all(
        _matches(as_map(entry), named) for entry in fields
    )


def _matches(expression: Mapping[str, Any], labels: Mapping[str, Any]) -> bool:
    key, values = str(expression.get("key")), as_list(expression.get("values"))
    there, value = key in labels, labels.get(key)
    test: Callable[[], bool] | None = {
        "In": lambda: there and value in values,
        "NotIn": lambda: not there or value not in values,
        "Exists": lambda: there,
        "DoesNotExist": lambda: not there,
        "Gt": lambda: there and _number(value) > _number(values[0]),
        "Lt": lambda: there and _number(value) < _number(values[0]),
    }.get(str(expression.get("operator")))
    try:
        return test is not None and test()
    except (ValueError, IndexError):
        return False


def _number(value: object) -> int:
    return int(str(value))
