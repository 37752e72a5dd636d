# SPDX-License-Identifier: Apache-2.0
"""The part of the Kubernetes API that our parts use, over plain HTTP on loopback.

A thread per connection, because watches hold theirs; the standard library's server does that without another
process or dependency. No authentication: who is on this machine's loopback is the administrator.
"""

from __future__ import annotations

import itertools
import logging
import re
import select
import socket
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar, Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from simulator.api_errors import ApiError, Expired, Invalid, Malformed, ObjectNotFound
from simulator.cluster import Cluster
from simulator.identities import access_review
from simulator.kinds import BY_PATH, ObjectKind
from simulator.patch import PatchError, apply, clone, merge
from simulator.selectors import Selector, SelectorError, compile_selectors
from simulator.store import Change
from slicekeeper import names
from slicekeeper.kube.client import (
    ACCESS_REVIEWS,
    DEPLOYMENTS,
    JOBS,
    JSON_PATCH,
    NAMESPACES,
    PODS,
    TOKEN_REVIEWS,
    Object,
    Resource,
)

log = logging.getLogger(__name__)

MAX_BODY: Final = 16 << 20
MOST_RESTS: Final = 64
"""Lists that may be read page by page at one time."""
BOOKMARK_SECONDS: Final = 1.0
"""Real seconds between bookmarks on a watch where nothing happens; they also find clients that are gone."""

_PATH = re.compile(r"(/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/([^/]+))?/([^/]+)(?:/([^/]+))?(?:/([^/]+))?")
_SUCCESS: Final = {"kind": "Status", "apiVersion": "v1", "status": "Success"}


@dataclass(frozen=True)
class Call:
    """One parsed request."""

    kind: ObjectKind
    namespace: str
    name: str
    subresource: str
    query: dict[str, str]
    body: Any
    content_type: str

    @property
    def resource(self) -> Resource:
        """The requested resource."""
        return self.kind.resource

    def selector(self) -> Selector:
        """Return the request's selectors as one predicate."""
        try:
            return compile_selectors(self.query.get("labelSelector", ""), self.query.get("fieldSelector", ""))
        except SelectorError as error:
            raise Malformed(str(error)) from error

    def object(self) -> Object:
        """Return the body, which must be an object with metadata."""
        if not isinstance(self.body, dict) or not isinstance(self.body.setdefault("metadata", {}), dict):
            raise Malformed("the body must be an object")
        return self.body


