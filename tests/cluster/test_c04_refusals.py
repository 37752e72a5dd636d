# SPDX-License-Identifier: Apache-2.0
"""A mistake is reported to its author, in the same words everywhere, and leaves no trace."""

from __future__ import annotations

import json

import pytest
from cluster.harness.kubectl import Object, Refused, wait_for
from cluster.harness.site import Site, deployment, gpu_container, job, pod, template

from slicekeeper import names


def test_a_malformed_deployment_is_refused_at_apply(site: Site) -> None:
    team = site.namespace()
    with pytest.raises(Refused) as refused:
        site.kubectl.apply(deployment("serve", gpu_container(core=150)), namespace=team)
    told = str(refused.value)
    for part in ("'train'", "vcuda-core", "150", "multiple of 100", "for example"):
        assert part in told, told
    assert site.kubectl.list("deployments", team) == []


@pytest.mark.parametrize("kind", ["Job", "CronJob", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController"])
def test_every_kind_of_template_is_checked(site: Site, kind: str) -> None:
    team = site.namespace()
    made = template(gpu_container(core=20, blocks=None), restartPolicy="Never" if "Job" in kind else "Always")
    spec: Object = {"template": made}
    if kind == "CronJob":
        spec = {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": spec}}
    elif kind != "Job":
        spec["selector"] = {"app": "test"} if kind == "ReplicationController" else {"matchLabels": {"app": "test"}}
        spec |= {"serviceName": "x"} if kind == "StatefulSet" else {}
    group = "batch/v1" if "Job" in kind else "v1" if kind == "ReplicationController" else "apps/v1"
    with pytest.raises(Refused, match="vcuda-memory"):
        site.kubectl.create(
            {"apiVersion": group, "kind": kind, "metadata": {"name": "bad"}, "spec": spec}, namespace=team, dry_run=True
        )


def test_the_pod_that_a_replicaset_makes_is_refused_by_its_own_review(site: Site) -> None:
    """Only templates that the webhook missed get this far, so its look at templates is taken away for a moment."""
    team = site.namespace()
    saved = site.kubectl.get("validatingwebhookconfiguration", "slicekeeper")
    pods_only = [hook for hook in saved["webhooks"] if hook["name"].startswith("pods.")]
    site.kubectl.patch("validatingwebhookconfiguration", "slicekeeper", {"webhooks": pods_only})
    try:
        bad = gpu_container(core=150)
        wait_for(lambda: _passes(site, team, bad), "template that passes")
        events = wait_for(lambda: site.events(team, "FailedCreate"), "refusal of the ReplicaSet's pod")
    finally:
        site.kubectl.patch("validatingwebhookconfiguration", "slicekeeper", {"webhooks": saved["webhooks"]})
    assert "multiple of 100" in events[0]["message"]
    with pytest.raises(Refused) as by_dry_run:
        site.kubectl.create(pod("one", bad), namespace=team, dry_run=True)
    with pytest.raises(Refused) as by_pod:
        site.kubectl.create(pod("one", bad), namespace=team)
    assert "multiple of 100" in str(by_pod.value)
    assert str(by_pod.value) == str(by_dry_run.value)
    assert site.pods(team) == []


def test_a_dry_run_answers_alike_and_leaves_no_trace(site: Site) -> None:
    team = site.namespace()
    tried = pod("one", gpu_container(core=20))
    command = ("create", "--dry-run=server", "-n", team, "-f", "-", "-o", "json")
    dry: Object = json.loads(site.kubectl(*command, stdin=json.dumps(tried)))
    assert site.pods(team) == []
    site.kubectl.create(tried, namespace=team)
    real = site.pod(team, "one")
    for key in ("priorityClassName", "priority", "schedulerName", "containers"):
        assert _steady(dry["spec"][key]) == _steady(real["spec"][key])
    assert dry["metadata"]["finalizers"] == real["metadata"]["finalizers"]
    assert set(site.workloads(team)) <= {real["metadata"]["uid"]}


def test_an_admitted_pod_can_be_replaced_by_its_own_yaml(site: Site) -> None:
    team = site.namespace()
    site.kubectl.create(pod("one", gpu_container(core=20), nodeSelector={"nowhere": "true"}), namespace=team)
    before = site.pod(team, "one")
    text = site.kubectl("get", "pod", "one", "-n", team, "-o", "yaml")
    site.kubectl("replace", "--force", "-n", team, "-f", "-", stdin=text)
    after = site.pod(team, "one")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert [c["name"] for c in after["spec"]["initContainers"]] == [names.SIDECAR]
    assert after["metadata"]["finalizers"].count(names.FINALIZER) == 1


def test_a_pod_that_runs_can_be_replaced_by_its_own_yaml(site: Site) -> None:
    """kubectl deletes it first, so a refusal would lose it."""
    team = site.namespace()
    site.kubectl.create(pod("one", gpu_container(core=20)), namespace=team)
    before = site.wait_phase(team, "one", "Running")
    text = site.kubectl("get", "pod", "one", "-n", team, "-o", "yaml")
    site.kubectl("replace", "--force", "-n", team, "-f", "-", stdin=text)
    after = site.wait_phase(team, "one", "Running")
    assert after["metadata"]["uid"] != before["metadata"]["uid"]
    assert after["metadata"]["annotations"][names.BOUND_AT] > before["metadata"]["annotations"][names.BOUND_AT]
    same = ("--copy-to=two", "--same-node", "--set-image=train=" + after["spec"]["containers"][0]["image"])
    site.kubectl("debug", "one", "-n", team, *same, "--attach=false")
    assert names.gpu_annotation("train") in site.wait_phase(team, "two", "Running")["metadata"]["annotations"]


def test_an_ephemeral_container_gets_no_gpu_from_nvidias_runtime(site: Site) -> None:
    """By the image or by `kubectl debug --env`: the mutating webhook writes `void`, the validating one insists."""
    team = site.namespace()
    site.kubectl.create(pod("one", gpu_container(core=20)), namespace=team)
    running = site.wait_phase(team, "one", "Running")
    image = running["spec"]["containers"][0]["image"]
    site.kubectl("debug", "one", "-n", team, f"--image={image}", "--container=look", "--attach=false", "--", "true")
    [look] = site.pod(team, "one")["spec"]["ephemeralContainers"]
    assert look["env"] == [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}]
    more = (f"--image={image}", "--container=more", "--attach=false", "--env=NVIDIA_VISIBLE_DEVICES=all", "--", "true")
    with pytest.raises(Refused, match="would show it other containers' GPUs"):
        site.kubectl("debug", "one", "-n", team, *more)
    with pytest.raises(Refused, match="a privileged container sees all GPUs"):
        site.kubectl("debug", "one", "-n", team, *more[:3], "--profile=sysadmin", "--", "true")


def test_whole_devices_of_another_plugin_are_refused_where_the_policy_says_so(site: Site) -> None:
    strict = site.namespace("strict")
    container = gpu_container()
    container["resources"] = {"limits": {"nvidia.com/gpu": "1"}}
    with pytest.raises(Refused, match="nvidia.com/gpu"):
        site.kubectl.create(job("way-round", container), namespace=strict)


def _passes(site: Site, team: str, container: Object) -> bool:
    try:
        site.kubectl.create(deployment("serve", container), namespace=team)
    except Refused:
        return False
    return True


def _steady(value: object) -> str:
    """Return a value as text, without the random name of the token's volume."""
    return json.dumps(value, sort_keys=True).partition("kube-api-access")[0]
