# SPDX-License-Identifier: Apache-2.0
"""What an uninstallation left behind is named, and taken away by `--repair`."""

from __future__ import annotations

import pytest
from support.checked_cluster import FRACTION, MARKS, PODS, Server, check

from slicekeeper import names


def test_what_is_left_behind_is_named_and_taken_away(server: Server) -> None:
    server.install()
    server.uninstall()
    server.pod("held", FRACTION, **MARKS)
    told = check(server).output
    assert "pod team/held still has our finalizer, and nothing will remove it" in told
    assert "node n shows GPUs, and nothing will remove it" in told
    assert server.patches == []
    done = check(server, "--repair")
    assert done.exit_code == 0
    assert "2 things removed" in done.output
    patches = dict(server.patches)
    assert patches["/api/v1/namespaces/team/pods/held"] == [
        {"op": "test", "path": "/metadata/uid", "value": "held-uid"},
        {"op": "test", "path": "/metadata/finalizers/1", "value": names.FINALIZER},
        {"op": "remove", "path": "/metadata/finalizers/1"},
    ]
    gone = {names.NODE_GPUS: None, names.NODE_AGENT: None, names.NODE_MACHINE: None}
    assert patches["/api/v1/nodes/n/status"]["metadata"] == {"annotations": gone}


@pytest.mark.parametrize("namespace", ["slicekeeper-system", "typo"])
def test_repair_takes_nothing_from_an_installation_that_is_there(server: Server, namespace: str) -> None:
    server.install()
    server.pod("held", FRACTION, **MARKS)
    done = check(server, "--repair", "-n", namespace)
    assert (done.exit_code, server.patches) == (0, [])
    assert "0 things removed" in done.output


def test_a_pod_that_waits_behind_our_gate_is_let_go_and_told(server: Server) -> None:
    server.pod("waits", FRACTION)
    spec = server.objects[PODS][0]["spec"]
    del spec["nodeName"]
    spec |= {"schedulerName": "slicekeeper-scheduler", "schedulingGates": [{"name": "a/b"}, {"name": names.GATE}]}
    done = check(server, "--repair")
    assert [path for path, _ in server.patches] == ["/api/v1/namespaces/team/pods/waits"]
    assert server.patches[0][1] == [
        {"op": "test", "path": "/metadata/uid", "value": "waits-uid"},
        {"op": "test", "path": "/spec/schedulingGates/1/name", "value": names.GATE},
        {"op": "remove", "path": "/spec/schedulingGates/1"},
    ]
    assert done.exit_code == 1
    assert "team/waits waits for slicekeeper-scheduler, which is gone" in done.output
    assert "kubectl delete pod -n team waits" in done.output


def test_what_changed_while_it_was_repaired_is_told(server: Server) -> None:
    server.pod("held", FRACTION, **MARKS)
    server.patch_status = 422
    done = check(server, "--repair")
    assert done.exit_code == 1
    assert "0 things removed" in done.output
    assert "pod team/held still has our finalizer, and nothing will remove it" in done.output
