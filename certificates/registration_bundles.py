# SPDX-License-Identifier: Apache-2.0
"""The CAs that the API server trusts when it calls our webhook and our timekeeper.

They are in each webhook of our two configurations, and in our APIService.
"""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode

from certificates.authority import split
from slicekeeper import names
from slicekeeper.kube.client import (
    API_SERVICES,
    JSON_PATCH,
    WEBHOOK_CONFIGURATIONS,
    KubeClient,
    Object,
    Resource,
)

log = logging.getLogger(__name__)

Configurations = list[tuple[Resource, Object]]


def configurations(client: KubeClient, name: str) -> Configurations:
    """Return the existing webhook configurations of this name, and our APIService.

    Raises ServiceError if the API server does not answer or refuses.
    """
    found = []
    for resource, called in (*((kind, name) for kind in WEBHOOK_CONFIGURATIONS), (API_SERVICES, names.API_SERVICE)):
        there = client.find(resource, called)
        if there is None:
            log.warning("no %s named %s yet", resource.plural, called)
        else:
            found.append((resource, there))
    return found


def trusted(found: Configurations) -> list[bytes]:
    """Return every CA in them, each once."""
    bundles = (b64decode(bundle) for _, configuration in found for _, bundle in _bundles(configuration))
    return list(dict.fromkeys(ca for bundle in bundles for ca in split(bundle)))


def trust(client: KubeClient, found: Configurations, bundle: bytes) -> None:
    """Replace every other bundle with this one.

    Raises ServiceError if the API server does not answer or refuses.
    """
    wanted = b64encode(bundle).decode()
    for resource, configuration in found:
        stale = [path for path, written in _bundles(configuration) if written != wanted]
        if stale:
            patch = [{"op": "add", "path": path, "value": wanted} for path in stale]
            name = configuration["metadata"]["name"]
            client.patch(resource, name, patch, content_type=JSON_PATCH)


def _bundles(configuration: Object) -> list[tuple[str, str]]:
    """Return the places of CAs in a configuration, as JSON pointers, with the CAs."""
    if "webhooks" not in configuration:
        return [("/spec/caBundle", str(configuration.get("spec", {}).get("caBundle") or ""))]
    return [
        (f"/webhooks/{index}/clientConfig/caBundle", str(hook["clientConfig"].get("caBundle") or ""))
        for index, hook in enumerate(configuration["webhooks"] or [])
    ]
