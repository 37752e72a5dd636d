# SPDX-License-Identifier: Apache-2.0
"""Try for `slicekeeper check` whether the API server reaches webhook and timekeeper and trusts their certificates.

Both are called through the API server, so addresses, firewalls, CAs and certificates are all tested at once. The
webhook is called for the dry run of a pod, which is never created.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.errors import NotFound, ServiceError
from slicekeeper.kube.client import PODS, KubeClient, Object

NAMESPACE: Final = "default"
_FAILED: Final = 'failed calling webhook "pods.validate.slicekeeper.io"'
"""The beginning of the API server's message that it got no answer; it has the same for other webhooks."""


_UNAVAILABLE: Final = "service unavailable"
"""Its message about an APIService that is not available, which is reported with its reason elsewhere."""


def unreached(client: KubeClient, namespace: str, resources: Resources) -> Iterator[tuple[str, str]]:
    """Yield which of the two the API server does not reach, with its message."""
    why = _webhook(client, resources)
    if why:
        yield (
            f"the API server gets no answer from the webhook, and refuses GPU pods: {why}",
            _remedy(namespace, "webhook", 8443),
        )
    why = _timekeeper(client)
    if why:
        yield (f"the API server gets no answer from the timekeeper: {why}", _remedy(namespace, "timekeeper", 8444))


def _remedy(namespace: str, part: str, port: int) -> str:
    logs = f"kubectl logs -n {namespace} deployment/"
    return f"x509 or tls: {logs}certificates; a time-out: let the control plane reach port {port}; else {logs}{part}"


def _webhook(client: KubeClient, resources: Resources) -> str:
    """Return why the webhook was not called for a pod; empty if it was, or if that could not be tested."""
    try:
        client.create(PODS, _pod(resources), NAMESPACE, dry_run=True)
    except ServiceError as error:
        # Refused by another check of pods or by the webhook: it is there, or the review did not get as far.
        return _after(str(error), _FAILED) if _FAILED in str(error) else ""
    return ""


def _after(text: str, start: str) -> str:
    return text[text.index(start) :]


def _timekeeper(client: KubeClient) -> str:
    try:
        client.discover(names.API)
    except NotFound:
        return ""  # not installed, which is reported elsewhere
    except ServiceError as error:
        reported = _UNAVAILABLE in str(error) or error.status not in (0, 502, 503, 504)
        return "" if reported else str(error)
    return ""


def _pod(resources: Resources) -> Object:
    """Return a pod that requests a whole GPU, and that Pod Security admits at every level."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "slicekeeper-check", "namespace": NAMESPACE},
        "spec": {
            "restartPolicy": "Never",
            "securityContext": {"runAsNonRoot": True, "runAsUser": 65532, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": "check",
                    "image": "slicekeeper.invalid/check",
                    "resources": {"limits": {resources.core: "100"}},
                    "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                }
            ],
        },
    }
