# SPDX-License-Identifier: Apache-2.0
"""Read the records of pods that were released by hand without a timekeeper (`check --break-glass`), and book them.

A record is read like the last event of a watch, so a charge is the same as with a timekeeper. The ledger knows pods by
their UID, so a record can be read again and again. It is deleted when all pods in it are booked.
"""

from __future__ import annotations

import logging
from collections.abc import Collection

from slicekeeper import names
from slicekeeper.errors import Forbidden, NotFound, ServiceError
from slicekeeper.kube import break_glass_record
from slicekeeper.kube.client import CONFIG_MAPS, KubeClient, Object
from timekeeper.cluster.watches import ClusterNodes, Pods

log = logging.getLogger(__name__)


class ReleasedPods:
    """The records in one namespace; used only by the leading controller."""

    def __init__(self, client: KubeClient, namespace: str, pods: Pods, nodes: ClusterNodes) -> None:
        self._client = client
        self._namespace = namespace
        self._pods = pods
        self._nodes = nodes
        self._open: dict[str, set[str]] = {}
        """UIDs that are not settled yet, by ConfigMap."""

    def gone(self) -> dict[str, Object]:
        """Return the recorded pods that are gone, each in its last state, by UID.

        Raises ServiceError if the API server does not answer: then vanished pods must not be closed by a guess.
        """
        newest: dict[str, Object] = {}
        self._open = {}
        for config_map in self._listed():
            name = config_map["metadata"]["name"]
            try:
                record = break_glass_record.read(config_map)
            except ValueError as error:
                log.error("configmap %s: the record of released pods cannot be read: %s", name, error)
                continue
            for node in record.nodes:
                if self._nodes.device_labels(node["metadata"]["name"]) is None:
                    self._nodes.on_event("ADDED", node)
            # A pod that still exists was not released, or has another finalizer: the watch shows it.
            missing = {
                pod["metadata"]["uid"]: pod for pod in record.pods if self._pods.find(pod["metadata"]["uid"]) is None
            }
            self._open[name] = set(missing)
            for uid, pod in missing.items():
                if uid not in newest or break_glass_record.version_of(pod) >= break_glass_record.version_of(
                    newest[uid]
                ):
                    newest[uid] = pod
        return {uid: _without_finalizer(pod) for uid, pod in newest.items()}

    def settle(self, settled: Collection[str]) -> None:
        """Delete the records whose pods are all settled."""
        for name, unsettled in list(self._open.items()):
            unsettled.difference_update(settled)
            if unsettled:
                continue
            try:
                self._client.delete(CONFIG_MAPS, name, self._namespace)
            except NotFound:
                pass
            except ServiceError as error:
                log.warning("configmap %s: all its pods are booked, but it cannot be deleted: %s", name, error)
            log.info("configmap %s: all released pods in it are booked", name)
            del self._open[name]

    def _listed(self) -> list[Object]:
        try:
            return self._client.list(
                CONFIG_MAPS, namespace=self._namespace, label_selector=f"{break_glass_record.LABEL}=true"
            )[0]
        except NotFound:
            return []
        except Forbidden as error:
            log.error("records of pods that were released by hand cannot be read, apply the manifests again: %s", error)
            return []


def _without_finalizer(pod: Object) -> Object:
    metadata = pod["metadata"]
    kept = [finalizer for finalizer in metadata.get("finalizers") or [] if finalizer != names.FINALIZER]
    return {**pod, "metadata": {**metadata, "finalizers": kept}}
