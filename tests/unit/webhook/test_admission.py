# SPDX-License-Identifier: Apache-2.0
"""What the golden files cannot show: the budget's other standings, second passes and the rules of /validate."""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from support.json_patch import apply

from slicekeeper import names
from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.config.settings import Settings, TimekeeperClientSettings, WebhookSettings
from slicekeeper.wire.json_patch import escape
from webhook import json_patch
from webhook.admission import Admission
from webhook.admission_review import shortened
from webhook.budget_standing import Standing
from webhook.json_patch import value_at
from webhook.priority_class_watch import PriorityClasses
from webhook.refusal_status import status_of
from webhook.review_inputs import Case
from webhook.verdict import Verdict

SETTINGS = Settings()
ADMISSION = Admission(SETTINGS)
SHARE = {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 15}
CASE = Case("research", NamespacePolicy())
OVER = Case("research", NamespacePolicy(), Standing(over_budget=True))


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": SHARE}}], **spec}}


def admitted(case: Case = CASE, **spec: Any) -> dict[str, Any]:
    return apply(pod(**spec), ADMISSION.mutate(pod(**spec), case).patch)


def codes(case: Case, manifest: dict[str, Any], judge: Admission = ADMISSION) -> list[str]:
    return [violation.code for violation in judge.validate(manifest, case).violations]


def test_a_pod_that_bypassed_mutate_is_refused() -> None:
    violation = ADMISSION.validate(pod(), CASE).violations[0]
    assert violation.code == "not-as-admitted"
    assert violation.field == "metadata.labels"
    assert "slicekeeper.io/managed" in violation.example


@pytest.mark.parametrize(
    ("path", "undone"),
    [
        (("metadata", "finalizers"), []),
        (("metadata", "annotations"), {}),
        (("spec", "initContainers"), []),
        (("spec", "volumes"), []),
        (("spec", "schedulerName"), "default-scheduler"),
        (("spec", "priorityClassName"), ""),
    ],
)
def test_what_another_mutator_undid_is_refused(path: tuple[str, str], undone: Any) -> None:
    manifest = admitted()
    manifest[path[0]] = {**manifest[path[0]], path[1]: undone}
    assert codes(CASE, manifest) == ["not-as-admitted"]


def test_the_class_of_the_other_state_passes_only_in_the_grace_after_a_flip() -> None:
    for made, now in ((CASE, OVER), (OVER, CASE)):
        manifest = admitted(made)
        assert codes(now, manifest) == ["not-as-admitted"]
        assert codes(replace(now, standing=replace(now.standing, settled=False)), manifest) == []


def test_a_budget_enforced_hard_refuses_new_pods_over_it() -> None:
    hard = replace(OVER, standing=Standing(over_budget=True, hard=True, reason="nothing is left since noon"))
    refusal = ADMISSION.mutate(pod(), hard)
    assert "(nothing is left since noon); for example the same manifest, after a grant" in str(refusal.violations[0])
    assert (refusal.violations[0].code, status_of(refusal.violations)["code"]) == ("budget-exhausted", 403)
    assert codes(hard, admitted(OVER)) == ["budget-exhausted"]
    assert codes(replace(hard, standing=Standing(over_budget=True, hard=True, settled=False)), admitted()) == []


@pytest.mark.parametrize(
    ("state", "above", "rule", "remedy"),
    [
        ("", "", "has no GPU budget left", "after a grant or in the next period"),
        ("suspended", "", "GPU budget is suspended", "slicekeeper budget status research active"),
        ("suspended", "lab", "GPU budget is suspended", "slicekeeper parent status lab active"),
        ("closed", "", "GPU budget is closed", "in another namespace"),
    ],
)
def test_the_remedy_is_that_of_the_budgets_state(state: str, above: str, rule: str, remedy: str) -> None:
    standing = Standing(over_budget=True, hard=True, stopped=state, stopped_above=above)
    [violation] = ADMISSION.mutate(pod(), replace(OVER, standing=standing)).violations
    assert rule in violation.rule
    assert remedy in violation.example
    soft = ADMISSION.mutate(pod(), replace(OVER, standing=replace(standing, hard=False)))
    told = f"the GPU budget of namespace research is {state}" if "is" in rule else "namespace research is over its"
    assert any(told in warning for warning in soft.warnings)


