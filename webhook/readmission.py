# SPDX-License-Identifier: Apache-2.0
"""Manifests read back from the cluster: remove the pod's node and GPUs, so that it is placed again.

`kubectl get -o yaml | kubectl replace --force -f -` and `kubectl debug --copy-to` send a pod's node and its GPUs, too.
If these were kept, the pod would use GPUs that another pod may have by now; if the manifest were refused, the first
command would lose the pod, because it deletes before it creates. A manifest counts as such if it has our label and our
finalizer or sidecar: writing them by hand gains nothing, because the pod is then placed like any other.
"""

from __future__ import annotations

from typing import Final

from slicekeeper import names
from slicekeeper.kube.objects import Pod
from slicekeeper.wire.json_patch import JsonPatch, escape

WARNING: Final = "the manifest is of a pod that was bound before: it gets a new node and new GPUs, and keeps neither"


def without_former_place(pod: Pod, *, may_name_node: bool) -> JsonPatch:
    """Return the patch that removes the pod's former node and GPUs from its manifest; empty if it has none.

    If users may name a node, a node without GPUs from a Binding is theirs: the pod may have been in an earlier pass. A
    manifest with a status was read back from the cluster, together with its node.
    """
    if not _was_admitted(pod):
        return []
    patch: JsonPatch = [
        {"op": "remove", "path": f"/metadata/annotations/{escape(key)}"}
        for key in pod.metadata.annotations
        if key in names.NEVER_ON_NEW_PODS or key.startswith(names.GPU_PREFIX)
    ]
    read_back = patch or pod.status.phase
    if pod.spec.node_name and (read_back or not may_name_node):
        patch.append({"op": "remove", "path": "/spec/nodeName"})
    return patch


def _was_admitted(pod: Pod) -> bool:
    return pod.metadata.labels.get(names.MANAGED_LABEL) == names.MANAGED_VALUE and (
        names.FINALIZER in pod.metadata.finalizers
        or any(container.name == names.SIDECAR for container in pod.spec.init_containers)
    )
