# SPDX-License-Identifier: Apache-2.0
"""Every overlay renders and is taken by a real API server; the rendered file is that of today."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from cluster.harness import cluster as clusters
from cluster.harness import control_groups
from cluster.harness.install import ROOT
from cluster.harness.site import Site

from slicekeeper.config import manifests


def _render(site: Site, overlay: str) -> str:
    command = [str(site.kubectl.program), "kustomize", str(ROOT / "manifests/overlays" / overlay)]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def test_the_rendered_file_is_up_to_date(site: Site) -> None:
    kept = (ROOT / "manifests/install.yaml").read_text()
    assert kept.endswith(_render(site, "default")), "render it again; its first lines say how"


@pytest.mark.parametrize("overlay", ["default", "observe", "cert-manager", "playground", "postgresql"])
def test_an_overlay_is_accepted_by_the_api_server(site: Site, overlay: str) -> None:
    objects = [o for o in yaml.safe_load_all(_render(site, overlay)) if "cert-manager.io" not in o["apiVersion"]]
    site.kubectl("apply", "--dry-run=server", "-f", "-", stdin=yaml.safe_dump_all(objects))


def test_renamed_resources_are_accepted_by_the_api_server(site: Site, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(ROOT / "manifests", tmp_path / "manifests"))
    config = folder / "base/config/config.yaml"
    names = (
        "{core: gpu.example/percent, seat: gpu.example/seat, device: [nvidia.com/gpu, 'gpu.example/slice-*', 'a.b/*']}"
    )
    config.write_text(f"{config.read_text()}resources: {names}\n")
    manifests.write(folder)
    rendered = site.kubectl("kustomize", str(folder / "overlays/default"))
    assert "gpu.example/percent" in rendered
    site.kubectl("apply", "--dry-run=server", "-f", "-", stdin=rendered)


@pytest.mark.parametrize("overlay", ["default", "playground", "postgresql"])
def test_every_pod_has_probes_and_limits_and_none_holds_up_a_drain(site: Site, overlay: str) -> None:
    objects = list(yaml.safe_load_all(_render(site, overlay)))
    pods = {o["metadata"]["name"]: o["spec"] for o in objects if o["kind"] in ("Deployment", "DaemonSet")}
    more = {"objects"} if overlay == "playground" else set()
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