SAFE = replace(OVER, policy=NamespacePolicy(budget=BudgetPolicy(enforcement="safe")))
GATE = {"name": names.GATE}


def test_a_budget_enforced_safe_holds_new_pods_by_a_gate_in_the_class_in_budget() -> None:
    made = admitted(SAFE, activeDeadlineSeconds=60)
    assert made["spec"]["schedulingGates"] == [GATE]
    assert made["spec"]["priorityClassName"] == SETTINGS.classes.in_budget.name
    assert ADMISSION.mutate(made, SAFE).patch == [], "what is as it should be is accepted as it is"
    assert codes(SAFE, made) == []
    undone = {**made, "spec": {**made["spec"], "schedulingGates": []}}
    assert codes(SAFE, undone) == ["not-as-admitted"]
    other = apply(pod(schedulingGates=[{"name": "example.com/a"}], activeDeadlineSeconds=60), [])
    assert apply(other, ADMISSION.mutate(other, SAFE).patch)["spec"]["schedulingGates"] == [
        {"name": "example.com/a"},
        GATE,
    ]


@pytest.mark.parametrize("deadline", [None, 0, -1, True, "60"])
def test_safe_refuses_a_pod_without_a_deadline_of_its_own(deadline: Any) -> None:
    refusal = ADMISSION.mutate(pod(activeDeadlineSeconds=deadline), SAFE)
    assert refusal.violations[0].code in ("deadline-missing", "manifest-malformed")
    assert refusal.violations[0].field == "spec.activeDeadlineSeconds"
    assert status_of(refusal.violations)["code"] == 422
    assert ADMISSION.mutate({"spec": {"containers": [{"name": "x"}]}}, SAFE).patch == [], "no GPU, no deadline"


@pytest.mark.parametrize("mode", ["observe", "off"])
def test_nobody_waits_where_nothing_is_enforced(mode: str) -> None:
    policy = NamespacePolicy(mode=mode, budget=BudgetPolicy(enforcement="safe"))  # type: ignore[arg-type]
    made = apply(pod(), ADMISSION.mutate(pod(), Case("research", policy)).patch)
    assert "schedulingGates" not in made["spec"]


def test_our_gate_is_refused_where_nobody_would_lift_it() -> None:
    assert codes(CASE, pod(schedulingGates=[GATE])) == ["reserved-gate"]
    assert codes(SAFE, {"spec": {"containers": [{"name": "x"}], "schedulingGates": [GATE]}}) == ["reserved-gate"]


@pytest.mark.parametrize(
    ("mode", "over", "taken"), [("allow-in-budget", False, "in budget"), ("over-budget", True, "over budget")]
)
def test_an_unknown_budget_is_taken_by_the_stale_mode_with_a_warning(mode: str, over: bool, taken: str) -> None:
    policy = NamespacePolicy(stale=mode)  # type: ignore[arg-type]
    verdict = ADMISSION.mutate(pod(), Case("research", policy, Standing(over_budget=over, unknown=True)))
    assert verdict.allowed
    assert f"currently unknown; the pod is treated as {taken}" in verdict.warnings[0]


def test_an_unknown_budget_denies_where_the_policy_says_so() -> None:
    case = Case("research", NamespacePolicy(stale="deny"), Standing(unknown=True))
    refusal = ADMISSION.mutate(pod(), case)
    assert (refusal.violations[0].code, status_of(refusal.violations)["code"]) == ("budget-unknown", 503)
    assert ADMISSION.mutate({"spec": {"containers": [{"name": "x"}]}}, case).allowed


def test_a_sidecar_of_another_release_or_registry_is_left_alone() -> None:
    manifest = admitted()
    sidecar = manifest["spec"]["initContainers"][0]
    sidecar["image"] = "mirror.example.com/slicekeeper/sidecar:0.0.9"
    sidecar["resources"] = {"limits": {"cpu": "100m"}}
    sidecar["env"] = [{"name": "HTTP_PROXY", "value": "p"}, *sidecar["env"]]
    assert ADMISSION.mutate(manifest, CASE).patch == []
    assert codes(CASE, manifest) == []


