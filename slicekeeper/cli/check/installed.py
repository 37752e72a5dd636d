# SPDX-License-Identifier: Apache-2.0
"""Compare the installed objects with the settings, for `slicekeeper check`. Reports each difference; writes nothing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import yaml

from slicekeeper.cli.check.remedies import APPLY, KUBE_SCHEDULER, POLICY, REGISTRY, Finding, Remedy
from slicekeeper.config import manifests
from slicekeeper.config.load import keys
from slicekeeper.config.policy_file import book_of
from slicekeeper.config.settings import PARTS, UNSET_REGISTRY, PriorityClassSettings, Settings
from slicekeeper.config.yaml_file import parse_yaml
from slicekeeper.errors import NotFound, SettingsError
from slicekeeper.kube.client import CONFIG_MAPS, KubeClient, Object

COMPARED: Final = (
    "resources.",
    "images.",
    "webhook.schedulerName",
    "policy.exemptNamespaces",
    "classes.",
    "timekeeper.audience",
)
"""Settings that other objects contain too."""

_NAME_THE_FILE: Final = "slicekeeper --config FILE check, with the settings that are installed"
_SCHEDULER_MAP: Final = "slicekeeper-kube-scheduler"
_MINOR: Final = re.compile(r"v(\d+)\.(\d+)")


def settings_of(
    client: KubeClient,
    namespace: str,
    workloads: Mapping[str, Object | None],
    given: Settings,
    origin: Mapping[str, str],
) -> tuple[Settings, list[Finding]]:
    """Return the settings to compare with, and where the settings that this command was given differ from them.

    They are those of the installation's own ConfigMap; a setting that the command was not given is no difference.
    """
    text = mounted(client, namespace, filter(None, workloads.values()), manifests.CONFIG_MAP, manifests.CONFIG_KEY)
    if text is None:
        return given, []
    try:
        own = manifests.parse(text, f"configmap {manifests.CONFIG_MAP}")
    except SettingsError as error:
        return given, [(str(error), APPLY)]
    differences: list[Finding] = []
    for key in keys():
        if key.dotted.startswith(COMPARED) and key.dotted in origin:
            theirs, ours = _shown(key.of(own)), _shown(key.of(given))
            if theirs != ours:
                problem = (
                    f"configmap {manifests.CONFIG_MAP} has {key.dotted} {theirs}, and this command was given {ours}"
                )
                differences.append((problem, _NAME_THE_FILE))
    return given if differences else own, differences


def differences(
    client: KubeClient,
    namespace: str,
    settings: Settings,
    workloads: Mapping[str, Object],
    webhooks: Mapping[str, Object],
    guards: Mapping[str, Object],
) -> Iterator[Finding]:
    """Yield where the installed images, webhooks, guards, tokens and kube-scheduler are not as the settings say."""
    resources, spared = settings.resources, manifests.left_alone(settings, namespace)
    yield from _images(workloads, settings)
    for plural, configuration in webhooks.items():
        for hook in configuration.get("webhooks") or []:
            text = " ".join(condition["expression"] for condition in hook.get("matchConditions") or [])
            if text:
                what = f"{plural} slicekeeper, webhook {hook.get('name')}, is asked about"
                if not hook.get("objectSelector"):  # otherwise it is asked about pods with our label
                    yield from _compared(what, manifests.found(manifests.ASKS, text), manifests.names_of(resources))
                for shape, wanted in (
                    (manifests.ANNOTATIONS, manifests.annotations_of(resources)),
                    (manifests.LABELS, manifests.labels_of(resources)),
                ):
                    if shape.search(text):  # for workloads only their resources count
                        yield from _compared(what, manifests.found(shape, text), wanted)
                what = f"{plural} slicekeeper, webhook {hook.get('name')}, leaves out"
                yield from _compared(what, [_left_out(hook)], spared)
    for name, shape, what, wanted in (
        ("slicekeeper-nodes", manifests.AMOUNTS, "guards the capacity of", (resources.core, resources.memory)),
        ("slicekeeper-scheduler", manifests.NAMESPACES, "keeps the scheduler from pods of", spared),
        ("slicekeeper-other-namespaces", manifests.NAMESPACES, "keeps evictions from pods of", spared),
    ):
        text = _text_of(guards, name)
        if text:
            yield from _compared(f"guard {name} {what}", manifests.found(shape, text), wanted)
    lowest = settings.classes.in_budget.value
    for match in manifests.LOWER.finditer(_text_of(guards, "slicekeeper-scheduler")):
        if int(match["value"]) != lowest:
            problem = f"guard slicekeeper-scheduler compares priorities with {match['value']}"
            yield f"{problem}, and the settings say classes.inBudget.value {lowest}", APPLY
            break
    yield from _tokens(workloads, settings)
    yield from _scheduler(client, namespace, settings, workloads)
    yield from _skew(client, workloads)


def policy_errors(text: str, settings: Settings, *, has_earlier: bool) -> Iterator[Finding]:
    """Yield what is wrong with the installed policy file, and which of its entries never apply.

    `has_earlier`: there is one without errors, which the parts keep.
    """
    name = "configmap slicekeeper-policy"
    try:
        book = book_of(parse_yaml(text, name), name, settings.policy.exempt_namespaces)
    except SettingsError as error:
        kept = (
            "the last one without errors stays in force" if has_earlier else "no pod gets a GPU until it is corrected"
        )
        yield f"the policy is refused, {kept}: {error}", POLICY
    else:
        yield from ((warning, POLICY) for warning in book.warnings)


def class_differences(installed: Object, settings: PriorityClassSettings) -> Iterator[Finding]:
    """Yield how an installed PriorityClass differs from the settings' one of its name; neither field can be changed."""
    for key, ours in (("value", settings.value), ("preemptionPolicy", settings.preemption_policy)):
        if installed.get(key) != ours:
            yield (
                f"PriorityClass {settings.name} has {key} {installed.get(key)}, and the settings say {ours}",
                Remedy(before=f"kubectl delete priorityclass {settings.name}"),
            )


