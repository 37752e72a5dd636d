# SPDX-License-Identifier: Apache-2.0
"""A look at what is there, then everything is taken away: nothing of ours stays, and no pod is stuck.

The last of the suite: it leaves a cluster without Slicekeeper.
"""

from __future__ import annotations

import pytest
from cluster.harness import install
from cluster.harness.kubectl import wait_for
from cluster.harness.site import CORE, Site, gpu_container, pod

from slicekeeper import names


def test_check_names_what_is_unmetered(site: Site) -> None:
    # An agent of a test's second node may still be on its way out.
    wait_for(lambda: site.check() == (0, "nothing is missing, nothing is unmetered\n"), "whole installation", 60, 1)
    team = site.namespace()
    with site.without_webhook():
        site.kubectl.create(pod("early", gpu_container(core=5)), namespace=team)
        code, told = site.check()
    assert code == 1
    assert f"pod {team}/early uses GPUs unmetered" in told
    assert "mutatingwebhookconfigurations slicekeeper is missing" in told


def test_uninstalling_leaves_nothing_behind(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("runs", gpu_container(core=5)), namespace=team)
    site.wait_phase(team, "runs", "Running")
    install.uninstall(site.kubectl)
    site.kubectl("delete", "pod", "runs", "-n", team, "--wait=false")
    code, told = site.check()
    assert code == 1
    assert f"pod {team}/runs still has our finalizer" in told
    code, told = site.check("--repair")
    assert code == 0, told
    wait_for(lambda: not site.pods(team), "pod that goes")
    published = ("get", "configmap", "-A", f"--field-selector=metadata.name={names.CA_CONFIG_MAP}", "-o", "name")
    wait_for(lambda: not site.kubectl(*published).split(), "end of what the garbage collector takes")
    node = site.kubectl.list("nodes")[0]
    assert not [key for key in node["metadata"]["annotations"] if "slicekeeper" in key]
    assert CORE not in node["status"]["capacity"]
    wait_for(lambda: not site.leftovers(), "end of all that is ours", pause=1)
    site.kubectl.create(pod("plain", gpu_container(core=5)), namespace=team, dry_run=True)
    with pytest.raises(Exception, match="not found"):
        site.kubectl("get", "namespace", install.NAMESPACE)
