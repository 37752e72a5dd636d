# SPDX-License-Identifier: Apache-2.0
"""NVIDIA's runtime without CDI: no container of a GPU pod gets GPUs by a variable, a mount or an annotation."""

from typing import Any

import pytest
from support.json_patch import apply

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Resources, Settings, WebhookSettings
from webhook.admission import Admission
from webhook.review_inputs import Case

SETTINGS = Settings()
ADMISSION = Admission(SETTINGS)
CASE = Case("team", NamespacePolicy())
SHARE = {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 15}
DEVICES = {"nvidia.com/gpu": 1}
ALL = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
FIELD = {"apiVersion": "v1", "fieldPath": "metadata.annotations['gpu.slicekeeper.io/a']"}
CHOSEN = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": FIELD}}
INJECTIONS = ("meter", "seats", "limiter")


def pod(*containers: dict[str, Any], **spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": list(containers), **spec}}


def gpu(limits: dict[str, int], **more: Any) -> dict[str, Any]:
    return {"name": "a", "resources": {"limits": limits}, **more}


def injecting(injection: Any) -> Admission:
    settings = Settings(webhook=WebhookSettings(injection=injection))
    return Admission(settings)


def codes(manifest: dict[str, Any], judge: Admission = ADMISSION, case: Case = CASE) -> list[str]:
    return [violation.code for violation in judge.mutate(manifest, case).violations]


@pytest.mark.parametrize("limits", [SHARE, DEVICES])
@pytest.mark.parametrize("kind", ["app", "init", "sidecar", "gpu-sidecar"])
@pytest.mark.parametrize(
    "more", [{}, {"envFrom": [{"configMapRef": {"name": "c"}}]}, {"env": []}, {"env": [{"name": "A"}]}, {"env": None}]
)
def test_every_container_without_a_gpu_gets_void(limits: dict[str, int], kind: str, more: dict[str, Any]) -> None:
    if kind == "gpu-sidecar" and limits is SHARE:
        return  # the name is ours there
    other = {"name": "gpu-sidecar" if kind == "gpu-sidecar" else "b", "image": "nvidia/cuda:12", **more}
    manifest = pod(gpu(limits))
    if kind == "app":
        manifest["spec"]["containers"].append(other)
    else:
        manifest["spec"]["initContainers"] = [other | ({} if kind == "init" else {"restartPolicy": "Always"})]
    verdict = ADMISSION.mutate(manifest, CASE)
    done = apply(manifest, verdict.patch)
    every = [*done["spec"]["containers"], *done["spec"].get("initContainers", [])]
    [found] = [c for c in every if c["name"] == other["name"]]
    assert found["env"][-1] == VOID
    assert ADMISSION.mutate(done, CASE).patch == []
    assert ADMISSION.validate(done, CASE).allowed
    assert not ADMISSION.validate(manifest, CASE).allowed
    [holder] = [c for c in done["spec"]["containers"] if c["name"] == "a"]
    assert (VOID in holder.get("env", [])) is (limits is SHARE), "NVIDIA's plugin sets its own value"


@pytest.mark.parametrize("name", ["hostdev", "rdma_shared_device_a", "sriov_rdma_vf"])
def test_who_holds_another_device_of_nvidias_than_a_gpu_gets_void(name: str) -> None:
    """Network adapters, for one: their plugin sets no such variable, so the image's would show all GPUs."""
    manifest = pod(gpu(SHARE), {"name": "b", "resources": {"limits": {f"nvidia.com/{name}": 1}}})
    done = apply(manifest, ADMISSION.mutate(manifest, CASE).patch)
    assert done["spec"]["containers"][1]["env"] == [VOID]
    assert not ADMISSION.validate(manifest, CASE).allowed


@pytest.mark.parametrize("name", ["gpu", "gpu.shared", "gpu-a100", "mig-1g.5gb", "mig-1g.5gb.shared"])
def test_who_holds_a_gpu_of_the_plugin_keeps_its_variable_if_the_settings_do_not_name_it(name: str) -> None:
    settings = Settings(resources=Resources(device=()))
    judge = Admission(settings)
    manifest = pod(gpu(SHARE), {"name": "b", "resources": {"limits": {f"nvidia.com/{name}": 1}}})
    assert "env" not in apply(manifest, judge.mutate(manifest, CASE).patch)["spec"]["containers"][1]


def test_our_own_sidecar_gets_void_whoever_made_its_image() -> None:
    done = apply(pod(gpu(SHARE)), ADMISSION.mutate(pod(gpu(SHARE)), CASE).patch)
    [sidecar] = done["spec"]["initContainers"]
    assert VOID in sidecar["env"]
    forged = {**sidecar, "image": "nvidia/cuda:12", "env": [*sidecar["env"], ALL]}
    done["spec"]["initContainers"] = [forged]
    assert codes(done) == ["reserved-env"]
    done["spec"]["initContainers"] = [{**sidecar, "envFrom": [{"configMapRef": {"name": "c"}}]}]
    assert codes(done) == ["reserved-container"]
    older = {**sidecar, "env": [entry for entry in sidecar["env"] if entry != VOID]}  # of a release before this one
    done["spec"]["initContainers"] = [older]
    assert VOID in apply(done, ADMISSION.mutate(done, CASE).patch)["spec"]["initContainers"][0]["env"]


@pytest.mark.parametrize("limits", [SHARE, DEVICES, {"nvidia.com/gpu.shared": 2}, {"nvidia.com/mig-1g.5gb": 1}])
@pytest.mark.parametrize("name", ["b", "gpu-sidecar"])
@pytest.mark.parametrize(
    "env",
    [
        [ALL], [VOID, ALL], [ALL, VOID], [{**ALL, "value": "0,1"}], [{**ALL, "value": "$(X)"}],
        [{**ALL, "value": "Void"}],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}],
        [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['x']"}}}],
        [{"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"}], [{"name": "DOCKER_RESOURCE_GPU", "value": "all"}],
    ],
)  # fmt: skip
def test_no_container_without_a_gpu_names_devices(limits: dict[str, int], name: str, env: list[dict[str, Any]]) -> None:
    if name == "gpu-sidecar" and limits is SHARE:
        name = "c"
    assert set(codes(pod(gpu(limits), {"name": name, "env": env}))) == {"reserved-env"}
    init = pod(gpu(limits), initContainers=[{"name": name, "env": env}])
    assert set(codes(init)) == {"reserved-env"}


