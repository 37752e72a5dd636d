# SPDX-License-Identifier: Apache-2.0
"""Have the API server wait for our webhooks longer than a busy machine takes, if a test is not about speed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager

from cluster.harness.kubectl import Object
from cluster.harness.site import Site

KINDS = ("mutatingwebhookconfiguration", "validatingwebhookconfiguration")


@contextmanager
def patience(site: Site) -> Iterator[None]:
    """Let every call take 30 s: after 3 s one that fails open would be left out."""
    kept = {kind: [one["timeoutSeconds"] for one in webhooks(site, kind)] for kind in KINDS}
    for kind, seconds in kept.items():
        _set_timeouts(site, kind, [30] * len(seconds))
    try:
        yield
    finally:
        for kind, seconds in kept.items():
            _set_timeouts(site, kind, seconds)


def webhooks(site: Site, kind: str) -> list[Object]:
    """Return our webhooks of a kind of configuration."""
    return list(site.kubectl.get(kind, "slicekeeper")["webhooks"])


def _set_timeouts(site: Site, kind: str, seconds: list[int]) -> None:
    changes = [
        {"op": "replace", "path": f"/webhooks/{index}/timeoutSeconds", "value": value}
        for index, value in enumerate(seconds)
    ]
    site.kubectl("patch", kind, "slicekeeper", "--type=json", "-p", json.dumps(changes))
