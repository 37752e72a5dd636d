# SPDX-License-Identifier: Apache-2.0
"""Publish the trusted CAs in a ConfigMap of every namespace, as Kubernetes does with its own (`kube-root-ca.crt`).

Sidecars run in users' namespaces and mount it from there, so a pod that runs for years sees every rotation. The
ConfigMaps belong to the installation's own namespace: the garbage collector deletes them with it.
"""

from __future__ import annotations

import logging
import threading
from typing import Final

from slicekeeper import names
from slicekeeper.errors import ServiceError, Unavailable
from slicekeeper.kube.client import CONFIG_MAPS, NAMESPACES, KubeClient, Object
from slicekeeper.kube.watch import Seen, Watch

log = logging.getLogger(__name__)

LIST_SECONDS: Final = 10.0
"""Timeout for the first list of namespaces."""


class BundlePublisher:
    """Maintains one bundle in all namespaces; `wake` is set when there may be something to do."""

    def __init__(self, client: KubeClient, home: str, wake: threading.Event) -> None:
        self._client = client
        self._home = home
        self._namespaces, self._published = Seen(wake.set), Seen(wake.set)
        self._watches = (
            Watch(client, NAMESPACES, self._namespaces),
            Watch(client, CONFIG_MAPS, self._published, field_selector=f"metadata.name={names.CA_CONFIG_MAP}"),
        )
        self._bundle = b""

    def start(self) -> None:
        """Start to follow namespaces, in daemon threads."""
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """Stop following."""
        for watch in self._watches:
            watch.stop()

    def publish(self, bundle: bytes) -> None:
        """Write a bundle to every namespace that has another one, or none; failed writes are repeated next time.

        Raises Unavailable if the namespaces are not known yet or the API server does not answer.
        """
        self._bundle = bundle
        if not all(watch.synced.wait(LIST_SECONDS) for watch in self._watches):
            raise Unavailable("the namespaces have not been listed yet")
        self.repeat()

    def repeat(self) -> None:
        """Publish the last bundle again: to namespaces that are new, and those in which it was changed."""
        if not self._bundle:
            return
        namespaces = {found["metadata"]["name"]: found for found in self._namespaces.all()}
        wanted = self._config_map(namespaces.get(self._home))
        for name, namespace in namespaces.items():
            found = self._published.find(name, names.CA_CONFIG_MAP)
            if namespace["metadata"].get("deletionTimestamp") or _has(found, wanted):
                continue
            try:
                if found is None:
                    self._client.create(CONFIG_MAPS, wanted, name)
                else:
                    metadata = {**found["metadata"], "ownerReferences": wanted["metadata"]["ownerReferences"]}
                    self._client.replace(CONFIG_MAPS, {**found, "metadata": metadata, "data": wanted["data"]})
            except ServiceError as error:
                if error.status == 0:
                    raise
                # A namespace that is being deleted, a quota, a policy or webhook of others, a ConfigMap that a tenant
                # made immutable: no namespace may delay the others or the servers' certificates.
                log.info("CA not published to namespace %s yet: %s", name, error)

    def _config_map(self, home: Object | None) -> Object:
        owners = []
        if home is not None:
            uid = home["metadata"]["uid"]
            owners = [{"apiVersion": "v1", "kind": "Namespace", "name": self._home, "uid": uid}]
        metadata = {"name": names.CA_CONFIG_MAP, "ownerReferences": owners}
        data = {names.CA_KEY: self._bundle.decode()}
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}


def _has(found: Object | None, wanted: Object) -> bool:
    if found is None:
        return False
    owners = found["metadata"].get("ownerReferences") or []
    return bool(found.get("data") == wanted["data"] and owners == wanted["metadata"]["ownerReferences"])