@pytest.mark.parametrize("value", ["", "none", "void"])
@pytest.mark.parametrize("limits", [SHARE, DEVICES])
def test_variables_that_ask_for_nothing_may_be_anywhere(limits: dict[str, int], value: str) -> None:
    env = [
        {"name": variable, "value": value}
        for variable in (
            "NVIDIA_VISIBLE_DEVICES",
            "NVIDIA_MIG_CONFIG_DEVICES",
            "NVIDIA_NVSWITCH",
            "DOCKER_RESOURCE_GPU",
        )
    ]
    manifest = pod(gpu(limits, env=env), {"name": "c", "env": env}, initContainers=[{"name": "i", "env": env}])
    assert codes(manifest) == []


def devices_of(manifest: dict[str, Any]) -> list[dict[str, Any]]:
    """What a GPU container's `env` says of the variable, without what the API server fills in."""
    [container] = [c for c in manifest["spec"]["containers"] if c["name"] == "a"]
    found = [entry for entry in container["env"] if entry["name"] == "NVIDIA_VISIBLE_DEVICES"]
    plain = {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": FIELD["fieldPath"]}}}
    return [CHOSEN if entry == plain else entry for entry in found]


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("limits", [SHARE, {"tencent.com/vcuda-core": 200}])
@pytest.mark.parametrize("injection", INJECTIONS)
def test_where_a_seat_brings_the_gpu_the_old_runtime_brings_none(
    injection: str, limits: dict[str, int], mode: Any
) -> None:
    judge, case = injecting(injection), Case("team", NamespacePolicy(mode=mode))
    for env in ({}, {"env": None}, {"env": [{"name": "A"}]}):
        manifest = pod(gpu(limits, **env))
        done = apply(manifest, judge.mutate(manifest, case).patch)
        assert devices_of(done) == [CHOSEN if injection == "meter" else VOID]
        assert judge.mutate(done, case).patch == []
        assert judge.validate(done, case).allowed


@pytest.mark.parametrize("mode", ["enforce", "observe"])
@pytest.mark.parametrize("before", INJECTIONS)
@pytest.mark.parametrize("now", INJECTIONS)
def test_what_a_webhook_wrote_before_becomes_what_is_written_now(before: str, now: str, mode: Any) -> None:
    case = Case("team", NamespacePolicy(mode=mode))
    written = CHOSEN if before == "meter" else VOID
    right = CHOSEN if now == "meter" else VOID
    manifest = pod(gpu(SHARE, env=[{"name": "A", "value": "1"}, written, {"name": "B", "value": "2"}]))
    judge = injecting(now)
    done = apply(manifest, judge.mutate(manifest, case).patch)
    assert devices_of(done) == [right]
    assert [entry["name"] for entry in done["spec"]["containers"][0]["env"]][:3] == ["A", right["name"], "B"]
    assert judge.mutate(done, case).patch == []
    assert judge.validate(done, case).allowed
    stale = {**done, "spec": {**done["spec"], "containers": [manifest["spec"]["containers"][0]]}}
    assert judge.validate_template({}, stale, case, "spec.template").allowed


def test_a_pod_that_names_its_gpus_past_the_mutating_webhook_is_refused() -> None:
    manifest = pod(gpu(SHARE))
    done = apply(manifest, ADMISSION.mutate(manifest, CASE).patch)
    container = done["spec"]["containers"][0]
    container["env"] = [CHOSEN if entry == VOID else entry for entry in container["env"]]
    verdict = ADMISSION.validate(done, CASE)
    assert [(v.code, v.field) for v in verdict.violations] == [("not-as-admitted", "spec.containers[0].env[0]")]
    container["env"].append(VOID)
    assert not ADMISSION.validate(done, CASE).allowed, "either may be the one that counts"


@pytest.mark.parametrize("injection", INJECTIONS)
@pytest.mark.parametrize(
    "entry",
    [
        ALL,
        {**VOID, "value": "0"},
        {**VOID, "value": "none,0"},
        {**VOID, "valueFrom": {"fieldRef": FIELD}},
        {"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"fieldRef": {"fieldPath": "metadata.annotations['x']"}}},
    ],
)
def test_no_container_with_a_gpu_names_others(injection: str, entry: dict[str, Any]) -> None:
    assert codes(pod(gpu(SHARE, env=[entry])), injecting(injection)) == ["reserved-env"]


@pytest.mark.parametrize("injection", INJECTIONS)
@pytest.mark.parametrize("entry", [VOID, {**VOID, "value": "none"}, {**VOID, "value": ""}, {"name": VOID["name"]}])
def test_a_variable_that_asks_for_nothing_is_replaced_only_where_it_must_name_gpus(
    injection: str, entry: dict[str, Any]
) -> None:
    judge, manifest = injecting(injection), pod(gpu(SHARE, env=[entry]))
    done = apply(manifest, judge.mutate(manifest, CASE).patch)
    assert devices_of(done) == [CHOSEN if injection == "meter" else entry]
    assert judge.mutate(done, CASE).patch == []
    assert judge.validate(done, CASE).allowed
    assert judge.validate_template({}, manifest, CASE, "spec.template").allowed


@pytest.mark.parametrize("limits", [DEVICES, {"nvidia.com/gpu.shared": 2}, {"nvidia.com/mig-1g.5gb": 1}])
def test_who_holds_devices_of_the_plugin_may_not_name_others(limits: dict[str, int]) -> None:
    assert codes(pod(gpu(limits, env=[ALL]))) == ["reserved-env"]
    assert codes(pod(gpu(limits, env=[VOID]))) == []
    assert codes(pod(gpu(limits, env=[{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]))) == []


@pytest.mark.parametrize(
    ("prefix", "passes"),
    [(None, False), ("", False), ("N", False), ("NVIDIA_VISIBLE_", False), ("APP_", True), ("nvidia_", True)],
)
def test_an_env_from_that_may_name_devices_is_refused_on_who_holds_devices_of_the_plugin(
    prefix: str | None, passes: bool
) -> None:
    source = {"secretRef": {"name": "s"}} | ({} if prefix is None else {"prefix": prefix})
    assert codes(pod(gpu(DEVICES, envFrom=[source]))) == ([] if passes else ["env-from"])
    assert codes(pod(gpu(SHARE, envFrom=[source]))) == [], "there the webhook sets the variable itself, which wins"
    allowed = Settings(webhook=WebhookSettings(allow_env_from=True))
    assert codes(pod(gpu(DEVICES, envFrom=[source])), Admission(allowed)) == []


@pytest.mark.parametrize("path", ["/var/run/nvidia-container-devices/all", "/run//nvidia-container-devices/GPU-1/"])
@pytest.mark.parametrize("limits", [SHARE, DEVICES])
def test_a_mount_that_stands_for_a_device_is_refused(path: str, limits: dict[str, int]) -> None:
    mounts = {"volumeMounts": [{"name": "v", "mountPath": path}]}
    assert codes(pod(gpu(limits), {"name": "b", **mounts})) == ["device-mount"]
    assert codes(pod(gpu(limits, **mounts))) == ["device-mount"]


@pytest.mark.parametrize("key", ["cdi.k8s.io/x", "nvidia.cdi.k8s.io/container.a", "io.kubernetes.cri-o.Devices"])
def test_an_annotation_that_stands_for_devices_is_refused(key: str) -> None:
    for limits in (SHARE, DEVICES):
        annotated = {**pod(gpu(limits)), "metadata": {"annotations": {key: "nvidia.com/gpu=all"}}}
        assert codes(annotated) == ["reserved-annotation"]
    plain = {**pod({"name": "a"}), "metadata": {"annotations": {key: "x"}}}
    assert codes(plain) == []


def test_nothing_is_limited_where_pods_are_only_observed() -> None:
    observed = Case("team", NamespacePolicy(mode="observe"))
    manifest = pod(gpu(DEVICES), {"name": "b"})
    verdict = ADMISSION.mutate(manifest, observed)
    assert "NVIDIA_VISIBLE_DEVICES" not in str(verdict.patch)


def test_a_template_is_judged_like_its_pods() -> None:
    found = ADMISSION.validate_template({}, pod(gpu(DEVICES, env=[ALL])), CASE, "spec.template").violations
    assert [(v.code, v.field) for v in found] == [("reserved-env", "spec.template.spec.containers[0].env[0]")]
