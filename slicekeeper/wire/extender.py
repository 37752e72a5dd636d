# SPDX-License-Identifier: Apache-2.0
"""The kube-scheduler extender's wire types (`k8s.io/kube-scheduler/extender/v1`), with its PascalCase names."""

from typing import TypedDict


class MetaPod(TypedDict):
    """A pod, by its UID alone."""

    UID: str


class MetaVictims(TypedDict):
    """The pods that kube-scheduler would evict on one node; no node may have none."""

    Pods: list[MetaPod]
    NumPDBViolations: int


class PreemptionResult(TypedDict):
    """What `preempt` answers: the nodes on which evicting helps. Only the HTTP status says that something failed."""

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
