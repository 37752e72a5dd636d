# SPDX-License-Identifier: Apache-2.0
"""Keep the last policy file without errors in a ConfigMap, with which every part can start while the file is broken."""

from __future__ import annotations

import logging
from typing import Final

from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import CONFIG_MAPS, KubeClient

log = logging.getLogger(__name__)

NAME: Final = "slicekeeper-accepted-policy"
KEY: Final = "policy.yaml"


class AcceptedPolicy:
    """The ConfigMap in one namespace; used only by the leading controller."""

    def __init__(self, client: KubeClient, namespace: str, policy: PolicyFile) -> None:
        self._client = client
        self._namespace = namespace
        self._policy = policy
        self._written = ""

    def keep(self) -> None:
        """Write the text of the file in force, if it has changed; try again at the next call if that fails."""
        text = self._policy.text
        if text == self._written:
            return
        try:
            self._write(text)
        except ServiceError as error:
            log.warning("configmap %s: the accepted policy cannot be kept: %s", NAME, error)
        else:
            self._written = text

    def _write(self, text: str) -> None:
        found = self._client.find(CONFIG_MAPS, NAME, self._namespace)
        if found is None:
            metadata = {
                "name": NAME,
                "namespace": self._namespace,
                "labels": {"app.kubernetes.io/part-of": "slicekeeper"},
            }
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {KEY: text}}
            self._client.create(CONFIG_MAPS, body, self._namespace)
        elif found.get("data") != {KEY: text}:
            self._client.replace(CONFIG_MAPS, {**found, "data": {KEY: text}})
