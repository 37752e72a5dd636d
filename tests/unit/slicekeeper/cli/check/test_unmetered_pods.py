# SPDX-License-Identifier: Apache-2.0
"""Pods that use GPUs unmetered: they are named, and charged from now on by --adopt."""

from __future__ import annotations

import json

from support.checked_cluster import FRACTION, Server, check

from slicekeeper import names


def test_pods_from_before_are_found_and_shown(server: Server) -> None:
    server.install()
    server.pod("share", FRACTION)
    server.pod("whole", {"nvidia.com/gpu": "2"})
    server.pod("odd", {"tencent.com/vcuda-core": "250"})
    done = check(server, "-o", "json")
    assert done.exit_code == 1
    found = {f["problem"]: f["remedy"] for f in json.loads(done.stdout)}
    for name in ("share", "whole"):
        assert "check --adopt" in found[f"pod team/{name} uses GPUs unmetered"]
    [odd] = [problem for problem in found if "team/odd" in problem]
    assert "cannot be charged" in odd
    assert "tencent.com/vcuda-core" in odd
    assert server.patches == []


def test_pods_of_namespaces_that_a_gpu_policy_exempts_are_not_looked_for(server: Server) -> None:
    server.install()
    server.pod("whole", {"nvidia.com/gpu": "2"})
    for spec in ({"match": ["team"], "nvidiaGpu": "ignored"}, {"match": ["t*"], "mode": "off"}):
        metadata = {"name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
        server.objects["/apis/slicekeeper.io/v1alpha1/gpupolicies"] = [{"metadata": metadata, "spec": spec}]
        assert check(server).exit_code == 0


def test_amounts_of_zero_use_no_gpu(server: Server) -> None:
    server.install()
    server.pod("ours", {"tencent.com/vcuda-core": "0", "tencent.com/vcuda-memory": "0"})
    server.pod("theirs", {"nvidia.com/gpu": "0"})
    assert check(server).exit_code == 0


def test_adopting_marks_what_can_be_charged_and_nothing_else(server: Server) -> None:
    server.install()
    server.pod("share", FRACTION, finalizers=["other/one"])
    server.pod("whole", {"nvidia.com/gpu": "2"})
    server.pod("odd", {"tencent.com/vcuda-core": "250"})
    server.pod("going", FRACTION, deletionTimestamp="2026-01-01T00:00:00Z")
    done = check(server, "--adopt")
    assert done.exit_code == 1
    assert "team/odd" in done.stdout
    assert "team/going uses GPUs unmetered, and cannot be charged: it is" in done.stdout
    written = {path: body["metadata"] for path, body in server.patches}
    assert set(written) == {f"/api/v1/namespaces/team/pods/{name}" for name in ("share", "whole")}
    share = written["/api/v1/namespaces/team/pods/share"]
    assert share["finalizers"] == ["other/one", names.FINALIZER]
    assert share["labels"] == {names.MANAGED_LABEL: names.MANAGED_VALUE}
    assert share["annotations"][names.ADOPTED_AT].endswith("Z")
    assert share["resourceVersion"] == "7"


def test_a_pod_that_changed_meanwhile_is_told_and_left(server: Server) -> None:
    server.install()
    server.pod("share", FRACTION)
    server.patch_status = 409
    done = check(server, "--adopt")
    assert done.exit_code == 1
    assert "team/share has changed in the meantime" in done.output


def test_nothing_is_adopted_without_a_timekeeper(server: Server) -> None:
    server.pod("share", FRACTION)
    done = check(server, "--adopt")
    assert done.exit_code != 0
    assert "no timekeeper is installed" in str(done.exception)
    assert server.patches == []


def test_after_uninstalling_nobody_is_told_to_adopt(server: Server) -> None:
    server.pod("whole", {"nvidia.com/gpu": "1"})
    done = check(server, "--repair")
    assert (done.exit_code, done.stdout) == (0, "nothing is left\n")
