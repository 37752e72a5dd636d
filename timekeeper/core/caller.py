# SPDX-License-Identifier: Apache-2.0
"""The sender of a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """An authenticated sender.

    `pod_uid` is empty unless the token is bound to a pod; `extra` holds the authenticator's other attributes.
    """

    name: str
    operator: bool = False
    groups: tuple[str, ...] = ()
    uid: str = ""
    namespace: str = ""
    pod_uid: str = ""
    pod_name: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


OPERATOR = Caller("operator", operator=True)
