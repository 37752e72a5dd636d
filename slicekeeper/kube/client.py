# SPDX-License-Identifier: Apache-2.0
"""The part of the Kubernetes API that Slicekeeper uses, in plain JSON: decoding into typed objects costs 25 times more.

Errors are `slicekeeper.errors.ServiceError`s: NotFound, Conflict, Gone, Forbidden, Unavailable.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypedDict, Unpack

import msgspec

from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.errors import Gone, NotFound, SettingsError, Unavailable, service_error
from slicekeeper.net.json_client import JsonClient, path

Object = dict[str, Any]

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")

_WARNING: Final = re.compile(r'299 \S+ "((?:[^"\\]|\\.)*)"')
"""A warning in the `Warning` header: the code for miscellaneous ones, the agent, and the text, with escapes."""

_METADATA: Final = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1,application/json"
"""`Accept` header of a list of metadata; a server that does not offer that sends whole objects."""

MERGE_PATCH: Final = "application/merge-patch+json"
JSON_PATCH: Final = "application/json-patch+json"


@dataclass(frozen=True)
class Resource:
    """A resource type: its API group and version as in a path, and its plural."""

    prefix: str
    plural: str
    namespaced: bool = True

    def url(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the path of the collection, of one object or of its subresource."""
        parts = ["namespaces", namespace] if self.namespaced and namespace else []
        return self.prefix + path(*parts, self.plural, *filter(None, (name, subresource)))


PODS: Final = Resource("/api/v1", "pods")
NODES: Final = Resource("/api/v1", "nodes", namespaced=False)
NAMESPACES: Final = Resource("/api/v1", "namespaces", namespaced=False)
EVENTS: Final = Resource("/api/v1", "events")
CONFIG_MAPS: Final = Resource("/api/v1", "configmaps")
RESOURCE_QUOTAS: Final = Resource("/api/v1", "resourcequotas")
LIMIT_RANGES: Final = Resource("/api/v1", "limitranges")
PRIORITY_CLASSES: Final = Resource("/apis/scheduling.k8s.io/v1", "priorityclasses", namespaced=False)
DEPLOYMENTS: Final = Resource("/apis/apps/v1", "deployments")
DAEMON_SETS: Final = Resource("/apis/apps/v1", "daemonsets")
JOBS: Final = Resource("/apis/batch/v1", "jobs")
DISRUPTION_BUDGETS: Final = Resource("/apis/policy/v1", "poddisruptionbudgets")
LEASES: Final = Resource("/apis/coordination.k8s.io/v1", "leases")
TOKEN_REVIEWS: Final = Resource("/apis/authentication.k8s.io/v1", "tokenreviews", namespaced=False)
API_SERVICES: Final = Resource("/apis/apiregistration.k8s.io/v1", "apiservices", namespaced=False)
WEBHOOK_CONFIGURATIONS: Final = tuple(
    Resource("/apis/admissionregistration.k8s.io/v1", plural, namespaced=False)
    for plural in ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
)
ACCESS_REVIEWS: Final = Resource("/apis/authorization.k8s.io/v1", "subjectaccessreviews", namespaced=False)


class Selection(TypedDict, total=False):
    """Which objects of a type are listed or watched, and which parts of each; by default all of everything."""

    namespace: str
    label_selector: str
    field_selector: str
    metadata_only: bool