class Api:
    """Answers requests on a cluster, independently of the transport."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.store = cluster.store
        self._page_names = map(str, itertools.count(1))
        self._rests: dict[str, tuple[list[Object], int]] = {}
        """The remaining pages of lists that are read page by page, by the next page's name."""
        self._methods: dict[str, Callable[[Call], tuple[int, Any, list[str]]]] = {
            "GET": self._get,
            "POST": self._post,
            "PUT": self._put,
            "PATCH": self._patch,
            "DELETE": self._delete,
        }

    def answer(self, method: str, call: Call) -> tuple[int, Any, list[str]]:
        """Return status, body and warnings."""
        return self._methods[method](call)

    def _get(self, call: Call) -> tuple[int, Any, list[str]]:
        if call.name:
            return 200, self.store.get(call.resource, call.name, call.namespace), []
        items, version = self._listed(call)
        limit = int(call.query.get("limit") or 0) or len(items)
        metadata = {"resourceVersion": str(version)}
        if len(items) > limit:
            metadata["continue"] = next(self._page_names)  # lists come in several threads
            self._rests[metadata["continue"]] = items[limit:], version
            if len(self._rests) > MOST_RESTS:
                self._rests.pop(next(iter(self._rests)), None)
        kind = {"kind": f"{call.kind.name}List", "apiVersion": call.kind.api_version}
        return 200, {**kind, "metadata": metadata, "items": items[:limit]}, []

    def _listed(self, call: Call) -> tuple[list[Object], int]:
        """Return the selected objects, or the rest after an earlier page, and their version."""
        if "continue" in call.query:
            rest = self._rests.get(call.query["continue"])
            if rest is None:
                raise ApiError(410, "Expired", "the rest of this list is not kept any more; list again")
            return rest
        selected = call.selector()
        items, version = self.store.collection(call.resource, call.namespace)
        return [item for item in items if selected(item)], version

    def _post(self, call: Call) -> tuple[int, Any, list[str]]:
        body = call.object()
        if call.resource == PODS and call.subresource == "binding":
            self.cluster.bind(call.name, call.namespace, body)
            return 201, _SUCCESS, []
        if call.resource == PODS and call.subresource == "eviction":
            self.cluster.evict(call.name, call.namespace, body)
            return 201, _SUCCESS, []
        if call.name:
            raise ApiError(405, "MethodNotAllowed", "POST on an object is for pods/binding and pods/eviction")
        created, warnings = self.cluster.create(call.resource, body, call.namespace)
        return 201, created, warnings

    def _put(self, call: Call) -> tuple[int, Any, list[str]]:
        body = call.object()
        return 200, self._update(call, lambda _old: clone(body)), []

    def _patch(self, call: Call) -> tuple[int, Any, list[str]]:
        def change(old: Object) -> Object:
            try:
                new = apply(old, call.body) if call.content_type == JSON_PATCH else merge(old, call.body)
            except PatchError as error:
                raise Invalid(f"the server rejected our request due to an error in our request: {error}") from error
            if not isinstance(new, dict) or not isinstance(new.get("metadata"), dict):
                raise Invalid("the patch leaves no object")
            return new

        return 200, self._update(call, change), []

    def _update(self, call: Call, change: Callable[[Object], Object]) -> Object:
        if call.subresource not in ("", "status"):
            raise ApiError(404, "NotFound", f"{call.resource.plural}/{call.subresource} is not served here")
        if call.resource in (DEPLOYMENTS, JOBS) and not call.subresource:
            old = self.store.get(call.resource, call.name, call.namespace)
            self.cluster.check_update(call.resource, change(clone(old)), old)
        return self.store.update(call.resource, call.name, call.namespace, change, subresource=call.subresource)

    def _delete(self, call: Call) -> tuple[int, Any, list[str]]:
        if not call.name or call.resource == NAMESPACES:
            raise ApiError(405, "MethodNotAllowed", "local mode deletes single objects, and no namespaces")
        options = call.body if isinstance(call.body, dict) else {}
        grace = options.get("gracePeriodSeconds", call.query.get("gracePeriodSeconds"))
        uid = str((options.get("preconditions") or {}).get("uid") or "")
        seconds = None if grace is None else int(grace)
        return 200, self.store.delete(call.resource, call.name, call.namespace, uid=uid, grace=seconds), []

    def review(self, path: str, body: Any) -> Any:
        """Return a TokenReview or SubjectAccessReview with its status; None for any other path."""
        spec = body.get("spec") or {} if isinstance(body, dict) else {}
        if path == TOKEN_REVIEWS.url():
            return {**body, "status": self.cluster.tokens.review(spec)}
        if path == ACCESS_REVIEWS.url():
            return {**body, "status": access_review(spec)}
        return None

    def pod_records(self) -> Object:
        """Return every pod's last state, those of removed pods first."""
        with self.store.changed:
            return {"items": [*self.store.removed_pods, *self.store.collection(PODS)[0]]}


def watch_line(change: Change, selected: Selector, resource: Resource, namespace: str) -> bytes:
    """Return one change as a watch with this selector sees it; empty if it sees nothing."""
    if change.resource != resource or (namespace and change.obj["metadata"].get("namespace") != namespace):
        return b""
    now = change.kind != "DELETED" and selected(change.obj)
    before = change.old is not None and selected(change.old)
    if not now and not before:
        return b""
    kind = b"MODIFIED" if now and before else b"ADDED" if now else b"DELETED"
    return b'{"type":"%s","object":%s}\n' % (kind, change.encoded)


