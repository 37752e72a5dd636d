# SPDX-License-Identifier: Apache-2.0
"""The objects that handlers share, created once with the application."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import Final

from flask import request

from slicekeeper.clock import Clock
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import Settings
from slicekeeper.net.serving.wsgi import HEADERS
from slicekeeper.net.tls import CLIENT
from timekeeper.api.front_proxy import FrontProxy
from timekeeper.api.identity import READS, Identity
from timekeeper.api.problems import Problem
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.core.caller import Caller
from timekeeper.ledger.books import Books

LONGEST_ACTOR: Final = 253


@dataclass(frozen=True)
class HandlerContext:
    """The objects that all handlers share."""

    settings: Settings
    clock: Clock
    books: Books
    policy: PolicyFile
    controller: Controller
    identity: Identity
    front_proxy: FrontProxy | None = None
    """None: no client is asked for a certificate."""

    def caller(self, *, writes: bool = False) -> Caller:
        """Return the sender of the request; if it `writes`, the sender is remembered only for seconds.

        A connection with a client certificate must be the API server's; otherwise it is refused, with any token.
        """
        certificate = request.environ.get(CLIENT)
        if certificate is not None:
            if self.front_proxy is None:
                raise Problem(401, "unauthenticated", "certificates are not asked for here")
            return self.front_proxy.caller(certificate, request.environ[HEADERS])
        return self.identity.caller(request.headers.get("Authorization", ""), writes=writes)

    def allow(self, verb: str, namespace: str = "", subresource: str = "") -> Caller:
        """Return the sender of the request if they have a right on budgets; otherwise raise an error."""
        caller = self.caller(writes=verb not in READS)
        self.identity.allow(caller, verb, namespace, subresource)
        return replace(caller, name=kept_name(caller.name))


def kept_name(user: str) -> str:
    """Return a user's name for records.

    A name that is too long for them is cut and ends in a digest: Kubernetes does not limit users' names.
    """
    if len(user) <= LONGEST_ACTOR:
        return user
    digest = hashlib.sha256(user.encode()).hexdigest()[:16]
    return f"{user[: LONGEST_ACTOR - len(digest) - 1]}…{digest}"