@pytest.mark.parametrize(
    "forged",
    [
        {"args": ["sleep", "inf"]},
        {"command": ["sh"]},
        {"restartPolicy": None},
        {"env": []},
        {"volumeMounts": []},
    ],
)
def test_a_sidecar_that_does_something_else_is_refused(forged: dict[str, Any]) -> None:
    manifest = admitted()
    manifest["spec"]["initContainers"][0] |= forged
    assert "reserved-container" in [v.code for v in ADMISSION.mutate(manifest, CASE).violations] or "gpu-in" in str(
        ADMISSION.mutate(manifest, CASE).violations
    )


@pytest.mark.parametrize(
    "entry",
    [
        {"name": "SLICEKEEPER_SIDECAR_USAGE_FILE", "value": "/tmp/lie"},
        {"name": "SLICEKEEPER_TIMEKEEPER_CLIENT_URL", "value": "http://evil"},
    ],
)
def test_a_variable_put_into_our_sidecar_is_refused(entry: dict[str, str]) -> None:
    manifest = admitted()
    manifest["spec"]["initContainers"][0]["env"].append(entry)
    assert [v.code for v in ADMISSION.mutate(manifest, CASE).violations] == ["reserved-container"]


def test_a_sidecar_that_holds_a_share_is_refused() -> None:
    manifest = admitted()
    manifest["spec"]["initContainers"][0]["resources"] = {"limits": SHARE}
    assert "reserved-container" in codes(CASE, manifest)


@pytest.mark.parametrize("default", [SHARE, {"nvidia.com/gpu": "1"}, {**SHARE, "cpu": "1"}])
def test_a_gpu_that_a_limit_range_gave_to_our_sidecar_is_taken_off_it(default: dict[str, Any]) -> None:
    manifest = admitted()
    sidecar = manifest["spec"]["initContainers"][0]
    amounts = {section: {**own, **default} for section, own in sidecar["resources"].items()}
    manifest["spec"]["initContainers"] = [{**sidecar, "resources": amounts}]
    verdict = ADMISSION.mutate(manifest, CASE)
    done = apply(manifest, verdict.patch)
    left = done["spec"]["initContainers"][0]["resources"]["limits"]
    gpus = {name: "0" for name in default if name != "cpu"}
    assert left == {**sidecar["resources"]["limits"], **default, **gpus}
    assert not verdict.warnings
    assert codes(CASE, done) == []
    assert ADMISSION.mutate(done, CASE).patch == []


ZEROS: list[dict[str, Any]] = [
    {"limits": {"tencent.com/vcuda-core": 0, "tencent.com/vcuda-memory": "0"}},
    {"limits": {"tencent.com/vcuda-core": "0"}, "requests": {"tencent.com/vcuda-core": "0"}},
    {"limits": {"tencent.com/vcuda-memory": "0Gi"}},
]


@pytest.mark.parametrize("zero", ZEROS)
def test_amounts_of_zero_ask_for_no_gpu(zero: dict[str, Any]) -> None:
    alone = {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "c", "image": "i", "resources": zero}]}}
    for case in (CASE, Case("research", NamespacePolicy(), Standing(over_budget=True, hard=True, settled=True))):
        assert ADMISSION.mutate(alone, case) == ADMISSION.validate(alone, case) == Verdict()
    for more in ({}, {"restartPolicy": "Always"}):
        beside = pod(initContainers=[{"name": "help", "image": "i", "resources": zero, **more}])
        verdict = ADMISSION.mutate(beside, CASE)
        assert verdict.allowed
        assert codes(CASE, apply(beside, verdict.patch)) == []


def test_memory_or_requests_beside_a_zero_are_refused_still() -> None:
    for odd in (
        {"limits": {"tencent.com/vcuda-core": 0, "tencent.com/vcuda-memory": 15}},
        {"limits": {"tencent.com/vcuda-core": 0}, "requests": {"tencent.com/vcuda-core": 50}},
    ):
        manifest = pod(initContainers=[{"name": "help", "restartPolicy": "Always", "resources": odd}])
        assert [v.code for v in ADMISSION.mutate(manifest, CASE).violations] == ["quantity-invalid"]


