# SPDX-License-Identifier: Apache-2.0
"""Remedies for an installation, as commands of the tool that installed it: kubectl with an overlay, or Helm."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from slicekeeper.config.chart import component_value

_UPGRADE: Final = "UPGRADE"
"""Placeholder for the command that applies the chart again."""


@dataclass(frozen=True)
class Remedy:
    """One remedy in two ways."""

    by_kubectl: str
    by_helm: str

    def after(self, command: str) -> Remedy:
        """Return this remedy with a command before it."""
        return Remedy(f"{command}; {self.by_kubectl}", f"{command}; {self.by_helm}")


Finding = tuple[str, Remedy | str]
"""A problem, and its remedy."""

APPLY: Final = Remedy("apply your overlay again: kubectl apply -k OVERLAY", _UPGRADE)
RENDER: Final = Remedy(
    "slicekeeper config manifests, then apply the overlay",
    f"slicekeeper config manifests; slicekeeper config chart; {_UPGRADE}",
)
REGISTRY: Final = Remedy(
    "set images.registry in manifests/base/config/config.yaml; slicekeeper config manifests; apply the overlay",
    f"{_UPGRADE} --set images.registry=REGISTRY",
)
POLICY: Final = Remedy(
    "correct the policy file of your overlay, and apply it: docs/policy.md",
    f"correct the value `policy`, docs/policy.md; {_UPGRADE}",
)
KUBE_SCHEDULER: Final = Remedy(
    "set its newTag in manifests/base/kustomization.yaml, and apply the overlay",
    f"{_UPGRADE}, which takes the API server's version unless kubeScheduler.version is set",
)


def component(name: str) -> Remedy:
    """Return how a component is added."""
    return Remedy(
        f"add manifests/components/{name} to your overlay, and apply it",
        f"{_UPGRADE} --set components.{component_value(name)}=true",
    )


def upgrade_of(workloads: Iterable[dict[str, Any] | None], namespace: str) -> str:
    """Return the command that applies the chart again; empty if it was not installed by Helm."""
    for workload in filter(None, workloads):
        metadata = workload.get("metadata") or {}
        release = (metadata.get("annotations") or {}).get("meta.helm.sh/release-name")
        if release and (metadata.get("labels") or {}).get("app.kubernetes.io/managed-by") == "Helm":
            return f"helm upgrade {release} manifests/chart -n {namespace} --reset-then-reuse-values"
    return ""


def text_of(remedy: Remedy | str, upgrade: str) -> str:
    """Return a remedy for an installation, by the command that `upgrade_of` returned."""
    if isinstance(remedy, str):
        return remedy
    return remedy.by_helm.replace(_UPGRADE, upgrade) if upgrade else remedy.by_kubectl