class _RequestHandler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    api: ClassVar[Api]
    stop: ClassVar[threading.Event]
    extra: ClassVar[dict[str, Callable[[], Any]]]

    def handle_request(self) -> None:
        """Answer one request of any method; every refusal is a Status."""
        split = urlsplit(self.path)
        query = dict(parse_qsl(split.query, keep_blank_values=True))
        try:
            body = self._body()
            if self.command == "GET" and split.path in self.extra:
                self._send(200, self.extra[split.path](), [])
                return
            if self.command == "POST" and (reviewed := self.api.review(split.path, body)) is not None:
                self._send(201, reviewed, [])
                return
            call = _take_apart(split.path, query, body, self.headers.get("Content-Type", ""))
            if self.command == "GET" and query.get("watch") in ("1", "true"):
                self._watch(call)
                return
            self._send(*self.api.answer(self.command, call))
        except ApiError as error:
            self._send(error.code, error.status(), [])
        except (TypeError, ValueError, KeyError, AttributeError) as error:
            log.exception("%s %s", self.command, self.path)
            self._send(400, Malformed(f"{type(error).__name__}: {error}").status(), [])

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_request

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - the standard library's name
        """Log no request: there are hundreds a second."""

    def _body(self) -> Any:
        length = int(self.headers.get("Content-Length") or 0)
        if length > MAX_BODY:
            self.close_connection = True
            raise ApiError(413, "RequestEntityTooLarge", f"the body is larger than {MAX_BODY} bytes")
        data = self.rfile.read(length) if length else b""
        try:
            return msgspec.json.decode(data) if data else None
        except (msgspec.DecodeError, RecursionError) as error:
            raise Malformed(f"the body is not JSON: {error}") from error

    def _send(self, code: int, body: Any, warnings: list[str]) -> None:
        data = msgspec.json.encode(body)
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for warning in warnings:
            text = warning.replace("\\", "\\\\").replace('"', '\\"').encode("ascii", "replace").decode()
            self.send_header("Warning", f'299 - "{text}"')
        self.end_headers()
        self.wfile.write(data)
        self.wfile.flush()

    def _watch(self, call: Call) -> None:
        store, selected = self.api.store, call.selector()
        version = int(call.query.get("resourceVersion") or 0)
        first: list[bytes] = []
        if version:
            store.since(version)
        else:
            items, version = store.collection(call.resource, call.namespace)
            first = [b'{"type":"ADDED","object":%s}\n' % msgspec.json.encode(item) for item in items if selected(item)]
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            self._write(b"".join(first))
            self._stream(call, selected, version)
        except Expired as error:
            self._write(b'{"type":"ERROR","object":%s}\n' % msgspec.json.encode(error.status()))
        self.wfile.write(b"0\r\n\r\n")
        self.wfile.flush()

    def _stream(self, call: Call, selected: Selector, version: int) -> None:
        end = time.monotonic() + float(call.query.get("timeoutSeconds") or 1800)
        bookmark = time.monotonic() + BOOKMARK_SECONDS
        for changes in self.api.store.follow(version, self.stop, BOOKMARK_SECONDS):
            if changes:
                version = changes[-1].version
                lines = (watch_line(change, selected, call.resource, call.namespace) for change in changes)
                self._write(b"".join(lines))
            if time.monotonic() >= bookmark:
                bookmark = time.monotonic() + BOOKMARK_SECONDS
                self._write(_bookmark(call.kind, version))
            if time.monotonic() >= end or self._is_gone():
                return

    def _write(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
            self.wfile.flush()

    def _is_gone(self) -> bool:
        connection: socket.socket = self.connection
        readable, _, _ = select.select([connection], [], [], 0)
        return bool(readable) and not connection.recv(1, socket.MSG_PEEK)


def _bookmark(kind: ObjectKind, version: int) -> bytes:
    obj = {"kind": kind.name, "apiVersion": kind.api_version, "metadata": {"resourceVersion": str(version)}}
    return b'{"type":"BOOKMARK","object":%s}\n' % msgspec.json.encode(obj)


def _take_apart(path: str, query: dict[str, str], body: Any, content_type: str) -> Call:
    match = _PATH.fullmatch(path)
    kind = BY_PATH.get((match[1], match[3])) if match else None
    if match is None or kind is None:
        raise ApiError(404, "NotFound", "the server could not find the requested resource")
    namespace, name, subresource = (unquote(part or "") for part in (match[2], match[4], match[5]))
    if kind.resource.namespaced and not namespace and name:
        raise ObjectNotFound(kind.resource, name)
    return Call(kind, namespace, name, subresource, query, body, content_type.partition(";")[0].strip())


class ApiServer:
    """Serves an Api on 127.0.0.1. `extra` are paths of the simulator's own, each with what answers it."""

    def __init__(self, api: Api, extra: dict[str, Callable[[], Any]] | None = None) -> None:
        self._stop = threading.Event()
        paths: dict[str, Callable[[], Any]] = {
            "/readyz": lambda: {"status": "ok"},
            "/version": lambda: {"major": "1", "minor": "36", "gitVersion": names.LOCAL_VERSION},
            "/simulator/pods": api.pod_records,
            **(extra or {}),
        }
        handler = type("Handler", (_RequestHandler,), {"api": api, "stop": self._stop, "extra": paths})
        self._server = _Server(("127.0.0.1", 0), handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.1,), name="api", daemon=True)

    @property
    def url(self) -> str:
        """The address on which it listens."""
        return f"http://127.0.0.1:{self._server.server_address[1]}"

    def start(self) -> None:
        """Serve, in daemon threads."""
        self._thread.start()

    def stop(self) -> None:
        """Stop listening and end all watches."""
        self._stop.set()
        if self._thread.ident is not None:
            self._server.shutdown()
            self._thread.join(5)
        self._server.server_close()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a connection; a client that was killed is not an error."""
        if not isinstance(sys.exception(), ConnectionError):
            super().handle_error(request, client_address)
