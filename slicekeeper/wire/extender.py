# SPDX-License-Identifier: Apache-2.0
"""The kube-scheduler extender's wire types (`k8s.io/kube-scheduler/extender/v1`), with its PascalCase names."""

from typing import TypedDict


class MetaPod(TypedDict):
    """A pod, identified by its UID."""

    UID: str


class MetaVictims(TypedDict):
    """The pods that kube-scheduler would evict on one node; never empty."""

    Pods: list[MetaPod]
    NumPDBViolations: int


class PreemptionResult(TypedDict):
    """The answer of `preempt`: the nodes on which evicting helps. Only the HTTP status reports failures."""

    NodeNameToMetaVictims: dict[str, MetaVictims]


class BindingArgs(TypedDict):
    """The request of `bind`."""

    PodName: str
    PodNamespace: str
    PodUID: str
    Node: str


class BindingResult(TypedDict):
    """The answer of `bind`; an empty error means that the pod is bound."""

    Error: str
