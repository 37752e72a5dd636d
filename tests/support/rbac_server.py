# SPDX-License-Identifier: Apache-2.0
"""An API server in memory that answers by the RBAC rules of the chart."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

from support.chart import documents

from slicekeeper import names
from slicekeeper.errors import Forbidden, NotFound
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import KubeClient, Object, Resource

HOME, TEAM = "slicekeeper-system", "team"


@dataclass(frozen=True, order=True)
class Right:
    """One verb on one resource, as RBAC grants it."""

    account: str
    namespace: str
    group: str
    resource: str
    verb: str
    names: tuple[str, ...] = ()

    def covers(self, verb: str, group: str, resource: str, namespace: str, name: str) -> bool:
        return (
            (self.verb, self.group, self.resource) == (verb, group, resource)
            and self.namespace in ("", namespace)
            and (not self.names or name in self.names)
        )


def granted() -> list[Right]:
    """Return every right that the chart gives an account of ours by a role of ours."""
    every = list(documents())
    roles = {(d["kind"], d["metadata"]["name"]): d for d in every if d["kind"] in ("Role", "ClusterRole")}
    found = []
    for binding in (d for d in every if d["kind"] in ("RoleBinding", "ClusterRoleBinding")):
        role = roles.get((binding["roleRef"]["kind"], binding["roleRef"]["name"]))
        where = HOME if binding["kind"] == "RoleBinding" else ""
        for rule in (role or {"rules": []})["rules"]:
            only = tuple(rule.get("resourceNames", ()))
            for subject, group, resource, verb in itertools.product(
                binding["subjects"], rule["apiGroups"], rule["resources"], rule["verbs"]
            ):
                if subject["kind"] == "ServiceAccount":
                    found.append(Right(subject["name"], where, group, resource, verb, only))
    return found


@dataclass
class Server:
    """An API server in memory that asks RBAC."""

    rights: list[Right]
    objects: dict[tuple[str, str, str], Object] = field(default_factory=dict)
    used: set[Right] = field(default_factory=set)
    missed: list[str] = field(default_factory=list)
    versions: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def may(self, verb: str, resource: Resource, sub: str = "", namespace: str = "", name: str = "") -> None:
        group = resource.prefix.split("/")[2] if resource.prefix.startswith("/apis/") else ""
        what = f"{resource.plural}/{sub}" if sub else resource.plural
        self.ask(verb, group, what, namespace, name)

    def ask(self, verb: str, group: str, what: str, namespace: str = "", name: str = "") -> None:
        using = {right for right in self.rights if right.covers(verb, group, what, namespace, name)}
        self.used |= using
        if not using:
            self.missed.append(f"{verb} {what}.{group}")
            raise Forbidden(f"cannot {verb} {what} in {namespace or 'all namespaces'}", 403)

    def put(self, plural: str, obj: Object) -> Object:
        metadata = obj["metadata"]
        metadata.setdefault("uid", f"uid-{metadata['name']}")
        metadata["resourceVersion"] = str(next(self.versions))
        self.objects[plural, metadata.get("namespace", ""), metadata["name"]] = deepcopy(obj)
        return deepcopy(obj)

    def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        self.may("get", resource, "", namespace, name)
        found = self.objects.get((resource.plural, namespace, name))
        if found is None:
            raise NotFound("not there", 404)
        return deepcopy(found)

    def find(self, resource: Resource, name: str, namespace: str = "", *, uid: str = "") -> Object | None:
        return KubeClient.find(self, resource, name, namespace, uid=uid)  # type: ignore[arg-type]

    def list(
        self, resource: Resource, *, namespace: str = "", label_selector: str = "", field_selector: str = "", **_: Any
    ) -> tuple[list[Object], str]:
        name = field_selector.partition("metadata.name=")[2].partition(",")[0]
        self.may("list", resource, "", namespace, name)
        there = [o for (plural, where, _), o in self.objects.items() if plural == resource.plural]
        selected = [o for o in there if not namespace or o["metadata"].get("namespace") == namespace]
        if label_selector.endswith("=true"):
            key = label_selector.removesuffix("=true")
            selected = [o for o in selected if (o["metadata"].get("labels") or {}).get(key) == "true"]
        return deepcopy([o for o in selected if not name or o["metadata"]["name"] == name]), "1"

    def pages(self, resource: Resource, **asked: Any) -> Iterator[tuple[list[Object], str]]:
        yield self.list(resource, **asked)

    @contextmanager
    def watch(self, resource: Resource, _version: str, *, field_selector: str = "", **_: Any) -> Iterator[Any]:
        self.may("watch", resource, "", "", field_selector.partition("metadata.name=")[2].partition(",")[0])
        yield iter(())

    def create(
        self, resource: Resource, body: Object, namespace: str = "", *, name: str = "", subresource: str = ""
    ) -> Object:
        self.may("create", resource, subresource, namespace)
        if resource.plural == "tokenreviews":
            user = {"username": "jane", "groups": []}
            return {"status": {"authenticated": True, "audiences": ["timekeeper"], "user": user}}
        if resource.plural == "subjectaccessreviews":
            return {"status": {"allowed": True}}
        if subresource:
            return {}
        where = {"namespace": namespace} if namespace else {}
        return self.put(resource.plural, {**body, "metadata": {**body["metadata"], **where}})

    def replace(self, resource: Resource, body: Object) -> Object:
        self.may("update", resource, "", body["metadata"].get("namespace", ""), body["metadata"]["name"])
        return self.put(resource.plural, body)

    def patch(
        self, resource: Resource, name: str, _body: Any, namespace: str = "", *, subresource: str = "", **_: Any
    ) -> Object:
        self.may("patch", resource, subresource, namespace, name)
        if (resource.plural, namespace, name) not in self.objects:
            raise NotFound("not there", 404)
        return deepcopy(self.objects[resource.plural, namespace, name])

    def delete(self, resource: Resource, name: str, namespace: str = "", **_: Any) -> None:
        self.may("delete", resource, "", namespace, name)
        self.objects.pop((resource.plural, namespace, name), None)


GRANTED = granted()
READ = ("get", "list", "watch")


def world(rights: list[Right]) -> Server:
    """Return a server with two namespaces, a node with a GPU, and a pod on it."""
    server = Server(rights)
    for name in (HOME, TEAM):
        server.put("namespaces", {"metadata": {"name": name}})
    listed = inventory.encode([inventory.Gpu("GPU-1", "A100", 8192)])
    server.put("nodes", {"metadata": {"name": "n", "annotations": {names.NODE_GPUS: listed}}})
    server.put("pods", pod())
    for kind in ("mutating", "validating"):
        hooks = [{"clientConfig": {}}]
        server.put(f"{kind}webhookconfigurations", {"metadata": {"name": "slicekeeper"}, "webhooks": hooks})
    server.put("apiservices", {"metadata": {"name": names.API_SERVICE}, "spec": {}})
    return server


def pod(state: str = names.OVER_BUDGET, node: str = "n") -> Object:
    limits = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "4"}
    return {
        "metadata": {
            "name": "p",
            "namespace": TEAM,
            "uid": "uid-p",
            "resourceVersion": "1",
            "finalizers": [names.FINALIZER],
            "labels": {names.MANAGED_LABEL: "true"},
            "annotations": {names.BUDGET_STATE: state},
        },
        "spec": {"nodeName": node, "containers": [{"name": "c", "resources": {"limits": limits}}]},
        "status": {"phase": "Running"},
    }
