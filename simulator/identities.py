# SPDX-License-Identifier: Apache-2.0
"""Who asks the simulated API server: the one user of loopback, and pods by their service accounts' projected tokens."""

from __future__ import annotations

import secrets
from typing import Final

import msgspec

from simulator.store import Store
from slicekeeper.kube.client import PODS, Object

USER: Final = "kubernetes-admin"
"""The user of every request over the API: loopback knows only one."""


class Claims(msgspec.Struct, frozen=True):
    """The identity in a projected token."""

    audience: str
    namespace: str
    account: str
    pod: str
    uid: str
    node: str


class TokenBook:
    """Projected tokens. They are valid as long as their pod's object exists."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._tokens: dict[str, Claims] = {}

    def issue(self, pod: Object, audience: str) -> str:
        """Return a new token of a pod's service account, bound to the pod."""
        metadata, spec = pod["metadata"], pod["spec"]
        token = secrets.token_urlsafe(32)
        self._tokens[token] = Claims(
            audience,
            metadata["namespace"],
            spec.get("serviceAccountName", "default"),
            metadata["name"],
            metadata["uid"],
            spec["nodeName"],
        )
        return token

    def review(self, spec: Object) -> Object:
        """Return the status of a TokenReview."""
        claims = self._tokens.get(str(spec.get("token", "")))
        if claims is None:
            return {"authenticated": False, "error": "invalid bearer token"}
        asked = spec.get("audiences") or ["https://kubernetes.default.svc"]
        if claims.audience not in asked:
            return {"authenticated": False, "error": f"token audiences {[claims.audience]} is invalid for {asked}"}
        pod = self._store.find(PODS, claims.pod, claims.namespace)
        if pod is None or pod["metadata"]["uid"] != claims.uid:
            return {"authenticated": False, "error": "pod not found or UID changed"}
        prefix = "authentication.kubernetes.io/"
        return {
            "authenticated": True,
            "audiences": [claims.audience],
            "user": {
                "username": f"system:serviceaccount:{claims.namespace}:{claims.account}",
                "groups": ["system:serviceaccounts", f"system:serviceaccounts:{claims.namespace}"],
                "extra": {
                    prefix + "credential-id": ["JTI=" + claims.uid],
                    prefix + "node-name": [claims.node],
                    prefix + "pod-name": [claims.pod],
                    prefix + "pod-uid": [claims.uid],
                },
            },
        }


def access_review(spec: Object) -> Object:
    """Return the status of a SubjectAccessReview: loopback's one user may do all, others nothing."""
    return {"allowed": spec.get("user") == USER, "reason": "local mode has no RBAC"}