def test_a_re_applied_pod_may_not_trust_another_ca_in_our_volume() -> None:
    url = TimekeeperClientSettings(url="https://timekeeper.slicekeeper-system.svc:8444")
    settings = Settings(timekeeper_client=url)
    judge = Admission(settings)
    once = deepcopy(apply(pod(), judge.mutate(pod(), CASE).patch))
    assert judge.mutate(once, CASE).patch == []
    [token] = [v["projected"] for v in once["spec"]["volumes"] if v["name"] == "slicekeeper-token"]
    token["defaultMode"] = 420  # as the API server completes it
    assert judge.validate(once, CASE).allowed
    token["sources"][1]["configMap"]["name"] = "my-ca"
    assert [v.code for v in judge.mutate(once, CASE).violations] == ["reserved-volume"]


def test_the_clusters_class_values_go_before_the_settings() -> None:
    classes = PriorityClasses(SETTINGS.classes)
    classes.on_list(
        [
            {"metadata": {"name": "gpu-default-priority"}, "value": 7, "preemptionPolicy": "Never"},
            {"metadata": {"name": "everyday"}, "value": 1, "globalDefault": True},
            {"metadata": {"name": "broken"}, "value": "x"},
        ]
    )
    judge = Admission(SETTINGS, classes)
    spec = apply(pod(), judge.mutate(pod(), CASE).patch)["spec"]
    assert (spec["priority"], spec["preemptionPolicy"]) == (7, "Never")
    spec = apply(pod(), judge.mutate(pod(), OVER).patch)["spec"]
    assert (spec["priorityClassName"], spec["priority"], spec["preemptionPolicy"]) == (
        "gpu-lower-priority",
        -100,
        "Never",
    )
    assert judge.mutate(pod(priorityClassName="everyday", priority=1), CASE).allowed, "the API server put it there"
    assert not judge.mutate(pod(priorityClassName="broken"), CASE).allowed
    classes.on_event("DELETED", {"metadata": {"name": "everyday"}})
    classes.on_event("MODIFIED", {"metadata": {"name": "gpu-default-priority"}, "value": 8})
    assert not judge.mutate(pod(priorityClassName="everyday", priority=1), CASE).allowed
    assert classes.get("gpu-default-priority").value == 8  # type: ignore[union-attr]


def test_a_ceiling_that_was_lowered_since_the_first_pass_is_told() -> None:
    lower = Case("research", NamespacePolicy(ceiling=60))
    assert [v.code for v in ADMISSION.mutate(admitted(), lower).violations] == ["limit-out-of-range"]


def test_report_interval_and_timekeeper_reach_the_sidecar() -> None:
    settings = Settings(webhook=WebhookSettings(report_seconds=2.5))
    judge = Admission(settings)
    env = apply(pod(), judge.mutate(pod(), CASE).patch)["spec"]["initContainers"][0]["env"]
    assert {"name": "SLICEKEEPER_SIDECAR_REPORT_SECONDS", "value": "2.5"} in env


def test_warnings_are_cut_at_what_the_api_server_takes() -> None:
    assert shortened("x" * 256) == "x" * 256
    assert len(shortened("x" * 257)) == 256


def test_pointers_are_escaped_and_read_back() -> None:
    assert escape("a~b/c") == "a~0b~1c"
    document = {"a": {"x~/y": [{"b": 1}]}}
    assert value_at(document, "/a/x~0~1y/0/b") == (1, "a[x~/y][0].b")
    assert value_at(document, "/a/x~0~1y/-") == (None, "a[x~/y][]")
    assert value_at(document, "/q/r") == (None, "q.r")


def test_applying_a_patch_leaves_the_original_as_it_was() -> None:
    original = {"a": {"b": [1]}}
    patch = [{"op": "add", "path": "/a/b/0", "value": 0}, {"op": "replace", "path": "/a/b/1", "value": 2}]
    assert json_patch.apply(original, patch) == {"a": {"b": [0, 2]}}
    assert original == {"a": {"b": [1]}}


