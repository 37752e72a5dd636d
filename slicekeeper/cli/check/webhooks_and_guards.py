# SPDX-License-Identifier: Apache-2.0
"""Webhooks, guards and API services that are missing or without effect, for `slicekeeper check`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from slicekeeper import names
from slicekeeper.cli.check.remedies import APPLY, Finding
from slicekeeper.kube.client import API_SERVICES, CONFIG_MAPS, WEBHOOK_CONFIGURATIONS, KubeClient, Object, Resource

_GUARDS: Final = tuple(
    Resource("/apis/admissionregistration.k8s.io/v1", plural, namespaced=False)
    for plural in ("validatingadmissionpolicies", "validatingadmissionpolicybindings")
)
_GUARD_NAMES: Final = (
    "slicekeeper-pod-metadata",
    "slicekeeper-bindings",
    "slicekeeper-timekeeper",
    "slicekeeper-nodes",
    "slicekeeper-scheduler",
    "slicekeeper-other-namespaces",
    "slicekeeper-certificates",
    "slicekeeper-records",
)


def missing(client: KubeClient, namespace: str) -> Iterator[Finding]:
    """Yield what is missing of them, denies nothing, or trusts no CA."""
    look = f"kubectl logs -n {namespace} deployment/certificates"
    for resource in WEBHOOK_CONFIGURATIONS:
        hooks = (client.find(resource, "slicekeeper") or {}).get("webhooks") or []
        if not hooks:
            yield f"{resource.plural} slicekeeper is missing", APPLY
        elif not all((hook.get("clientConfig") or {}).get("caBundle") for hook in hooks):
            yield f"{resource.plural} slicekeeper trusts no CA", look
    if client.find(CONFIG_MAPS, names.CA_CONFIG_MAP, namespace) is None:
        yield f"configmap {names.CA_CONFIG_MAP} is missing: sidecars cannot start", look
    yield from _api(client.find(API_SERVICES, names.API_SERVICE))
    for guard in _GUARD_NAMES:
        policy, binding = (client.find(resource, guard) for resource in _GUARDS)
        denies = "Deny" in ((binding or {}).get("spec") or {}).get("validationActions", [])
        if policy is None or not denies:
            what = "is missing" if policy is None or binding is None else "denies nothing"
            yield f"guard {guard} {what}: editors can change what pods are charged for", APPLY


def present(client: KubeClient) -> tuple[dict[str, Object], dict[str, Object]]:
    """Return the webhooks' configurations and the guards' policies that there are, by name."""
    webhooks = {kind.plural: found for kind in WEBHOOK_CONFIGURATIONS if (found := client.find(kind, "slicekeeper"))}
    return webhooks, {name: found for name in _GUARD_NAMES if (found := client.find(_GUARDS[0], name))}


def _api(service: Object | None) -> Iterator[Finding]:
    what = f"apiservice {names.API_SERVICE}"
    if service is None:
        yield f"{what} is missing: the API server does not offer the timekeeper's API", APPLY
        return
    for condition in (service.get("status") or {}).get("conditions") or []:
        if condition.get("type") == "Available" and condition.get("status") != "True":
            why = condition.get("message") or condition.get("reason")
            yield (
                f"{what} is not available, so no namespace in the cluster can be deleted: {why}",
                f"kubectl get apiservice {names.API_SERVICE} -o yaml; docs/troubleshooting.md",
            )
