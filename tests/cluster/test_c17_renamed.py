# SPDX-License-Identifier: Apache-2.0
"""Resources by other names, changed as users change them: in the settings among the chart's values."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from cluster.harness import install
from cluster.harness.charges import charge_of
from cluster.harness.kubectl import Object, Refused, wait_for
from cluster.harness.site import Site, gpu_container, job, plain_container, pod

from slicekeeper.gpu import inventory

CORE, MEMORY, SEAT = "gpu.example/percent", "gpu.example/blocks", "gpu.example/seat"
NAMES = {"core": CORE, "memory": MEMORY, "seat": SEAT}


@pytest.fixture
def renamed(site: Site) -> Iterator[None]:
    install.install(site.kubectl, {**install.SUITE, "config": {**install.SUITE["config"], "resources": NAMES}})
    try:
        yield
    finally:
        install.install(site.kubectl)
        team = site.namespace()
        wait_for(lambda: _is_refused(site, team, gpu_container(blocks=None), "memory"), "refusals by the usual names")


def _is_refused(site: Site, namespace: str, container: Object, why: str) -> bool:
    """Whether a container is refused by now: the API server knows a webhook's new conditions a moment later."""
    try:
        site.kubectl.create(pod("probe", container), namespace=namespace, dry_run=True)
    except Refused as error:
        return why in str(error)
    return False


def asking(script: str, **amounts: str) -> Object:
    limits = {f"gpu.example/{name}": amount for name, amount in amounts.items()}
    return {**plain_container("train", script), "resources": {"limits": limits}}


def test_pods_that_ask_by_other_names_get_their_slice_and_are_charged(site: Site, renamed: None) -> None:
    def shown() -> bool:
        nodes = [node for node in site.kubectl.list("nodes") if inventory.of_node(node)]
        return any(all(int(n["status"]["allocatable"].get(r, 0)) for r in (CORE, MEMORY, SEAT)) for n in nodes)

    wait_for(shown, "amounts by the new names")
    wait_for(lambda: site.check() == (0, "nothing is missing, nothing is unmetered\n"), "nothing to be said")
    team = site.namespace()
    wait_for(lambda: _is_refused(site, team, asking("true", percent="25"), MEMORY), "refusals by the new names")
    site.kubectl.create(
        job("train", asking("cat /run/slicekeeper/seat.json", percent="25", blocks="64")), namespace=team
    )
    site.kubectl.wait("Complete", "job/train", team)
    [done] = site.pods(team)
    assert done["spec"]["containers"][0]["resources"]["limits"][SEAT] == "1"
    [closed] = wait_for(
        lambda: [w for w in site.workloads(team).values() if w.state == "closed"], "closed interval", seconds=180
    )
    assert closed.charged_ms == charge_of(done, CORE, MEMORY)
