# SPDX-License-Identifier: Apache-2.0
"""A component beside what the suite has installed, for one file of tests."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import yaml
from cluster.harness import install
from cluster.harness.kubectl import Object
from cluster.harness.site import Site


@contextmanager
def added(site: Site, **components: bool) -> Iterator[list[Object]]:
    """Install the suite with other components, and as before afterwards; yield the new objects."""
    suite, wanted = _objects(install.SUITE), _objects(install.suite(**components))
    ours = [obj for key, obj in wanted.items() if key not in suite]
    before = [obj for key, obj in suite.items() if wanted.get(key, obj) != obj]
    after = [obj for key, obj in wanted.items() if suite.get(key, obj) != obj]
    site.kubectl.apply(*ours, *after)
    try:
        for obj in ours:
            if obj["kind"] == "CustomResourceDefinition":
                site.kubectl.wait("Established", f"crd/{obj['metadata']['name']}")
        _rolled_out(site, [*ours, *after])
        install.wait_for_webhooks(site.kubectl)
        yield ours
    finally:
        if before:
            site.kubectl.apply(*before)
            _rolled_out(site, before)
        site.kubectl(
            "delete", "--ignore-not-found", "--timeout=240s", "-f", "-", stdin=yaml.safe_dump_all(ours), timeout=250
        )


def _rolled_out(site: Site, objects: list[Object]) -> None:
    """Wait until of all workloads among some objects there are the pods that they say, and no others."""
    for obj in objects:
        if obj["kind"] in ("Deployment", "DaemonSet"):
            site.kubectl.rollout(f"{obj['kind'].lower()}/{obj['metadata']['name']}", install.NAMESPACE)


def _objects(values: install.Values) -> dict[tuple[str, str, str], Object]:
    found = (one for one in yaml.safe_load_all(install.rendered(values)) if one)
    return {(o["kind"], o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in found}
