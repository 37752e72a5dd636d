# SPDX-License-Identifier: Apache-2.0
"""Every rendered file is taken by a real API server; every container has probes and limits."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
import yaml
from cluster.harness import cluster as clusters
from cluster.harness import control_groups, install
from cluster.harness.kubectl import Object
from cluster.harness.site import Site
from support import chart

VALUES: Mapping[str, install.Values] = {
    **chart.CHOICES,
    "cert-manager": {"components": {"certManager": True}},
    "playground": install.PLAYGROUND,
}


def _render(choice: str) -> list[Object]:
    return [one for one in yaml.safe_load_all(install.rendered(VALUES[choice])) if one]


@pytest.mark.parametrize("choice", VALUES)
def test_what_the_chart_renders_is_accepted_by_the_api_server(site: Site, choice: str) -> None:
    objects = [one for one in _render(choice) if "cert-manager.io" not in one["apiVersion"]]
    site.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(objects))


@pytest.mark.parametrize("choice", ["install", "playground", "install-postgresql"])
def test_every_pod_has_probes_and_limits_and_none_holds_up_a_drain(choice: str) -> None:
    objects = _render(choice)
    pods = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] in ("Deployment", "DaemonSet")}
    more = {"objects"} if choice == "playground" else set()
    parts = {"certificates", "timekeeper", "timekeeper-forwarder", "webhook", "scheduler", "nodeagent", "arbiter"}
    assert set(pods) == parts | more
    for name, spec in pods.items():
        for container in spec["template"]["spec"]["containers"]:
            what = f"{name}/{container['name']}"
            assert "livenessProbe" in container, what
            assert "readinessProbe" in container or container["name"] == "kube-scheduler", what
            assert container["resources"]["requests"].keys() == {"cpu", "memory"}, what
            assert "memory" in container["resources"]["limits"], what
            context = container["securityContext"]
            assert context["readOnlyRootFilesystem"], what
            more = {"add": ["SYS_PTRACE"]} if name == "arbiter" else {}
            assert context["capabilities"] == {"drop": ["ALL"], **more}, what
            assert not context["allowPrivilegeEscalation"], what
    budgets = [o["spec"] for o in objects if o["kind"] == "PodDisruptionBudget"]
    assert len(budgets) >= 2
    assert all(budget["maxUnavailable"] == 1 and "minAvailable" not in budget for budget in budgets)


def test_control_groups_that_are_still_busy_are_left_to_the_next_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "one"
    group = tmp_path / "memory/slicekeeper-one/kubepods/besteffort"
    (group / "a process that has not ended").mkdir(parents=True)
    (tmp_path / "memory/cgroup.procs").touch()
    folder.mkdir()
    monkeypatch.setattr(control_groups, "ROOT", tmp_path)
    monkeypatch.setattr(control_groups.time, "sleep", lambda _: None)
    (group / "a process that has not ended/tasks").touch()  # what keeps the folder from being removed
    clusters.remove(folder)
    assert folder.exists(), "only it tells the group's name"
    (group / "a process that has not ended/tasks").unlink()
    clusters.remove(folder)
    assert not (tmp_path / "memory/slicekeeper-one").exists()
    assert not folder.exists()


def test_the_guards_are_well_typed(site: Site) -> None:
    policies = site.kubectl.list("validatingadmissionpolicies")
    ours = [p for p in policies if p["metadata"]["name"].startswith("slicekeeper-")]
    assert len(ours) == 8
    for policy in ours:
        assert not policy["status"].get("typeChecking", {}).get("expressionWarnings")
