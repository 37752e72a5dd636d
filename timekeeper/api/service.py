# SPDX-License-Identifier: Apache-2.0
"""What handlers work with, put together once when the application is made."""

from __future__ import annotations

from dataclasses import dataclass

from flask import current_app, request

from slicekeeper.clock import Clock
from slicekeeper.namespace_policy import PolicyFile
from slicekeeper.settings import Settings
from timekeeper.books import Books
from timekeeper.controller import Controller
from timekeeper.identity import Caller, Identity

EXTENSION = "timekeeper"


@dataclass(frozen=True)
class Service:
    """The collaborators of all handlers."""

    settings: Settings
    clock: Clock
    books: Books
    policy: PolicyFile
    controller: Controller
    identity: Identity

    def caller(self) -> Caller:
        """Return who sent the request."""
        return self.identity.caller(request.headers.get("Authorization", ""))

    def allow(self, verb: str, namespace: str = "", subresource: str = "") -> Caller:
        """Return who sent the request, if they have a right on budgets; an error goes out otherwise."""
        caller = self.caller()
        self.identity.allow(caller, verb, namespace, subresource)
        return caller


def service() -> Service:
    """Return the service of the application that runs this request."""
    found = current_app.extensions[EXTENSION]
    if not isinstance(found, Service):
        raise TypeError("the application was made without its service")
    return found
