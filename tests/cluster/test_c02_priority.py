# SPDX-License-Identifier: Apache-2.0
"""Class, priority and preemption policy are exact, under the API server's own check and beside other webhooks."""

from __future__ import annotations

import pytest
from cluster.harness.kubectl import Object, Refused
from cluster.harness.mesh import mesh
from cluster.harness.site import Site, gpu_container, pod

from slicekeeper import names

STANDARD = ("gpu-default-priority", 0, "PreemptLowerPriority")
LOWER = ("gpu-lower-priority", -100, "Never")


def _class(made: Object) -> tuple[str, int, str]:
    spec = made["spec"]
    return spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]


def test_a_pod_in_budget_has_the_default_class(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("one", gpu_container(core=5)), namespace=team)
    assert _class(site.pod(team, "one")) == STANDARD


def test_background_work_has_the_lower_class(site: Site) -> None:
    team = site.namespace()
    made = pod("one", gpu_container(core=5), annotations={names.GPU_CLASS: names.BACKGROUND})
    site.kubectl.create(made, namespace=team)
    assert _class(site.pod(team, "one")) == LOWER


def test_a_class_of_the_users_own_is_refused(site: Site) -> None:
    team = site.namespace()
    made = pod("one", gpu_container(core=5), priorityClassName="system-cluster-critical")
    with pytest.raises(Refused, match="priorityClassName"):
        site.kubectl.create(made, namespace=team)


def test_other_webhooks_before_and_after_ours(site: Site) -> None:
    team = site.namespace()
    with mesh(site, team):
        site.kubectl.create(pod("one", gpu_container(script="sleep 3", core=5)), namespace=team)
        made = site.pod(team, "one")
        init = [container["name"] for container in made["spec"]["initContainers"]]
        assert set(init) == {"aa-sidecar", names.SIDECAR, "zz-sidecar"}
        assert init.index(names.SIDECAR) < init.index("zz-sidecar")
        assert _class(made) == STANDARD
        [variable] = [
            e
            for e in made["spec"]["initContainers"][init.index(names.SIDECAR)]["env"]
            if e["name"] == "SLICEKEEPER_SIDECAR_CONTAINERS"
        ]
        assert variable["value"] == "train"
        site.wait_phase(team, "one", "Succeeded")


def test_a_pod_of_others_is_left_as_it_was(site: Site) -> None:
    team = site.namespace()
    bare = gpu_container()
    del bare["resources"]
    site.kubectl.create(pod("plain", bare), namespace=team)
    made = site.pod(team, "plain")
    assert "initContainers" not in made["spec"]
    assert "finalizers" not in made["metadata"]
    assert "priorityClassName" not in made["spec"]
