# SPDX-License-Identifier: Apache-2.0
"""Identify the sender of a usage report, and determine whether its sidecar may end."""

from __future__ import annotations

from slicekeeper.kube.container_end import apps_ended
from timekeeper.api.handler_context import HandlerContext
from timekeeper.api.problems import Problem
from timekeeper.core.caller import Caller


def reporter(context: HandlerContext) -> Caller:
    """Return the reporter: a pod, by a token that is bound to it, or the operator."""
    caller = context.caller()
    if not caller.pod_uid and not caller.operator:
        raise Problem(403, "token-not-bound", "a report needs a token that is bound to its pod")
    return caller


def may_leave(context: HandlerContext, uids: set[str]) -> bool:
    """Whether all other containers of the pods have ended."""
    pods = [context.controller.pods.find(uid) for uid in uids]
    return bool(pods) and all(pod is not None and apps_ended(pod) for pod in pods)
