# SPDX-License-Identifier: Apache-2.0
"""What the cluster's administrators limit holds on the pod as it was completed: quota, LimitRange, Pod Security."""

from __future__ import annotations

import json

import pytest
from cluster.harness.kubectl import Refused, wait_for
from cluster.harness.site import CORE, MEMORY, Site, gpu_container, plain_container, pod

from slicekeeper import names


def _quota(hard: dict[str, str]) -> dict[str, object]:
    return {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpu"}, "spec": {"hard": hard}}


def test_a_quota_on_compute_and_memory_holds(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(_quota({f"requests.{CORE}": "50", f"requests.{MEMORY}": "40"}), namespace=team)
    wait_for(lambda: site.kubectl.get("resourcequota", "gpu", team).get("status", {}).get("used"), "quota")
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
    wait_for(lambda: site.kubectl.get("resourcequota", "gpu", team).get("status", {}).get("used"), "quota")
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


def test_a_limit_range_that_gives_gpus_gives_the_sidecar_none(site: Site) -> None:
    team = site.namespace()
    usual = {"type": "Container", "default": {CORE: "5", MEMORY: "1"}, "max": {CORE: "20", MEMORY: "8"}}
    made = {"apiVersion": "v1", "kind": "LimitRange", "metadata": {"name": "gpu"}, "spec": {"limits": [usual]}}
    site.kubectl.create(made, namespace=team)
    site.kubectl.create(pod("defaulted", plain_container(script="cat /run/slicekeeper/seat.json")), namespace=team)
    spec = site.wait_phase(team, "defaulted", "Succeeded")["spec"]
    assert spec["containers"][0]["resources"]["limits"][CORE] == "5"
    assert spec["initContainers"][0]["resources"]["limits"][CORE] == "0"
    with pytest.raises(Refused, match="maximum tencent.com/vcuda-core usage per Container is 20"):
        site.kubectl.create(pod("large", gpu_container(core=50, blocks=1)), namespace=team)


def _has_pod_resources(site: Site) -> bool:
    """Whether pods may have resources as a whole: since Kubernetes 1.34."""
    return int(json.loads(site.kubectl("version", "-o", "json"))["serverVersion"]["minor"].rstrip("+")) >= 34


def test_a_pod_that_requests_no_cpu_or_memory_stays_best_effort(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("one", gpu_container(script="true", core=5)), namespace=team)
    assert site.wait_phase(team, "one", "Succeeded")["status"]["qosClass"] == "BestEffort"


def test_the_sidecar_fits_into_a_pod_whose_own_amounts_are_all_requested(site: Site) -> None:
    team = site.namespace()
    whole = {"cpu": "40m", "memory": "64Mi"}
    container = gpu_container(script="true", core=5)
    container["resources"]["limits"] |= whole
    made = pod("full", container, resources={"limits": whole})
    # An older API server drops the amounts of the pod if kubectl lets it, and refuses them otherwise.
    strict = "--validate=strict" if _has_pod_resources(site) else "--validate=ignore"
    site.kubectl("create", strict, "-n", team, "-f", "-", stdin=json.dumps(made))
    spec = site.wait_phase(team, "full", "Succeeded")["spec"]
    if _has_pod_resources(site):
        assert spec["resources"]["limits"] == whole


def test_a_pod_is_resized_in_place_beside_one_with_resources_of_its_own(site: Site) -> None:
    if not _has_pod_resources(site):
        pytest.skip("resources of a pod as a whole came with Kubernetes 1.34")
    team = site.namespace()
    whole = {"limits": {"cpu": "300m", "memory": "256Mi"}}
    site.kubectl.create(pod("whole", gpu_container(core=5), resources=whole), namespace=team)
    container = gpu_container(core=5)
    container["resources"]["limits"] |= {"cpu": "40m", "memory": "32Mi"}
    site.kubectl.create(pod("one", container), namespace=team)
    for name in ("whole", "one"):
        site.wait_phase(team, name, "Running")

    def resize(amounts: dict[str, str]) -> None:
        change = {"spec": {"containers": [{"name": "train", "resources": {"limits": amounts, "requests": amounts}}]}}
        site.kubectl("patch", "pod", "one", "--subresource=resize", "-p", json.dumps(change), "-n", team)

    resize({"cpu": "60m"})
    wait_for(
        lambda: site.pod(team, "one")["status"]["containerStatuses"][0]["resources"]["limits"]["cpu"] == "60m",
        "more compute time",
    )
    with pytest.raises(Refused):
        resize({CORE: "10"})


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
    wait_for(lambda: '"seat-' in site.kubectl("logs", "one", "-c", "train", "-n", team), "its seat")
