# SPDX-License-Identifier: Apache-2.0
"""What is installed is compared with the settings, place by place."""

from __future__ import annotations

import json

import pytest
from support.checked_cluster import DEPLOYMENTS, Server, check, problems, with_registry

POLICY = "/api/v1/namespaces/slicekeeper-system/configmaps/slicekeeper-policy"
IN_BUDGET = "classes: {inBudget: {name: gpu-default-priority, value: 7, preemptionPolicy: PreemptLowerPriority}}"


def test_the_manifests_are_as_their_settings_say_and_only_a_registry_is_missing(server: Server) -> None:
    server.install_manifests()
    [told] = problems(check(server, "-o", "json"))
    assert told.startswith("images.registry is not set: slicekeeper.invalid is no registry")
    server.install_manifests(with_registry)
    assert problems(check(server, "-o", "json")) == []


@pytest.mark.parametrize(
    ("policy", "wrong"),
    [
        ("default: {budget: {amount: 20x}}", "budget.amount: not a duration; for example 20h"),
        ("default: {budget: {timeZone: Mars/Base}}", "'Mars/Base' is no IANA time zone"),
        ("default: [", "not valid YAML"),
        ("namespaces: [{match: a}, {match: a}]", "match a is in an entry above"),
    ],
)
def test_a_policy_file_that_the_parts_refuse_is_named(server: Server, policy: str, wrong: str) -> None:
    server.install_manifests(with_registry)
    server.objects[POLICY]["data"]["policy.yaml"] = policy
    for accepted, kept in ((False, "no pod gets a GPU until it is corrected"), (True, "the last one without errors")):
        if accepted:
            earlier = {"metadata": {"name": "slicekeeper-accepted-policy"}, "data": {"policy.yaml": ""}}
            server.objects[POLICY.replace("slicekeeper-policy", "slicekeeper-accepted-policy")] = earlier
        [told] = problems(check(server, "-o", "json"))
        assert told.startswith(f"the policy is refused, {kept}")
        assert ": configmap slicekeeper-policy" in told
        assert wrong in told


def test_an_entry_of_the_policy_that_never_applies_is_named(server: Server) -> None:
    server.install_manifests(with_registry)
    server.objects[POLICY]["data"]["policy.yaml"] = "namespaces: [{match: '*'}, {match: 'a-*'}]"
    [told] = problems(check(server, "-o", "json"))
    assert "match a-* never applies" in told


def test_no_line_is_wider_than_the_terminal(server: Server) -> None:
    told = check(server, COLUMNS="80").stdout
    assert told.startswith("- ")
    assert "    remedy: " in told
    assert max(map(len, told.splitlines())) <= 80


def test_images_that_are_not_those_of_the_settings_are_named(server: Server) -> None:
    def change(text: str) -> str:
        return with_registry(text).replace("registry.example/timekeeper:", "elsewhere.example/timekeeper:")

    server.install_manifests(change)
    for told, part in zip(problems(check(server, "-o", "json")), ("timekeeper", "timekeeper-forwarder"), strict=True):
        assert told.startswith(f"deployment {part} has the image elsewhere.example/timekeeper:")
        assert "the settings say registry.example/timekeeper:" in told


def test_settings_that_were_renamed_without_the_manifests_are_named_place_by_place(server: Server) -> None:
    def change(text: str) -> str:
        renamed = "    resources: {core: gpu.example/percent, device: nvidia.com/gpu}\n    webhook:\n"
        return with_registry(text).replace("    webhook:\n", renamed, 1)

    server.install_manifests(change)
    server.pod("share", {"gpu.example/percent": "50", "tencent.com/vcuda-memory": "8"})
    told = problems(check(server, "-o", "json"))
    for place in (
        "mutatingwebhookconfigurations slicekeeper, webhook pods.mutate.slicekeeper.io, is asked about",
        "validatingwebhookconfigurations slicekeeper, webhook cronjobs.validate.slicekeeper.io, is asked about",
    ):
        [line] = [line for line in told if line.startswith(place)]
        assert "tencent.com/vcuda-core, nvidia.com/gpu.shared, nvidia.com/mig-*, which the settings do not name" in line
        assert line.endswith("but not gpu.example/percent")
    assert any(
        line.startswith("guard slicekeeper-nodes guards the capacity of tencent.com/vcuda-core") for line in told
    )
    assert any("the extender is asked about tencent.com/vcuda-core" in line for line in told)
    assert "pod team/share uses GPUs unmetered" in told, "pods are looked for by the installed names"


