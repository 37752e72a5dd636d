# SPDX-License-Identifier: Apache-2.0
"""Find the pod templates in an object of any kind, for `slicekeeper review`.

The server looks only at workloads of Kubernetes, because it is called only for these. An operator's object passes
there, and its pods are refused later, so a review by hand should see them: everything that looks like a pod template
(`spec.containers`), a pod's spec within another mapping (`containers`), a template of Argo with one `container`, or
anything with `resources` that Kubernetes does not have of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from slicekeeper import names
from slicekeeper.untyped_json import as_list, as_map
from webhook.pod_templates import template_of, template_path

Path = tuple[str | int, ...]

_NOT_SEARCHED: Final = ("metadata", "status")
_KUBERNETES: Final = (
    "admissionregistration", "apiextensions", "apiregistration", "authentication", "authorization", "certificates",
    "coordination", "discovery", "events", "flowcontrol.apiserver", "gateway.networking", "kustomize.config", "metrics",
    "networking", "node", "rbac.authorization", "resource", "scheduling", "snapshot.storage", "storage",
    "storagemigration",
)  # fmt: skip
"""Groups below `k8s.io` whose kinds create no pods; operators have groups there too."""
_SHARE_PODS: Final = ("kubeshare.nthu", "SharePod")
"""Its request is in annotations, and the operator makes the pod's containers from it."""
_FIRST: Final = "spec.containers[0]"
_SINGLE: Final = ("container", "script")
_OF_PODS: Final = (
    "affinity", "initContainers", "nodeSelector", "priorityClassName", "schedulerName", "securityContext",
    "tolerations", "volumes",
)  # fmt: skip
"""Fields of one of Argo's templates that its pods get as they are."""


@dataclass(frozen=True)
class FoundTemplate:
    """A pod template in an object, or what makes one."""

    path: Path
    template: Mapping[str, Any]
    called: tuple[tuple[str, str], ...] = ()
    """Fields of the template that have another name below the path, or none; empty for a whole template."""

    def field(self, field: str) -> str:
        """Return the path in the object of a field that is named as if this were a whole template at its path."""
        here = written(self.path)
        if not field.startswith(f"{here}."):  # of the object itself
            return field
        field = field.removeprefix(f"{here}.")
        for ours, theirs in self.called:
            if field.startswith(f"{ours}."):
                field = ".".join(filter(None, (theirs, field.removeprefix(f"{ours}."))))
                break
        return f"{here}.{field}" if here else field


def written(path: Path) -> str:
    """Return a path as people write it."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path).removeprefix(".")


def search(document: Mapping[str, Any]) -> list[FoundTemplate]:
    """Return all pod templates of an object, in its order."""
    group, kind = group_of(document), document.get("kind")
    known = template_path(group, kind)
    if known is not None:
        return [FoundTemplate(known, template_of(document, known))]
    return [] if (group, kind) == _SHARE_PODS else list(_search(document))


def may_have_pods(document: Mapping[str, Any]) -> bool:
    """Whether a kind is one of an operator, which may create pods: not one of Kubernetes' own, or of ours."""
    group = group_of(document)
    of_kubernetes = group.removesuffix(".k8s.io") in _KUBERNETES
    return "." in group and not of_kubernetes and group != names.GROUP


def group_of(document: Mapping[str, Any]) -> str:
    """Return the API group of an object."""
    return str(document.get("apiVersion", "")).rpartition("/")[0]


def with_template(document: Any, path: Path, template: Mapping[str, Any]) -> Any:
    """Return an object with another template; what the path does not touch is shared."""
    if not path:
        return dict(template)
    copied = list(document) if isinstance(document, list) else dict(as_map(document))
    head: Any = path[0]
    below = copied[head] if isinstance(copied, list) else copied.get(head)
    copied[head] = with_template(below, path[1:], template)
    return copied


def _search(document: Mapping[str, Any]) -> Iterator[FoundTemplate]:
    waiting: list[tuple[Path, Any]] = [((), document)]
    while waiting:  # no recursion: a file may be nested as deeply as its author likes
        path, node = waiting.pop()
        if isinstance(node, list):
            waiting += [((*path, index), node[index]) for index in reversed(range(len(node)))]
        if not isinstance(node, dict):
            continue
        found = _template_at(path, node)
        if found is not None:
            yield found
            continue
        waiting += [((*path, key), node[key]) for key in reversed(node) if path or key not in _NOT_SEARCHED]


def _template_at(path: Path, node: Mapping[str, Any]) -> FoundTemplate | None:
    """Return the template that a mapping is, or contains without a name of its own."""
    if _are_containers(as_map(node.get("spec")).get("containers")):
        return FoundTemplate(path, node)
    if _are_containers(node.get("containers")):
        return FoundTemplate(path, {"metadata": {}, "spec": node}, (("spec", ""),))
    for key in _SINGLE:
        single = as_map(node.get(key))
        if "image" in single:
            spec = {key: node[key] for key in _OF_PODS if key in node}
            spec["containers"] = [{"name": "main", **single}, *as_list(node.get("sidecars"))]
            template = {"metadata": as_map(node.get("metadata")), "spec": spec}
            return FoundTemplate(path, template, ((_FIRST, key), ("spec", "")))
    declared = as_map(node.get("resources"))
    if any("/" in name for section in ("limits", "requests") for name in as_map(declared.get(section))):
        container = {"name": "main", "resources": declared, "env": node.get("env")}
        return FoundTemplate(path, {"metadata": {}, "spec": {"containers": [container]}}, ((_FIRST, ""),))
    return None


def _are_containers(value: object) -> bool:
    return bool(as_list(value)) and all(isinstance(entry, dict) for entry in as_list(value))