class KubeClient:
    """Client of one API server, or of local mode's: by the settings, or over an existing connection."""

    def __init__(self, server: KubernetesSettings | JsonClient, *, delivery_seconds: float = 0.0) -> None:
        """Connect if `server` is not a connection yet; `delivery_seconds` is as in JsonClient."""
        self._http = server if isinstance(server, JsonClient) else connect(server, delivery_seconds=delivery_seconds)

    def pages(self, resource: Resource, **selection: Unpack[Selection]) -> Iterator[tuple[list[Object], str]]:
        """Yield all objects, up to 500 at a time, each time with the version from which a watch can continue.

        All pages are of the version of the first. Raises Gone if the server has forgotten that before the last page.
        """
        url, query = resource.url(selection.get("namespace", "")), {"limit": "500", **_selectors(selection)}
        headers = {"Accept": _METADATA} if selection.get("metadata_only") else {}
        while True:
            page = self._http.json("GET", url, query=query, headers=headers)
            metadata = page.get("metadata") or {}
            yield page.get("items") or [], str(metadata.get("resourceVersion", ""))
            if not metadata.get("continue"):
                return
            query["continue"] = metadata["continue"]

    def list(self, resource: Resource, **selection: Unpack[Selection]) -> tuple[list[Object], str]:
        """Return all objects and the resource version from which a watch can continue.

        With `metadata_only` the server is asked to send only the metadata; it may send more.
        """
        items: list[Object] = []
        version = ""
        for page, at in self.pages(resource, **selection):
            items += page
            version = at
        return items, version

    def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        """Return one object."""
        return self._object("GET", resource.url(namespace, name))

    def find(self, resource: Resource, name: str, namespace: str = "", *, uid: str = "") -> Object | None:
        """Return one object; None if there is none, or if its UID is not `uid`."""
        try:
            found = self.get(resource, name, namespace)
        except NotFound:
            return None
        return found if not uid or found["metadata"]["uid"] == uid else None

    def create(
        self,
        resource: Resource,
        body: Object,
        namespace: str = "",
        *,
        name: str = "",
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Create an object, or a subresource of one (`binding`, `eviction`); with `dry_run` it is only admitted."""
        query = {"dryRun": "All"} if dry_run else None
        return self._object("POST", resource.url(namespace, name, subresource), query=query, body=body)

    def create_with_warnings(
        self, resource: Resource, body: Object, namespace: str = ""
    ) -> tuple[Object, tuple[str, ...]]:
        """Create an object; return it with the warnings of the API server and its webhooks."""
        _, headers, data = self._http.request("POST", resource.url(namespace), body=body)
        warnings = tuple(re.sub(r"\\(.)", r"\1", text) for text in _WARNING.findall(headers.get("Warning", "")))
        return msgspec.json.decode(data, type=dict[str, Any]), warnings

    def replace(self, resource: Resource, body: Object) -> Object:
        """Replace an object. Raises Conflict if its `resourceVersion` is not the newest."""
        metadata = body["metadata"]
        return self._object("PUT", resource.url(metadata.get("namespace", ""), metadata["name"]), body=body)

    def patch(
        self,
        resource: Resource,
        name: str,
        body: Any,
        namespace: str = "",
        *,
        content_type: str = MERGE_PATCH,
        subresource: str = "",
    ) -> Object:
        """Patch an object or a subresource of it (`status`), by default with a merge patch."""
        url = resource.url(namespace, name, subresource)
        return self._object("PATCH", url, body=body, content_type=content_type)

    def delete(self, resource: Resource, name: str, namespace: str = "", *, uid: str = "") -> None:
        """Delete an object. Raises Conflict if its UID is not `uid`."""
        body = {"preconditions": {"uid": uid}} if uid else None
        self._http.request("DELETE", resource.url(namespace, name), body=body)

    @contextmanager
    def watch(
        self,
        resource: Resource,
        resource_version: str,
        *,
        seconds: int = 120,
        grace_seconds: float = 10.0,
        **selection: Unpack[Selection],
    ) -> Iterator[Iterator[tuple[str, Object]]]:
        """Yield an iterator of `(ADDED | MODIFIED | DELETED | BOOKMARK, object)` for up to `seconds`.

        Iterating raises Gone if the version is too old, and Unavailable if the connection breaks, or if nothing comes
        for `seconds` and `grace_seconds` together.
        """
        query = {
            "watch": "1",
            "resourceVersion": resource_version,
            "allowWatchBookmarks": "true",
            "timeoutSeconds": str(seconds),
            **_selectors(selection),
        }
        url = resource.url(selection.get("namespace", ""))
        with self._http.stream(url, query=query, read_timeout=seconds + grace_seconds) as lines:
            yield _events(lines)

    def server_version(self) -> str:
        """Return the API server's version, for example v1.37.2; a distribution may append something to it."""
        return str(self._object("GET", "/version").get("gitVersion", ""))

    def discover(self, api: str) -> Object:
        """Return the discovery document of an API, named by group and version."""
        return self._object("GET", f"/apis/{api}")

    def ask_pod(self, namespace: str, name: str, port: int, url: str) -> Any:
        """Return a pod's JSON answer at one of its ports and paths, through the API server's proxy."""
        return self._http.json("GET", f"{PODS.url(namespace, name)}:{port}/proxy{url}")

    def close(self) -> None:
        """Close all connections."""
        self._http.close()

    def _object(self, method: str, url: str, **kwargs: Any) -> Object:
        answer = self._http.json(method, url, **kwargs)
        if not isinstance(answer, dict):
            raise Unavailable(f"{method} {url}: the answer is not an object")
        return answer


def _selectors(selection: Selection) -> dict[str, str]:
    """Return the selectors of a query, without empty ones."""
    both = {"labelSelector": selection.get("label_selector"), "fieldSelector": selection.get("field_selector")}
    return {key: value for key, value in both.items() if value}


def _events(lines: Iterator[bytes]) -> Iterator[tuple[str, Object]]:
    for line in lines:
        try:
            event = msgspec.json.decode(line)
        except msgspec.DecodeError as error:
            raise Unavailable("watch: a line is not JSON") from error
        kind, body = event["type"], event["object"]
        if kind == "ERROR":
            status = int(body.get("code", 500))
            message = f"watch: {body.get('message', status)}"
            raise Gone(message, 410) if status == 410 else service_error(status, message)
        yield kind, body


def connect(settings: KubernetesSettings, *, delivery_seconds: float = 0.0) -> JsonClient:
    """Return a connection to the API server of the settings, or to a pod's own; `delivery_seconds` as in JsonClient."""
    settings = settings if settings.server else in_cluster()
    return JsonClient(
        settings.server,
        ca_file=settings.ca_file,
        token_file=settings.token_file,
        timeout=settings.timeout_seconds,
        delivery_seconds=delivery_seconds,
    )


def in_cluster(environ: Mapping[str, str] | None = None) -> KubernetesSettings:
    """Return the settings of a pod's own service account.

    Raises SettingsError outside a cluster.
    """
    environ = os.environ if environ is None else environ
    host, port = environ.get("KUBERNETES_SERVICE_HOST"), environ.get("KUBERNETES_SERVICE_PORT", "443")
    if not host:
        raise SettingsError("kubernetes.server is empty and this is not a pod: set the API server's URL")
    host = f"[{host}]" if ":" in host else host
    return KubernetesSettings(
        server=f"https://{host}:{port}",
        ca_file=str(_SERVICE_ACCOUNT / "ca.crt"),
        token_file=str(_SERVICE_ACCOUNT / "token"),
    )