def test_settings_given_to_the_command_are_compared_with_the_installed_ones(server: Server) -> None:
    server.install_manifests(with_registry)
    done = check(server, "-o", "json", SLICEKEEPER_RESOURCES_MEMORY="gpu.example/blocks")
    told = problems(done)
    assert told[0] == (
        "configmap slicekeeper-config has resources.memory tencent.com/vcuda-memory, "
        "and this command was given gpu.example/blocks"
    )
    assert any("webhook jobs" in line or "webhook workloads" in line for line in told)
    assert problems(check(server, "-o", "json", SLICEKEEPER_RESOURCES_MEMORY="tencent.com/vcuda-memory")) == []


def test_another_schedulers_name_is_told(server: Server) -> None:
    server.install_manifests(
        lambda text: with_registry(text).replace('- schedulerName: "slicekeeper-s', '- schedulerName: "s')
    )
    assert problems(check(server, "-o", "json")) == [
        "configmap slicekeeper-kube-scheduler has the scheduler scheduler, and webhook.schedulerName is "
        "slicekeeper-scheduler"
    ]


def test_a_shard_without_a_scheduler_is_told(server: Server) -> None:
    server.install_manifests(lambda text: with_registry(text).replace("      shards: []\n", "      shards: [b]\n"))
    assert problems(check(server, "-o", "json")) == ["deployment scheduler-b is missing"]
    first = server.objects[f"{DEPLOYMENTS}/scheduler"]
    server.objects[f"{DEPLOYMENTS}/scheduler-b"] = {**first, "metadata": {**first["metadata"], "name": "scheduler-b"}}
    assert problems(check(server, "-o", "json")) == []


def test_namespaces_classes_and_audience_that_are_not_the_settings_are_named_place_by_place(server: Server) -> None:
    changed = (
        ("      - kube-node-lease\n      - slicekeeper-system\n", "      - infra\n      - infra-*\n"),
        ("      audience: timekeeper\n", "      audience: budgets\n"),
    )

    def change(text: str) -> str:
        text = with_registry(text).replace("value: -100\npreemption", "value: -5\npreemption")
        for before, after in changed:
            text = text.replace(before, after, 1)
        return text.replace("    webhook:\n", f"    {IN_BUDGET}\n    webhook:\n", 1)

    server.install_manifests(change)
    told = problems(check(server, "-o", "json"))
    differs = "kube-node-lease, which the settings do not name, but not infra"
    for place in (
        "mutatingwebhookconfigurations slicekeeper, webhook pods.mutate.slicekeeper.io, leaves out",
        "validatingwebhookconfigurations slicekeeper, webhook cronjobs.validate.slicekeeper.io, leaves out",
        "guard slicekeeper-scheduler keeps the scheduler from pods of",
        "guard slicekeeper-other-namespaces keeps evictions from pods of",
    ):
        assert f"{place} {differs}" in told
    assert (
        "guard slicekeeper-scheduler compares priorities with 0, and the settings say classes.inBudget.value 7" in told
    )
    assert "PriorityClass gpu-default-priority has value 0, and the settings say 7" in told
    assert "PriorityClass gpu-lower-priority has value -5, and the settings say -100" in told
    assert "deployment webhook has a token for the audience timekeeper, and timekeeper.audience is budgets" in told
    assert len(told) == len(set(told))


@pytest.mark.parametrize(
    ("ours", "fits"), [("v1.35.9", False), ("v1.36.0", True), ("v1.37.2", True), ("v1.38.1", False)]
)
def test_a_kube_scheduler_that_does_not_fit_the_api_server_is_named(server: Server, ours: str, fits: bool) -> None:
    tag = "kube-scheduler:v1.37.2"
    server.install_manifests(lambda text: with_registry(text).replace(tag, tag.replace("v1.37.2", ours)))
    found = json.loads(check(server, "-o", "json").stdout)
    assert bool(found) is not fits
    for one in found:
        assert f"kube-scheduler is {ours[:5]}, the API server v1.37:" in one["problem"]
        assert "--set kubeScheduler.version=VERSION" in one["remedy"]
