# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper check` as a whole: what is missing, and what is left."""

from __future__ import annotations

import json

import pytest
from support.checked_cluster import (
    ADMISSION,
    AGENTS,
    API_SERVICE,
    ARBITERS,
    DEPLOYMENTS,
    FRACTION,
    MARKS,
    NODES,
    PRIORITY_CLASSES,
    STORAGE_CLASSES,
    TRUSTED,
    Server,
    check,
    node,
    problems,
)

from slicekeeper import names
from slicekeeper.kube import break_glass_record


def test_a_whole_installation_is_in_order(server: Server) -> None:
    server.install()
    server.pod("admitted", FRACTION, **MARKS)
    server.pod("plain", {"cpu": "1"})
    done = check(server)
    assert (done.exit_code, done.output) == (0, "nothing is missing, nothing is unmetered\n")
    assert server.patches == []


@pytest.mark.parametrize(
    ("path", "told"),
    [
        (f"{DEPLOYMENTS}/webhook", "deployment webhook is missing"),
        (f"{PRIORITY_CLASSES}/gpu-lower-priority", "PriorityClass gpu-lower-priority is miss"),
        (f"{ADMISSION}/validatingwebhookconfigurations/slicekeeper", "validatingwebhookconfigurations slicekeeper is"),
        (
            f"{ADMISSION}/validatingadmissionpolicybindings/slicekeeper-bindings",
            "guard slicekeeper-bindings is missing",
        ),
        (f"{ADMISSION}/validatingadmissionpolicies/slicekeeper-nodes", "guard slicekeeper-nodes is missing"),
        (AGENTS, "daemonset nodeagent is missing"),
        (ARBITERS, "daemonset arbiter is missing"),
        (API_SERVICE, f"apiservice {names.API_SERVICE} is missing"),
    ],
)
def test_what_is_missing_is_named_with_its_remedy(server: Server, path: str, told: str) -> None:
    server.install()
    del server.objects[path]
    done = check(server)
    assert done.exit_code == 1
    assert told in done.output
    assert "| kubectl apply" in done.output


def test_parts_that_are_not_ready_and_nodes_without_gpus_are_named(server: Server) -> None:
    server.install()
    server.objects[f"{DEPLOYMENTS}/scheduler"] = {"status": {}}
    server.objects[f"{ADMISSION}/mutatingwebhookconfigurations/slicekeeper"]["webhooks"][0]["clientConfig"] = {}
    server.objects[NODES][0]["metadata"]["annotations"] = {}
    server.objects[AGENTS]["status"]["numberReady"] = 1
    del server.objects[TRUSTED]
    server.objects[f"{ADMISSION}/validatingadmissionpolicybindings/slicekeeper-nodes"]["spec"] = {}
    told = check(server).output
    assert "daemonset nodeagent is ready on 1 of 2 nodes" in told
    assert "configmap slicekeeper-ca.crt is missing" in told
    assert "guard slicekeeper-nodes denies nothing" in told
    assert "deployment scheduler has no ready pod" in told
    assert "mutatingwebhookconfigurations slicekeeper trusts no CA" in told
    assert "no node shows GPUs" in told


def test_another_namespace_than_the_installations_is_told(server: Server) -> None:
    server.install()
    done = check(server, "-n", "typo")
    assert done.exit_code == 1
    assert "slicekeeper check -n slicekeeper-system, which has one" in done.output


def test_one_thing_is_mended_at_a_time(server: Server) -> None:
    server.install()
    done = check(server, "--repair", "--adopt")
    assert (done.exit_code, "give one of them" in done.output) == (2, True)


def test_records_that_wait_for_the_timekeeper_are_named(server: Server) -> None:
    server.install()
    pods = [{"metadata": {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "1"}, "spec": {}}]
    [(record, _)] = break_glass_record.records(pods, {"team": "uid"}, {})
    server.objects["/api/v1/namespaces/slicekeeper-system/configmaps"] = [record]
    [told] = problems(check(server, "-o", "json"))
    name = record["metadata"]["name"]
    assert told == f"1 pods were released by --break-glass and are not charged yet (configmap {name})"


def test_breaking_glass_with_nothing_to_let_go_writes_nothing(server: Server) -> None:
    server.objects["/api/v1/namespaces"] = [{"metadata": {"name": "team", "uid": "uid"}}]
    server.pod("runs", FRACTION, **MARKS)
    done = check(server, "--break-glass")
    assert (done.exit_code, server.patches) == (0, [])
    assert "0 pods released" in done.output


def test_an_api_server_that_is_too_old_is_named(server: Server) -> None:
    server.install()
    server.objects["/version"] = {"gitVersion": "v1.29.9-eks-1"}
    assert "the API server is v1.29.9-eks-1: it must be v1.30 or newer" in problems(check(server, "-o", "json"))


@pytest.mark.parametrize("operator", ["objects", "sharepods"])
def test_an_operator_is_looked_at_where_it_is_installed(server: Server, operator: str) -> None:
    server.install()
    server.objects[f"{DEPLOYMENTS}/{operator}"] = {"metadata": {"name": operator}, "status": {}}
    assert problems(check(server, "-o", "json")) == [f"deployment {operator} has no ready pod"]


def test_before_the_installation_the_cluster_is_looked_at(server: Server) -> None:
    bare = {"metadata": {"name": "gpu-1", "labels": {"feature.node.kubernetes.io/pci-10de.present": "true"}}}
    server.objects[NODES] += [bare, {"metadata": {"name": "cpu-1"}}]
    found = {one["problem"]: one["remedy"] for one in json.loads(check(server, "-o", "json").stdout)}
    storage, label, nothing = sorted(found)
    assert nothing == "nothing is installed in namespace slicekeeper-system"
    assert found[nothing].startswith("helm install slicekeeper manifests/chart -n slicekeeper-system")
    assert storage.startswith("no StorageClass is the default")
    assert label.startswith("no node shows GPUs, and none has the label slicekeeper.io/gpus=true")
    assert found[label] == "kubectl label node gpu-1 slicekeeper.io/gpus=true"
    server.objects[NODES] = [node("gpu-1", runtime="containerd://1.7.27")]
    default = {"storageclass.kubernetes.io/is-default-class": "true"}
    server.objects[STORAGE_CLASSES] = [{"metadata": {"name": "standard", "annotations": default}}]
    told = problems(check(server, "-o", "json"))
    assert not any("StorageClass" in problem for problem in told)
    assert any("containerd 1.7.27, in which CDI is off unless" in problem for problem in told)
