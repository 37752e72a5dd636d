# SPDX-License-Identifier: Apache-2.0
"""Installed by Helm, upgraded under load to other images and from observing to enforcing, uninstalled: nothing stays.

After the suite's own installation is gone: it leaves a cluster without Slicekeeper.
"""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import Any

import pytest
from cluster.harness import binaries, install
from cluster.harness.admissions import admissions
from cluster.harness.charges import charge_of
from cluster.harness.cluster import Cluster
from cluster.harness.helm import Helm
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, Refused, wait_for
from cluster.harness.site import Site, gpu_container, plain_container, pod
from support.chart import CHART, RELEASE

from slicekeeper import __version__

CONFIG = {"nodeAgent": {"gpus": ["0", "1", "2", "3"]}}
"""Named, because kubelet still shows the resource of the other plugin that an earlier test had."""
VALUES: dict[str, Any] = {
    "images": {"registry": install.IMAGES.registry},
    "components": {"fakeGpus": True, "objects": True},
    "config": CONFIG,
}
WHOLE = (0, "nothing is missing, nothing is unmetered\n")
UNTIL_ENDED = "trap 'exit 0' TERM; while :; do sleep 0.2; done"
VOLUME = "/var/lib/slicekeeper/volume-1"


@pytest.fixture
def helm(site: Site, cluster: Cluster, tmp_path: Path) -> Helm:
    """Helm, and a cluster in which nothing of ours is installed."""
    if any(found["metadata"]["name"] == NAMESPACE for found in site.kubectl.list("namespaces")):
        install.uninstall(site.kubectl, install.SUITE, "--ignore-not-found")
        wait_for(lambda: site.check("--repair")[0] == 0, "nothing to repair", pause=1)
        wait_for(lambda: not site.leftovers(), "end of what the garbage collector takes", pause=1)
    cluster.run("sh", "-c", f"rm -rf {VOLUME}/*")
    site.kubectl.patch("persistentvolume", "volume-1", {"spec": {"claimRef": None}})
    return Helm(tmp_path, site.kubectl.kubeconfig)


def _ready(site: Site) -> None:
    """Wait until everything is rolled out and `slicekeeper check` finds nothing."""
    for workload in install.WORKLOADS:
        site.kubectl.rollout(workload, NAMESPACE)
    with contextlib.suppress(TimeoutError):
        wait_for(lambda: site.check() == WHOLE, "whole installation", 120, 1)
    assert site.check() == WHOLE


def _is_refused(site: Site, team: str) -> bool:
    try:
        site.kubectl.create(pod("wrong", gpu_container(core=150)), namespace=team, dry_run=True)
    except Refused as error:
        return "vcuda-core" in str(error)
    return False


def _next_release(cluster: Cluster) -> str:
    """Give the node our images as those of another release; return its tag."""
    ctr = (str(binaries.CONTAINERD.bin / "ctr"), "-n", "k8s.io", "images")
    ours = [name for name in cluster.run(*ctr, "ls", "-q").split() if name.startswith(f"{install.IMAGES.registry}/")]
    for name in (name for name in ours if name.endswith(f":{__version__}")):
        cluster.run(*ctr, "tag", "--force", name, f"{name}-next")
    return f"{__version__}-next"


def _killed_in_turn(site: Site, team: str) -> None:
    """Kill one pod of each part that has two; pods without GPUs are not affected."""
    with admissions(site, team, plain_container()) as load:
        for part in ("webhook", "scheduler", "objects", "certificates"):
            name = wait_for(lambda part=part: _two_of(site, part), f"two of {part}")[0]
            site.kubectl("delete", "pod", name, "-n", NAMESPACE, "--force", "--grace-period=0")
            load.wait_for_more()
        _ready(site)
    assert load.failed == []


def _two_of(site: Site, part: str) -> list[str]:
    """Return the pods of a part, empty while some are on their way out."""
    found = [one["metadata"] for one in site.pods(NAMESPACE, f"app.kubernetes.io/name={part}")]
    return [one["name"] for one in found] if len(found) == 2 else []