def _left_out(hook: Object) -> tuple[str, ...]:
    """Return the namespaces for which a webhook is not called."""
    expressions = (hook.get("namespaceSelector") or {}).get("matchExpressions") or []
    return tuple(
        name
        for one in expressions
        if one.get("key") == "kubernetes.io/metadata.name" and one.get("operator") == "NotIn"
        for name in one.get("values") or []
    )


def _text_of(guards: Mapping[str, Object], name: str) -> str:
    return " ".join(_strings((guards.get(name) or {}).get("spec") or {}))


def _tokens(workloads: Mapping[str, Object], settings: Settings) -> Iterator[Finding]:
    """Yield parts whose tokens have another audience than the timekeeper's."""
    for name, workload in workloads.items():
        for volume in _pod_of(workload).get("volumes") or []:
            for source in (volume.get("projected") or {}).get("sources") or []:
                audience = (source.get("serviceAccountToken") or {}).get("audience")
                if audience and audience != settings.timekeeper.audience:
                    problem = f"{name} has a token for the audience {audience}"
                    yield f"{problem}, and timekeeper.audience is {settings.timekeeper.audience}", APPLY


def _images(workloads: Mapping[str, Object], settings: Settings) -> Iterator[Finding]:
    unset = settings.images.registry == UNSET_REGISTRY
    for name, _, image in _containers(workloads):
        part = re.split("[:@]", image.rpartition("/")[2])[0]
        if part not in PARTS:
            continue
        unset = unset or image.startswith(f"{UNSET_REGISTRY}/")
        if image != settings.images.of(part):
            yield f"{name} has the image {image}, and the settings say {settings.images.of(part)}", APPLY
    if unset and any(_pod_of(workload) for workload in workloads.values()):
        yield (
            f"images.registry is not set: {UNSET_REGISTRY} is no registry, so a node has only images imported by hand",
            REGISTRY,
        )


def _scheduler(
    client: KubeClient, namespace: str, settings: Settings, workloads: Mapping[str, Object]
) -> Iterator[Finding]:
    """Yield what differs in the configuration of our kube-scheduler."""
    text = mounted(client, namespace, workloads.values(), _SCHEDULER_MAP, "kube-scheduler.yaml")
    if text is None:
        return
    try:
        tree = yaml.safe_load(text)
        extenders = [e for e in tree["extenders"] if "managedResources" in e]
        asked = [tuple(managed["name"] for managed in extender["managedResources"]) for extender in extenders]
        profiles = [profile["schedulerName"] for profile in tree["profiles"]]
    except (yaml.YAMLError, KeyError, TypeError, ValueError):
        yield f"configmap {_SCHEDULER_MAP} cannot be read as kube-scheduler's configuration", APPLY
        return
    wanted = (settings.resources.core, settings.resources.memory)
    yield from _compared(f"configmap {_SCHEDULER_MAP}: the extender is asked about", asked, wanted)
    if settings.webhook.scheduler_name not in profiles:
        yield (
            f"configmap {_SCHEDULER_MAP} has the scheduler {', '.join(profiles)}, and webhook.schedulerName is "
            f"{settings.webhook.scheduler_name}",
            APPLY,
        )


def _skew(client: KubeClient, workloads: Mapping[str, Object]) -> Iterator[Finding]:
    """Yield a kube-scheduler that Kubernetes does not support beside this API server: newer, or two versions older."""
    server = client.server_version()
    for image in (image for _, container, image in _containers(workloads) if container == "kube-scheduler"):
        ours, theirs = _MINOR.search(image.rpartition(":")[2]), _MINOR.search(server)
        if ours and theirs:
            (major, minor), (theirs_major, theirs_minor) = (tuple(map(int, m.groups())) for m in (ours, theirs))
            if major != theirs_major or not 0 <= theirs_minor - minor <= 1:
                yield (
                    f"kube-scheduler is {ours[0]}, the API server {theirs[0]}: "
                    "it must have the same version or be one minor version older",
                    KUBE_SCHEDULER,
                )


def _compared(what: str, places: Iterable[tuple[str, ...]], wanted: tuple[str, ...]) -> Iterator[Finding]:
    """Yield how the places that name resources differ from the settings; equal places once."""
    listed = list(places)
    if not listed:
        yield f"{what} no resource that could be found in it: the settings say {', '.join(wanted)}", APPLY
    for place in dict.fromkeys(listed):
        missing = [name for name in wanted if name not in place]
        more = [name for name in place if name not in wanted]
        if missing or more:
            short = f"not {', '.join(missing)}" if missing else ""
            long = f"{', '.join(more)}, which the settings do not name" if more else ""
            yield f"{what} {', but '.join(filter(None, (long, short)))}", APPLY


def mounted(client: KubeClient, namespace: str, workloads: Iterable[Object], name: str, key: str) -> str | None:
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


def _containers(workloads: Mapping[str, Object]) -> Iterator[tuple[str, str, str]]:
    """Yield the workload's name, the container's, and its image, for each container."""
    for name, workload in workloads.items():
        for container in _pod_of(workload).get("containers") or []:
            yield name, str(container.get("name", "")), str(container.get("image", ""))


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
