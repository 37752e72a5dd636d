# SPDX-License-Identifier: Apache-2.0
"""Installed by Helm, moved from observing to enforcing by an upgrade, and uninstalled: nothing of ours stays.

After the suite's own installation is gone: it leaves a cluster without Slicekeeper.
"""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from cluster.harness import install
from cluster.harness.cluster import Cluster
from cluster.harness.helm import CHART, RELEASE, Helm
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Refused, wait_for
from cluster.harness.site import Site, gpu_container, pod

CONFIG = {"nodeAgent": {"gpus": ["0", "1", "2", "3"]}}
"""Named, because kubelet still shows the resource of the other plugin that an earlier test had."""
VALUES: dict[str, Any] = {
    "images": {"registry": install.IMAGES.registry},
    "components": {"fakeGpus": True, "single": True},
    "config": CONFIG,
}
WHOLE = (0, "nothing is missing, nothing is unmetered\n")
VOLUME = "/var/lib/slicekeeper/volume-1"


@pytest.fixture
def helm(site: Site, cluster: Cluster, tmp_path: Path) -> Helm:
    """Helm, and a cluster in which nothing of ours is installed."""
    if any(found["metadata"]["name"] == NAMESPACE for found in site.kubectl.list("namespaces")):
        gone = ("--wait=true", "--timeout=120s", "--ignore-not-found")
        site.kubectl("delete", "-k", install.named(install.SUITE), *gone, timeout=130)
        wait_for("nothing to repair", lambda: site.check("--repair")[0] == 0, pause=1)
        wait_for("end of what the garbage collector takes", lambda: not site.leftovers(), pause=1)
    cluster.run("sh", "-c", f"rm -rf {VOLUME}/*")
    site.kubectl.patch("persistentvolume", "volume-1", {"spec": {"claimRef": None}})
    return Helm(tmp_path, site.kubectl.kubeconfig)


def _ready(site: Site) -> None:
    """Wait until everything is rolled out and `slicekeeper check` finds nothing."""
    for workload in install.WORKLOADS:
        until = f"--timeout={install.ROLLOUT_SECONDS}s"
        site.kubectl("rollout", "status", workload, "-n", NAMESPACE, until, timeout=install.ROLLOUT_SECONDS + 10)
    with contextlib.suppress(TimeoutError):
        wait_for("whole installation", lambda: site.check() == WHOLE, 120, 1)
    assert site.check() == WHOLE


def _is_refused(site: Site, team: str) -> bool:
    try:
        site.kubectl.create(pod("wrong", gpu_container(core=150)), namespace=team, dry_run=True)
    except Refused as error:
        return "vcuda-core" in str(error)
    return False


def test_helm_installs_upgrades_and_uninstalls(site: Site, helm: Helm) -> None:
    helm("install", RELEASE, str(CHART), "--create-namespace", values=VALUES)
    _ready(site)
    team = site.namespace()
    assert not _is_refused(site, team)

    changed = {"mode": "enforce", "config": {**CONFIG, "log": {"level": "debug"}}}
    helm("upgrade", RELEASE, str(CHART), values={**VALUES, **changed})
    _ready(site)
    # The pod of before may be asked until every node knows that it has gone.
    wait_for("policy that enforces", lambda: _is_refused(site, team), seconds=150, pause=1)
    site.kubectl.create(pod("runs", gpu_container(core=5)), namespace=team)
    held = site.wait_phase(team, "runs", "Running")
    assert held["spec"]["priorityClassName"] == "gpu-default-priority"

    helm("uninstall", RELEASE)
    [claim] = site.kubectl.list("persistentvolumeclaims", NAMESPACE)
    assert claim["metadata"]["name"] == "timekeeper", "the ledger stays until the namespace goes"
    site.kubectl("delete", "namespace", NAMESPACE, "--timeout=120s", timeout=130)
    site.kubectl("delete", "pod", "runs", "-n", team, "--wait=false")
    wait_for("nothing to repair", lambda: site.check("--repair")[0] == 0, pause=1)
    wait_for("pod that goes", lambda: not site.pods(team))
    wait_for("end of what the garbage collector takes", lambda: not site.leftovers(), pause=1)
