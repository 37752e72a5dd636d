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


class BindingArgs(TypedDict):
    """What `bind` gets."""

    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class BindingResult(TypedDict):
    """What `bind` answers; empty: bound."""

    Error: str
