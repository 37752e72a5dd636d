# SPDX-License-Identifier: Apache-2.0
"""The kube-scheduler extender's wire types (`k8s.io/kube-scheduler/extender/v1`), with its PascalCase names."""

from typing import Any, NotRequired, TypedDict

MAX_SCORE = 10


class ExtenderArgs(TypedDict):
    """What `filter` and `prioritize` get; `Nodes` is null because we declare `nodeCacheCapable`."""

    Pod: dict[str, Any]
    Nodes: NotRequired[dict[str, Any] | None]
    NodeNames: NotRequired[list[str] | None]


class FilterResult(TypedDict):
    """Nodes that fit, and why the others do not. A node in `FailedAndUnresolvableNodes` is not preempted on."""

    Nodes: None
    NodeNames: list[str]
    FailedNodes: dict[str, str]
    FailedAndUnresolvableNodes: dict[str, str]
    Error: str


class HostPriority(TypedDict):
    """The score of one node, 0 to 10."""

    Host: str
    Score: int


class MetaPod(TypedDict):
    """A pod, by its UID alone."""

    UID: str


class MetaVictims(TypedDict):
    """Whom kube-scheduler would evict on one node; no node may have none."""

    Pods: list[MetaPod]
    NumPDBViolations: int


class PreemptionResult(TypedDict):
    """What `preempt` answers: the nodes on which evicting helps. An error is told by the HTTP status alone."""

    NodeNameToMetaVictims: dict[str, MetaVictims]


class BindingArgs(TypedDict):
    """What `bind` gets."""

    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class BindingResult(TypedDict):
    """What `bind` answers; empty: bound."""

    Error: str
