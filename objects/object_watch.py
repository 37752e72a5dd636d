# SPDX-License-Identifier: Apache-2.0
"""Watch budgets and policies with kopf, and report which have changed; their keepers do the rest.

These are kopf's simplest handlers, which write nothing: no finalizer, no annotation, no event. kopf's own record of
what was handled would be a field on users' objects that is in no manifest.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import kopf

from objects.budgets.resources import CLUSTER_GPU_BUDGETS, GPU_BUDGETS, VERSION
from slicekeeper import names
from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.kube.client import in_cluster
from slicekeeper.kube.policy_watch import GPU_POLICIES


def registry_of(server: KubernetesSettings, changed: Callable[[], None]) -> kopf.OperatorRegistry:
    """Return the handlers: `changed` is called for each object that is new, deleted, or has another spec."""
    registry = kopf.OperatorRegistry()
    server = server if server.server else in_cluster()

    async def login(**_: Any) -> kopf.ConnectionInfo:
        token = Path(server.token_file).read_text("ascii").strip() if server.token_file else None
        return kopf.ConnectionInfo(server=server.server, ca_path=server.ca_file or None, token=token)

    async def seen(type: str | None, meta: kopf.Meta, memo: kopf.Memo, **_: Any) -> None:  # noqa: A002 - kopf's name
        generation = meta.get("generation")
        if type == "DELETED" or memo.get("generation") != generation:
            memo["generation"] = generation
            changed()

    kopf.on.login(registry=registry)(login)
    for resource in (CLUSTER_GPU_BUDGETS.resource, GPU_BUDGETS.resource, GPU_POLICIES):
        kopf.on.event(names.GROUP, VERSION, resource.plural, registry=registry)(seen)
    return registry


def tame_logs() -> None:
    """Have kopf log errors with objects, in records that can be JSON.

    Its records contain its settings, which JSON formatters cannot encode, and there is one for each handled event.
    """
    logger = logging.getLogger("kopf.objects")
    logger.setLevel(logging.WARNING)
    logger.addFilter(_without_settings)


def _without_settings(record: logging.LogRecord) -> bool:
    record.__dict__.pop("settings", None)
    return True


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: requests to the API server have a timeout, and nothing is posted."""
    settings = kopf.OperatorSettings()
    settings.posting.enabled = False
    settings.networking.request_timeout = 30
    settings.watching.connect_timeout = 10
    settings.watching.server_timeout = 240
    settings.watching.client_timeout = 270
    return settings
