# SPDX-License-Identifier: Apache-2.0
"""Identify the sender of a request, and check their rights.

There are three kinds: the operator's token file (may do everything; for local mode), a pod's own projected token (may
report for that pod), and every other user of the API server, which decides their rights on `gpubudgets.slicekeeper.io`.
"""

from __future__ import annotations

import hashlib
import hmac
import threading
import time
from typing import Generic, TypeVar

from slicekeeper import names
from slicekeeper.errors import SettingsError
from slicekeeper.kube.client import ACCESS_REVIEWS, TOKEN_REVIEWS, KubeClient
from slicekeeper.net.json_client import TokenFile
from slicekeeper.untyped_json import as_list, as_map
from timekeeper.api.problems import Problem
from timekeeper.core.caller import OPERATOR, Caller

K = TypeVar("K")
V = TypeVar("V")

REVIEW_SECONDS = 600.0
"""How long a positive review of a pod's own token counts for its reports; it is dropped when the pod ends."""

ACCESS_SECONDS = 30.0
"""How long a positive answer is valid for readers."""

WRITE_SECONDS = 2.0
"""How long a positive answer is valid for writers: a revoked right must take effect soon."""

READS = ("get", "list", "watch")
_MOST_CACHED = 20_000
_EXTRA = "authentication.kubernetes.io/"
_SERVICE_ACCOUNT = "system:serviceaccount:"


class _Cache(Generic[K, V]):
    """Answers that are valid for some seconds of real time."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._lock = threading.Lock()
        self._kept: dict[K, tuple[float, V]] = {}

    def get(self, key: K, seconds: float) -> V | None:
        """Return the answer to a request that was sent at most `seconds` ago; None if there is none."""
        with self._lock:
            asked, value = self._kept.get(key, (0.0, None))
            return value if value is not None and time.monotonic() - asked < seconds else None

    def put(self, key: K, value: V, asked: float) -> None:
        """Keep the answer to a request that was sent at `asked`."""
        with self._lock:
            if len(self._kept) >= _MOST_CACHED:
                oldest = time.monotonic() - self._seconds
                self._kept = {k: v for k, v in self._kept.items() if v[0] > oldest}
                if len(self._kept) >= _MOST_CACHED:  # all are recent: asking again is better than growing
                    self._kept.clear()
            self._kept[key] = (asked, value)


class Identity:
    """Checks bearer tokens and rights."""

    def __init__(self, client: KubeClient, audience: str, operator_token_file: str) -> None:
        self._client = client
        self._audience = audience
        self._operator = TokenFile(operator_token_file)
        if operator_token_file and not self._operator.header():
            raise SettingsError(
                f"timekeeper.operatorTokenFile is {operator_token_file!r}: the file is empty or cannot be read"
            )
        self._callers: _Cache[str, Caller] = _Cache(REVIEW_SECONDS)
        self._rights: _Cache[tuple[Caller, str, str, str], bool] = _Cache(ACCESS_SECONDS)
        self._ended: dict[str, float] = {}
        """When each pod ended, oldest first; kept until all answers from before its end have expired."""
        self._lock = threading.Lock()

    def forget(self, pod_uid: str) -> None:
        """Review the tokens of a pod that has ended at each use from now on."""
        now = time.monotonic()
        with self._lock:
            self._ended.pop(pod_uid, None)
            self._ended[pod_uid] = now
            while (oldest := next(iter(self._ended))) and now - self._ended[oldest] > REVIEW_SECONDS:
                del self._ended[oldest]

    def caller(self, authorization: str, *, writes: bool = False) -> Caller:
        """Return the owner of a token; if the request `writes`, the token was reviewed within `WRITE_SECONDS`.

        Raises Problem (401) if the token is not valid, Unavailable if the API server does not answer.
        """
        scheme, _, token = authorization.partition(" ")
        if scheme.lower() != "bearer" or not token.strip():
            raise Problem(401, "unauthenticated", "a bearer token is required")
        token = token.strip()
        own = self._operator.header().get("Authorization", "").removeprefix("Bearer ")
        if own and hmac.compare_digest(own.encode(), token.encode("utf-8", "replace")):
            return OPERATOR
        digest = hashlib.sha256(token.encode("utf-8", "replace")).hexdigest()
        caller = self._callers.get(digest, WRITE_SECONDS if writes else REVIEW_SECONDS)
        # Only the answer shows whether the token is a pod's own: a user's review does not count for that long.
        if caller is not None and not caller.pod_uid and not writes:
            caller = self._callers.get(digest, ACCESS_SECONDS)
        if caller is None or self._has_ended(caller):
            asked = time.monotonic()
            caller = self._review(token)
            if not self._has_ended(caller):
                self._callers.put(digest, caller, asked)
        return caller

    def _has_ended(self, caller: Caller) -> bool:
        with self._lock:
            return bool(caller.pod_uid) and caller.pod_uid in self._ended

    def _review(self, token: str) -> Caller:
        """Ask the API server whose token it is. Raises Problem (401) if it is not valid for us."""
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        status = as_map(self._client.create(TOKEN_REVIEWS, body).get("status"))
        if status.get("authenticated") is not True or self._audience not in as_list(status.get("audiences")):
            raise Problem(401, "unauthenticated", f"the token is not valid for the audience {self._audience!r}")
        user = as_map(status.get("user"))
        extra = as_map(user.get("extra"))
        name = str(user.get("username", ""))
        pod_uid = _first(extra, "pod-uid")
        namespace = name.removeprefix(_SERVICE_ACCOUNT).partition(":")[0] if name.startswith(_SERVICE_ACCOUNT) else ""
        return Caller(
            name=name,
            groups=tuple(map(str, as_list(user.get("groups")))),
            uid=str(user.get("uid", "")),
            namespace=namespace,
            pod_uid=pod_uid,
            pod_name=_first(extra, "pod-name") if pod_uid else "",
            extra=tuple((str(key), tuple(map(str, as_list(values)))) for key, values in sorted(extra.items())),
        )

    def allow(self, caller: Caller, verb: str, namespace: str, subresource: str = "") -> None:
        """Check a right on budgets.

        Raises Problem (403) if the caller does not have it.
        """
        if caller.operator:
            return
        key = (caller, verb, namespace, subresource)
        if self._rights.get(key, ACCESS_SECONDS if verb in READS else WRITE_SECONDS):
            return
        asked = time.monotonic()
        attributes = {"group": names.GROUP, "resource": "gpubudgets", "verb": verb}
        attributes |= {"namespace": namespace} if namespace else {}
        attributes |= {"subresource": subresource} if subresource else {}
        body = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {
                "user": caller.name,
                "groups": list(caller.groups),
                "uid": caller.uid,
                "extra": {key: list(values) for key, values in caller.extra},
                "resourceAttributes": attributes,
            },
        }
        status = as_map(self._client.create(ACCESS_REVIEWS, body).get("status"))
        if status.get("allowed") is not True:
            what = f"gpubudgets/{subresource}" if subresource else "gpubudgets"
            where = f"namespace {namespace}" if namespace else "all namespaces"
            raise Problem(403, "forbidden", f"{caller.name} may not {verb} {what} in {where}")
        self._rights.put(key, True, asked)


def _first(extra: object, key: str) -> str:
    values = as_list(as_map(extra).get(_EXTRA + key))
    return str(values[0]) if values else ""
