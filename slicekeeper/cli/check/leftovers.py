# SPDX-License-Identifier: Apache-2.0
"""Find what an uninstalled Slicekeeper has left, for `slicekeeper check`: finalizers, gates, GPUs of nodes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slicekeeper import names
from slicekeeper.config.settings import Settings
from slicekeeper.errors import NotFound, ServiceError
from slicekeeper.kube.client import JSON_PATCH, MERGE_PATCH, NODES, PODS, KubeClient, Object, Resource
from slicekeeper.kube.pod import full_name, gate_index, has_finalizer, without_finalizer, without_gate


@dataclass(frozen=True)
class LeftBehind:
    """Something left behind, and the patch that removes it."""

    what: str
    client: KubeClient
    resource: Resource
    obj: Object
    patch: Any

    @property
    def finding(self) -> tuple[str, str]:
        """The problem, and its remedy."""
        return f"{self.what}, and nothing will remove it", "slicekeeper check --repair"

    def strip(self) -> bool:
        """Remove it; return False if it has changed in the meantime, so that another pass is needed."""
        metadata = self.obj["metadata"]
        kind = JSON_PATCH if isinstance(self.patch, list) else MERGE_PATCH
        part = "status" if self.resource == NODES else ""
        try:
            self.client.patch(
                self.resource,
                metadata["name"],
                self.patch,
                metadata.get("namespace", ""),
                content_type=kind,
                subresource=part,
            )
        except NotFound:
            pass  # another was faster
        except ServiceError as error:
            if error.status not in (409, 422):
                raise
            return False
        return True


def left_behind(client: KubeClient, settings: Settings) -> list[LeftBehind]:
    """Return leftovers that only our own parts would remove, in a cluster that no longer has them."""
    resources = settings.resources
    found = []
    for pod in client.list(PODS)[0]:
        if has_finalizer(pod):
            found.append(
                LeftBehind(f"pod {full_name(pod)} still has our finalizer", client, PODS, pod, without_finalizer(pod))
            )
        if gate_index(pod) is not None:
            found.append(
                LeftBehind(f"pod {full_name(pod)} still has our scheduling gate", client, PODS, pod, without_gate(pod))
            )
    gone = {resources.core: None, resources.memory: None}
    for node in client.list(NODES)[0]:
        if names.NODE_GPUS in (node["metadata"].get("annotations") or {}):
            merge = {
                "metadata": {"annotations": dict.fromkeys((names.NODE_GPUS, names.NODE_AGENT, names.NODE_MACHINE))},
                "status": {"capacity": gone, "allocatable": gone},
            }
            found.append(LeftBehind(f"node {node['metadata']['name']} shows GPUs", client, NODES, node, merge))
    return found


def stranded(client: KubeClient, settings: Settings) -> Iterator[tuple[str, str]]:
    """Yield pods that wait for our scheduler, which is gone: a pod's scheduler cannot be changed."""
    for pod in client.list(PODS)[0]:
        spec, ends = pod["spec"], pod["metadata"].get("deletionTimestamp")
        if spec.get("schedulerName") in settings.schedulers and not spec.get("nodeName") and not ends:
            namespace, name = pod["metadata"]["namespace"], pod["metadata"]["name"]
            remedy = f"kubectl delete pod -n {namespace} {name}"
            yield f"pod {full_name(pod)} waits for {spec['schedulerName']}, which is gone", remedy
