# SPDX-License-Identifier: Apache-2.0
"""Whom the API server trusts when it calls our webhook: the CAs in each webhook of our two configurations."""

from __future__ import annotations

import logging
from base64 import b64decode, b64encode
from typing import Final

from certificates.authority import split
from slicekeeper.errors import NotFound
from slicekeeper.kube.client import KubeClient, Object, Resource

log = logging.getLogger(__name__)

KINDS: Final = tuple(
    Resource("/apis/admissionregistration.k8s.io/v1", kind, namespaced=False)
    for kind in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
)


Configurations = list[tuple[Resource, Object]]


def configurations(client: KubeClient, name: str) -> Configurations:
    """Return the configurations of this name that are there.

    Raises ServiceError where the API server does not answer or refuses.
    """
    found = []
    for resource in KINDS:
        try:
            found.append((resource, client.get(resource, name)))
        except NotFound:
            log.warning("no %s named %s yet", resource.plural, name)
    return found


def trusted(found: Configurations) -> list[bytes]:
    """Return every CA in them, each once."""
    bundles = (b64decode(_bundle_of(hook)) for _, configuration in found for hook in _hooks(configuration))
    return list(dict.fromkeys(ca for bundle in bundles for ca in split(bundle)))


def trust(client: KubeClient, found: Configurations, bundle: bytes) -> None:
    """Write the bundle into every webhook that has another one.

    Raises ServiceError where the API server does not answer or refuses.
    """
    wanted = b64encode(bundle).decode()
    for resource, configuration in found:
        stale = [index for index, hook in enumerate(_hooks(configuration)) if _bundle_of(hook) != wanted]
        if stale:
            patch = [
                {"op": "add", "path": f"/webhooks/{index}/clientConfig/caBundle", "value": wanted} for index in stale
            ]
            name = configuration["metadata"]["name"]
            client.patch(resource, name, patch, content_type="application/json-patch+json")


def _hooks(configuration: Object) -> list[Object]:
    return configuration.get("webhooks") or []


def _bundle_of(hook: Object) -> str:
    return str(hook["clientConfig"].get("caBundle", ""))
