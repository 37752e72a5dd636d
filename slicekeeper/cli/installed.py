# SPDX-License-Identifier: Apache-2.0
"""What is installed, compared with the settings: for `slicekeeper check`. Names each difference; writes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import yaml

from slicekeeper import manifests
from slicekeeper.cli.config import value_of
from slicekeeper.errors import NotFound, SettingsError
from slicekeeper.kube.client import ACCESS_REVIEWS, CONFIG_MAPS, KubeClient, Object
from slicekeeper.settings import PARTS, UNSET_REGISTRY, Settings, keys

COMPARED: Final = ("resources.", "images.", "webhook.schedulerName")
"""Settings that are in the manifests too."""

RENDER: Final = "slicekeeper config manifests, then apply the overlay"
_NAME_THE_FILE: Final = "slicekeeper --config FILE check, with the settings that are installed"
_KUBE_SCHEDULER: Final = "slicekeeper-kube-scheduler"


def settings_of(
    client: KubeClient,
    namespace: str,
    workloads: Mapping[str, Object | None],
    given: Settings,
    origin: Mapping[str, str],
) -> tuple[Settings, list[tuple[str, str]]]:
    """Return the settings to compare with, and where those that this command was given say something else.

    That is what the installation's own ConfigMap says; what the command was not given is no difference.
    """
    text = _mounted(client, namespace, filter(None, workloads.values()), manifests.CONFIG_MAP, manifests.CONFIG_KEY)
    if text is None:
        return given, []
    try:
        own = manifests.parse(text, f"configmap {manifests.CONFIG_MAP}")
    except SettingsError as error:
        return given, [(str(error), RENDER)]
    differences = []
    for key in keys():
        if key.dotted.startswith(COMPARED) and key.dotted in origin:
            theirs, ours = _shown(value_of(own, key)), _shown(value_of(given, key))
            if theirs != ours:
                told = f"configmap {manifests.CONFIG_MAP} has {key.dotted} {theirs}, and this command was given {ours}"
                differences.append((told, _NAME_THE_FILE))
    return given if differences else own, differences


def differences(
    client: KubeClient, namespace: str, settings: Settings, workloads: Mapping[str, Object],
    webhooks: Mapping[str, Object], nodes: Object | None,
) -> Iterator[tuple[str, str]]:  # fmt: skip
    """Yield where the installed images, webhooks, node guard and kube-scheduler are not as the settings say."""
    resources = settings.resources
    yield from _images(workloads, settings)
    for plural, configuration in webhooks.items():
        for hook in configuration.get("webhooks") or []:
            text = " ".join(condition["expression"] for condition in hook.get("matchConditions") or [])
            if text:
                what = f"{plural} slicekeeper, webhook {hook.get('name')}, is asked about"
                yield from _compared(what, manifests.found(manifests.ASKS, text), manifests.names_of(resources))
    spec = (nodes or {}).get("spec")
    if spec:
        text = " ".join(_strings(spec))
        yield from _compared(
            "guard slicekeeper-nodes guards the capacity of", manifests.found(manifests.AMOUNTS, text),
            (resources.core, resources.memory),
        )  # fmt: skip
    yield from _scheduler(client, namespace, settings, workloads)
    yield from _rights(client, namespace, settings, workloads)


def _rights(
    client: KubeClient, namespace: str, settings: Settings, workloads: Mapping[str, Object]
) -> Iterator[tuple[str, str]]:
    """Yield rights that the timekeeper lacks for what the installed policy or the settings ask of it."""
    text = _mounted(client, namespace, workloads.values(), "slicekeeper-policy", "policy.yaml")
    needed = []
    if text is not None and _enforces_hard(text):
        needed.append(("create", "pods", "eviction", "hard-budgets", "the policy has `enforcement: hard`"))
    if settings.timekeeper.weight == "quota":
        needed.append(("list", "resourcequotas", "", "quota-weight", "timekeeper.weight is quota"))
    for verb, resource, sub, component, why in needed:
        attributes = {"verb": verb, "group": "", "resource": resource, **({"subresource": sub} if sub else {})}
        user = f"system:serviceaccount:{namespace}:timekeeper"
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": user, "resourceAttributes": attributes},
        }
        if not (client.create(ACCESS_REVIEWS, review).get("status") or {}).get("allowed"):
            what = f"{resource}/{sub}" if sub else resource
            yield (
                f"{why}, and the timekeeper may not {verb} {what}",
                f"add manifests/components/{component} to your overlay, and apply it",
            )


def _enforces_hard(text: str) -> bool:
    try:
        tree = yaml.safe_load(text) or {}
        policies = [tree.get("default") or {}, *(tree.get("namespaces") or [])]
        return any((policy.get("budget") or {}).get("enforcement") == "hard" for policy in policies)
    except (yaml.YAMLError, AttributeError, TypeError):
        return False  # the parts themselves tell of a file that they cannot read


def _images(workloads: Mapping[str, Object], settings: Settings) -> Iterator[tuple[str, str]]:
    unset = settings.images.registry == UNSET_REGISTRY
    for name, workload in workloads.items():
        for container in _pod_of(workload).get("containers") or []:
            image = str(container.get("image", ""))
            part = re.split("[:@]", image.rpartition("/")[2])[0]
            if part not in PARTS or not image:
                continue
            unset = unset or image.startswith(f"{UNSET_REGISTRY}/")
            if image != settings.images.of(part):
                yield f"{name} has the image {image}, and the settings say {settings.images.of(part)}", RENDER
    if unset and any(_pod_of(workload) for workload in workloads.values()):
        yield (
            f"images.registry is not set: {UNSET_REGISTRY} is no registry, so a node has only images imported by hand",
            "set images.registry in manifests/base/config/config.yaml; slicekeeper config manifests; apply the overlay",
        )


def _scheduler(
    client: KubeClient, namespace: str, settings: Settings, workloads: Mapping[str, Object]
) -> Iterator[tuple[str, str]]:
    text = _mounted(client, namespace, workloads.values(), _KUBE_SCHEDULER, "kube-scheduler.yaml")
    if text is None:
        return
    try:
        tree = yaml.safe_load(text)
        extenders = [e for e in tree["extenders"] if "managedResources" in e]
        asked = [tuple(managed["name"] for managed in extender["managedResources"]) for extender in extenders]
        profiles = [profile["schedulerName"] for profile in tree["profiles"]]
    except (yaml.YAMLError, KeyError, TypeError):
        yield f"configmap {_KUBE_SCHEDULER} cannot be read as kube-scheduler's configuration", RENDER
        return
    wanted = (settings.resources.core, settings.resources.memory)
    yield from _compared(f"configmap {_KUBE_SCHEDULER}: the extender is asked about", asked, wanted)
    if settings.webhook.scheduler_name not in profiles:
        yield (
            f"configmap {_KUBE_SCHEDULER} has the scheduler {', '.join(profiles)}, and webhook.schedulerName is "
            f"{settings.webhook.scheduler_name}",
            RENDER,
        )


def _compared(what: str, places: Iterable[tuple[str, ...]], wanted: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yield how places that name resources differ from what is wanted; alike places once."""
    listed = list(places)
    if not listed:
        yield f"{what} no resource that could be found in it: the settings say {', '.join(wanted)}", RENDER
    for place in dict.fromkeys(listed):
        missing = [name for name in wanted if name not in place]
        more = [name for name in place if name not in wanted]
        if missing or more:
            short = f"not {', '.join(missing)}" if missing else ""
            long = f"{', '.join(more)}, which the settings do not name" if more else ""
            yield f"{what} {', but '.join(filter(None, (long, short)))}", RENDER


def _mounted(
    client: KubeClient, namespace: str, workloads: Iterable[Object], name: str, key: str
) -> str | None:  # fmt: skip
    """Return a file of the ConfigMap that a workload mounts, by the beginning of its name; None if none does."""
    for workload in workloads:
        for volume in _pod_of(workload).get("volumes") or []:
            sources = [volume, *((volume.get("projected") or {}).get("sources") or [])]
            for mounted in (str((source.get("configMap") or {}).get("name", "")) for source in sources):
                if mounted == name or mounted.startswith(f"{name}-"):
                    try:
                        return str((client.get(CONFIG_MAPS, mounted, namespace).get("data") or {}).get(key, ""))
                    except NotFound:
                        continue
    return None


def _pod_of(workload: Object) -> Object:
    found = ((workload.get("spec") or {}).get("template") or {}).get("spec") or {}
    return found if isinstance(found, dict) else {}


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for below in value.values() if isinstance(value, dict) else value:
            yield from _strings(below)


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        value = tuple(f"{key}={below}" for key, below in sorted(value.items()))
    return ", ".join(value) if isinstance(value, tuple) else str(value)
