# SPDX-License-Identifier: Apache-2.0
"""Remedies for an installation, as commands that apply the chart again: by Helm, or rendered and applied by kubectl."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True)
class Remedy:
    """Apply the chart again, with more values, after something else, or with more to know."""

    values: str = ""
    before: str = ""
    note: str = ""

    def by(self, upgrade: str) -> str:
        """Return the remedy for an installation, by the command that `upgrade_of` returned."""
        command = upgrade.replace(_VALUES, f" {self.values}" if self.values else "")
        return f"{f'{self.before}; ' if self.before else ''}{command}{self.note}"


Finding = tuple[str, Remedy | str]
"""A problem, and its remedy."""

_VALUES: Final = " [MORE]"
"""Placeholder for more values in the command that applies the chart again."""

APPLY: Final = Remedy()
REGISTRY: Final = Remedy("--set images.registry=REGISTRY")
POLICY: Final = Remedy(before="correct the value `policy`, docs/policy.md")
KUBE_SCHEDULER: Final = Remedy("--set kubeScheduler.version=VERSION", note="; VERSION is that of the API server")


def component(value: str, before: str = "") -> Remedy:
    """Return how a component is added."""
    return Remedy(f"--set components.{value}=true", before)


def upgrade_of(workloads: Iterable[dict[str, Any] | None], namespace: str) -> str:
    """Return the command that applies the chart again, with a placeholder for more values."""
    for workload in filter(None, workloads):
        metadata = workload.get("metadata") or {}
        release = (metadata.get("annotations") or {}).get("meta.helm.sh/release-name")
        if release and (metadata.get("labels") or {}).get("app.kubernetes.io/managed-by") == "Helm":
            return f"helm upgrade {release} manifests/chart -n {namespace} --reset-then-reuse-values{_VALUES}"
    return (
        f"helm template slicekeeper manifests/chart -n {namespace} --values VALUES.yaml{_VALUES} "
        "| kubectl apply --server-side -f -"
    )


def text_of(remedy: Remedy | str, upgrade: str) -> str:
    """Return a remedy for an installation."""
    return remedy if isinstance(remedy, str) else remedy.by(upgrade)
