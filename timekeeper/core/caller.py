# SPDX-License-Identifier: Apache-2.0
"""Who sent a request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """Who asks. `pod_uid` is empty if it is no pod's own token; `extra` is what else the authenticator said."""

    name: str
    operator: bool = False
    groups: tuple[str, ...] = ()
    uid: str = ""
    namespace: str = ""
    pod_uid: str = ""
    pod_name: str = ""
    extra: tuple[tuple[str, tuple[str, ...]], ...] = ()


OPERATOR = Caller("operator", operator=True)
