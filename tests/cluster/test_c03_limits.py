# SPDX-License-Identifier: Apache-2.0
"""What the cluster's administrators limit holds on the pod as it was completed: quota, LimitRange, Pod Security."""

from __future__ import annotations

import pytest
from cluster.harness.kubectl import Refused, wait_for
from cluster.harness.site import CORE, MEMORY, Site, gpu_container, pod

from slicekeeper import names


def _quota(hard: dict[str, str]) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpu"}, "spec": {"hard": hard}}


def test_a_quota_on_compute_and_memory_holds(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(_quota({f"requests.{CORE}": "50", f"requests.{MEMORY}": "40"}), namespace=team)
    wait_for("quota", lambda: site.kubectl.get("resourcequota", "gpu", team).get("status", {}).get("used"))
    site.kubectl.create(pod("one", gpu_container(core=30, blocks=16)), namespace=team)
    with pytest.raises(Refused, match=rf"exceeded quota: gpu, requested: requests.{CORE}=30"):
        site.kubectl.create(pod("two", gpu_container(core=30, blocks=8)), namespace=team)
    with pytest.raises(Refused, match=rf"requests.{MEMORY}=32"):
        site.kubectl.create(pod("three", gpu_container(core=10, blocks=32)), namespace=team)
    site.kubectl.create(pod("four", gpu_container(core=20, blocks=24)), namespace=team)
    used = site.kubectl.get("resourcequota", "gpu", team)["status"]["used"]
    assert (used[f"requests.{CORE}"], used[f"requests.{MEMORY}"]) == ("50", "40")


def test_a_quota_on_cpu_counts_the_sidecar(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(_quota({"requests.cpu": "100m", "limits.memory": "1Gi"}), namespace=team)
    wait_for("quota", lambda: site.kubectl.get("resourcequota", "gpu", team).get("status", {}).get("used"))
    container = gpu_container(core=5)
    container["resources"]["limits"] |= {"cpu": "40m", "memory": "32Mi"}
    site.kubectl.create(pod("one", container), namespace=team)
    assert site.kubectl.get("resourcequota", "gpu", team)["status"]["used"]["requests.cpu"] == "90m"
    assert site.pod(team, "one")["status"]["qosClass"] == "Guaranteed"


def test_a_limit_range_gives_its_defaults_and_leaves_the_sidecar_its_own(site: Site) -> None:
    team = site.namespace()
    usual = {
        "type": "Container",
        "default": {"cpu": "200m", "memory": "64Mi"},
        "defaultRequest": {"cpu": "20m", "memory": "32Mi"},
        "max": {"cpu": "300m", "memory": "128Mi"},
    }
    made = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "usual"}, "spec": {"limits": [usual]}}
    site.kubectl.create(made, namespace=team)
    site.kubectl.create(pod("one", gpu_container(script="true", core=5)), namespace=team)
    spec = site.wait_phase(team, "one", "Succeeded")["spec"]
    assert spec["containers"][0]["resources"]["limits"]["cpu"] == "200m"
    assert spec["initContainers"][0]["resources"]["limits"]["cpu"] == "50m"


def test_pod_security_restricted_passes_what_we_add(site: Site) -> None:
    team = site.namespace(labels={"pod-security.kubernetes.io/enforce": "restricted"})
    context = {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "runAsNonRoot": True,
        "runAsUser": 1000,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    container = {**gpu_container(script="cat /run/slicekeeper/seat.json", core=5), "securityContext": context}
    site.kubectl.create(pod("one", container), namespace=team)
    done = site.wait_phase(team, "one", "Succeeded")
    assert done["spec"]["initContainers"][0]["name"] == names.SIDECAR
    assert '"seat-' in site.kubectl("logs", "one", "-c", "train", "-n", team)