def test_the_docs_list_every_code() -> None:
    root = Path(__file__).parents[3]
    docs = (root / "docs" / "webhook.md").read_text("utf-8")
    golden = "".join(file.read_text("utf-8") for file in (root / "tests/golden/refusals").glob("*.golden.yaml"))
    found = {line.removeprefix("- code: ") for line in golden.splitlines() if line.startswith("- code: ")}
    found |= {"not-as-admitted", "budget-exhausted", "budget-unknown", "request-malformed"}
    assert not [code for code in found if f"`{code}`" not in docs]


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("slicekeeper.io/gpu-clas", "slicekeeper.io/gpu-class"),
        ("slicekeeper.io/vcuda-core-limit", ""),
        ("foo.slicekeeper.io/x", ""),
    ],
)
def test_an_annotation_of_ours_that_nobody_reads_is_told_of(key: str, meant: str) -> None:
    others = {names.ROOM_SEEN_AT: "2030-01-01T00:00:00Z", names.RUN_SECONDS: "60"}
    manifest = {**pod(), "metadata": {"annotations": {key: "background", **others}}}
    [warning] = ADMISSION.mutate(manifest, CASE).warnings
    assert f'"{key}" has no effect' in warning
    assert warning.endswith(f"did you mean {meant}?" if meant else "Slicekeeper")
    [of_template] = ADMISSION.validate_template({}, manifest, CASE, "spec.template").warnings
    assert of_template == warning


def test_annotations_leave_room_for_those_of_the_binding() -> None:
    def sized(size: int) -> dict[str, Any]:
        return {**pod(), "metadata": {"annotations": {"a": "x" * size}}}

    assert ADMISSION.mutate(sized(250_000), CASE).allowed
    refusal = ADMISSION.mutate(sized(262_000), CASE)
    assert [v.code for v in refusal.violations] == ["annotations-too-large"]
    plain = {**sized(262_000), "spec": {"containers": [{"name": "x"}]}}
    assert ADMISSION.mutate(plain, CASE).allowed


@pytest.mark.parametrize(
    ("annotations", "env"),
    [
        ({names.GPU_MODEL: ","}, []),
        ({names.SHARING: "remote"}, []),
        ({names.BUDGET_STATE: "mine"}, []),
        ({"cdi.k8s.io/x": "nvidia.com/gpu=all"}, []),
        ({}, [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]),
    ],
)
def test_what_is_only_observed_is_metered_whatever_rule_it_breaks(
    annotations: dict[str, str], env: list[dict[str, str]]
) -> None:
    manifest = pod()
    manifest["metadata"] = {"annotations": annotations, "labels": {names.MANAGED_LABEL: "no"}}
    manifest["spec"]["containers"].append({"name": "b", "env": env})
    verdict = ADMISSION.mutate(manifest, Case("research", NamespacePolicy(mode="observe")))
    assert verdict.allowed
    assert "observed, not refused" in verdict.warnings[0]
    metadata = apply(manifest, verdict.patch)["metadata"]
    assert metadata["labels"] == {names.MANAGED_LABEL: names.MANAGED_VALUE}
    assert metadata["finalizers"] == [names.FINALIZER]


def test_an_observed_pod_with_two_containers_of_one_name_is_left_to_the_api_server() -> None:
    manifest = pod()
    manifest["spec"]["containers"].append({"name": manifest["spec"]["containers"][0]["name"]})
    verdict = ADMISSION.mutate(manifest, Case("research", NamespacePolicy(mode="observe")))
    assert (verdict.allowed, verdict.patch) == (True, [])


def test_a_manifest_read_back_is_taken_however_deeply_it_is_nested() -> None:
    deep: dict[str, Any] = {}
    for _ in range(900):
        deep = {"f:a": deep}
    manifest = pod()
    manifest["metadata"] = {
        "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
        "finalizers": [names.FINALIZER],
        "annotations": {names.gpu_annotation("a"): "GPU-1"},
        "managedFields": [{"fieldsV1": deep}],
    }
    assert ADMISSION.mutate(manifest, CASE).patch[0]["op"] == "remove"