def _went_on(site: Site, before: Object) -> None:
    """See that a pod ran through the upgrade, and is charged to the millisecond once it has ended."""
    team, name, uid = (before["metadata"][key] for key in ("namespace", "name", "uid"))
    site.kubectl("exec", name, "-n", team, "-c", "train", "--", "sh", "-c", "kill 1")
    ended = site.wait_phase(team, name, "Succeeded")
    statuses = [*ended["status"]["initContainerStatuses"], *ended["status"]["containerStatuses"]]
    assert (ended["metadata"]["uid"], {status["restartCount"] for status in statuses}) == (uid, {0})
    wait_for(lambda: site.workloads(team)[uid].state == "closed", "closed interval", 60, 1)
    assert site.workloads(team)[uid].charged_ms == charge_of(ended)
    site.kubectl("delete", "pod", name, "-n", team, "--timeout=180s", timeout=190)


def _nothing_to_apply_again(site: Site, helm: Helm) -> None:
    """See that what runs and writes in the cluster leaves all that was applied as it was: Git and it stay alike."""
    applied = helm("get", "manifest", RELEASE)
    site.kubectl("diff", "--server-side", "--field-manager=git", "--force-conflicts", "-f", "-", stdin=applied)


def test_helm_installs_upgrades_and_uninstalls(site: Site, helm: Helm, cluster: Cluster) -> None:
    helm("install", RELEASE, str(CHART), "--create-namespace", values=VALUES)
    _ready(site)
    team = site.namespace()
    assert not _is_refused(site, team)
    site.kubectl.create(pod("before", gpu_container(script=UNTIL_ENDED, core=5)), namespace=team)
    before = site.wait_phase(team, "before", "Running")

    tag = _next_release(cluster)
    changed = {"mode": "enforce", "config": {**CONFIG, "log": {"level": "debug"}}}
    changed["images"] = {**VALUES["images"], "tag": tag}
    with admissions(site, team, plain_container()) as load:
        load.wait_for_more()
        helm("upgrade", RELEASE, str(CHART), values={**VALUES, **changed})
        _ready(site)
        load.wait_for_more()
    assert load.failed == []
    _killed_in_turn(site, team)
    _went_on(site, before)
    _nothing_to_apply_again(site, helm)
    # The pod of before may be asked until every node knows that it has gone.
    wait_for(lambda: _is_refused(site, team), "policy that enforces", seconds=150, pause=1)
    site.kubectl.create(pod("runs", gpu_container(core=5)), namespace=team)
    held = site.wait_phase(team, "runs", "Running")
    assert held["spec"]["priorityClassName"] == "gpu-default-priority"

    _uninstalled(site, helm)
    site.kubectl("delete", "pod", "runs", "-n", team, "--wait=false")
    _nothing_is_left(site, team)


def _uninstalled(site: Site, helm: Helm) -> None:
    helm("uninstall", RELEASE)
    [claim] = site.kubectl.list("persistentvolumeclaims", NAMESPACE)
    assert claim["metadata"]["name"] == "timekeeper", "the ledger stays until the namespace goes"
    site.kubectl("delete", "namespace", NAMESPACE, "--timeout=240s", timeout=250)


def _nothing_is_left(site: Site, team: str) -> None:
    wait_for(lambda: site.check("--repair")[0] == 0, "nothing to repair", pause=1)
    wait_for(lambda: not site.pods(team), "pod that goes")
    wait_for(lambda: not site.leftovers(), "end of what the garbage collector takes", pause=1)


def test_what_kubectl_installed_is_taken_over_by_helm(site: Site, helm: Helm) -> None:
    """As kustomize has installed it: ConfigMaps that are mounted had the hash of their content in their names."""
    before = re.sub(r"\b(slicekeeper-(?:config|kube-scheduler))$", r"\1-0123456789", install.rendered(), flags=re.M)
    before = re.sub(r"(configMap: \{name: \"?slicekeeper-(?:config|kube-scheduler))(?=[}\"])", r"\1-0123456789", before)
    site.kubectl("apply", "-f", "-", stdin=before)
    _ready(site)
    team = site.namespace()
    site.kubectl.create(pod("before", gpu_container(script=UNTIL_ENDED, core=5)), namespace=team)
    running = site.wait_phase(team, "before", "Running")
    take = ("--take-ownership", "--force-conflicts")
    helm("install", RELEASE, str(CHART), *take, values={**install.SUITE, "createNamespace": False})
    old = ("slicekeeper-config-0123456789", "slicekeeper-kube-scheduler-0123456789")
    site.kubectl("delete", "configmap", *old, "-n", NAMESPACE)
    _ready(site)
    _went_on(site, running)
    _nothing_to_apply_again(site, helm)
    _uninstalled(site, helm)
    _nothing_is_left(site, team)
