# SPDX-License-Identifier: Apache-2.0
"""Properties of admission over generated pods, other injectors' work in between, and hostile reviews."""

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import orjson
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from support.json_patch import apply

from slicekeeper import names
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Settings, WebhookSettings
from webhook import json_patch
from webhook.admission import Admission
from webhook.admission_review import BadReview, Reviewer
from webhook.budget_standing import Standing
from webhook.review_inputs import Case

CORE, MEMORY, DEVICE = "tencent.com/vcuda-core", "tencent.com/vcuda-memory", "nvidia.com/gpu"
Pod = dict[str, Any]
relaxed = settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)


def admission(injection: str = "limiter") -> Admission:
    chosen = Settings(webhook=WebhookSettings(injection=injection))  # type: ignore[arg-type]
    return Admission(chosen)


admissions = st.sampled_from(["meter", "seats", "limiter"]).map(admission)
policies = st.builds(
    NamespacePolicy,
    mode=st.sampled_from(["enforce", "enforce", "enforce", "observe"]),
    ceiling=st.integers(60, 100),
    allowed_priority_classes=st.sampled_from([(), ("research-high",)]),
    nvidia_gpu=st.sampled_from(["metered", "ignored"]),
)
cases = st.builds(
    Case, st.just("research"), policies, st.builds(Standing, over_budget=st.booleans(), unknown=st.booleans())
)

words = st.text("abcxyz/~. ", min_size=1, max_size=8)
plain_env = st.fixed_dictionaries({"name": st.sampled_from(["A", "B", "PATH"]), "value": words})
preload_env = st.fixed_dictionaries(
    {"name": st.just("LD_PRELOAD"), "value": st.sampled_from(["", "/a.so", "/a.so /b.so"])}
)
devices_env = st.fixed_dictionaries(
    {"name": st.just("NVIDIA_VISIBLE_DEVICES")}, optional={"value": st.sampled_from(["", "none", "void"])}
)


@st.composite
def containers(draw: st.DrawFn, name: str) -> Pod:
    limits: Pod = draw(
        st.one_of(
            st.just({}),
            st.just({"cpu": "1"}),
            st.builds(lambda c, m: {CORE: c, MEMORY: str(m)}, st.integers(1, 60), st.integers(1, 60)),
            st.builds(lambda n: {"cpu": 1, CORE: str(n * 100)}, st.integers(1, 4)),
            st.builds(lambda n: {DEVICE: n}, st.integers(0, 4)),
            st.sampled_from([{CORE: 0}, {CORE: "0", MEMORY: 0}, {MEMORY: "0"}, {CORE: 100, DEVICE: 0}]),
        )
    )
    container: Pod = {"name": name, "image": draw(words)}
    if limits or draw(st.booleans()):
        container["resources"] = {"limits": limits}
        if draw(st.booleans()):
            container["resources"]["requests"] = dict(limits)
    env = draw(st.lists(st.one_of(plain_env, preload_env, devices_env), max_size=3))
    if env or draw(st.booleans()):
        container["env"] = env
    return container


@st.composite
def pods(draw: st.DrawFn) -> Pod:
    spec: Pod = {"containers": [draw(containers(f"c{i}")) for i in range(draw(st.integers(1, 4)))]}
    init = []
    for index in range(draw(st.integers(0, 2))):
        if draw(st.booleans()):
            init.append(draw(containers(f"s{index}")) | {"restartPolicy": "Always"})
        else:
            limits = draw(st.sampled_from([{}, {DEVICE: 2}, {CORE: 0, MEMORY: 0}]))
            init.append({"name": f"i{index}", "image": "x", "resources": {"limits": limits}})
    if init or draw(st.booleans()):
        spec["initContainers"] = init
    optional = {
        "volumes": st.lists(st.just({"name": "data", "emptyDir": {}}), max_size=1),
        "schedulerName": st.sampled_from(["", "default-scheduler", "slicekeeper-scheduler"]),
        "priority": st.integers(-5, 5),
        "preemptionPolicy": st.sampled_from(["Never", "PreemptLowerPriority"]),
        "priorityClassName": st.sampled_from(["gpu-default-priority", "gpu-lower-priority", "research-high", ""]),
        "tolerations": st.just([{"operator": "Exists"}]),
    }
    spec |= draw(st.fixed_dictionaries({}, optional=optional))
    metadata = draw(
        st.fixed_dictionaries(
            {},
            optional={
                "name": words,
                "generateName": words,
                "labels": st.dictionaries(words, words, max_size=2),
                "finalizers": st.lists(st.sampled_from(["a.b/c", names.FINALIZER]), max_size=2, unique=True),
                "annotations": st.fixed_dictionaries(
                    {},
                    optional={
                        "a~/b": words,
                        names.GPU_CLASS: st.sampled_from(names.GPU_CLASSES),
                        names.SHARING: st.sampled_from(["adaptive", "exclusive"]),
                        names.BUDGET_STATE: st.sampled_from([names.IN_BUDGET, names.OVER_BUDGET]),
                        names.CORE_LIMIT: st.just("60"),
                    },
                ),
            },
        )
    )
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def each(pod: Pod) -> list[Pod]:
    return [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]


def prepend_sidecar(pod: Pod) -> None:
    pod["spec"].setdefault("initContainers", []).insert(0, {"name": "mesh", "image": "m", "restartPolicy": "Always"})


def append_container(pod: Pod) -> None:
    pod["spec"]["containers"].append({"name": "agent", "image": "a"})


def append_gpu_container(pod: Pod) -> None:
    limits = {CORE: "5", MEMORY: "1"}
    pod["spec"]["containers"].insert(0, {"name": "late", "image": "a", "resources": {"limits": limits}})


def rewrite_images(pod: Pod) -> None:
    for container in each(pod):
        container["image"] = "mirror.example.com/" + container["image"]


def add_env(pod: Pod) -> None:
    for container in each(pod):
        container["env"] = [{"name": "HTTP_PROXY", "value": "p"}, *container.get("env", [])]


def prepend_preload(pod: Pod) -> None:
    for container in each(pod):
        for entry in container.get("env", []):
            if entry["name"] == "LD_PRELOAD":
                entry["value"] = "/mesh.so:" + entry["value"]


def add_mounts(pod: Pod) -> None:
    pod["spec"].setdefault("volumes", []).insert(0, {"name": "kube-api-access", "projected": {"defaultMode": 420}})
    for container in each(pod):
        container.setdefault("volumeMounts", []).insert(0, {"name": "kube-api-access", "mountPath": "/var/run/x"})


def api_defaults(pod: Pod) -> None:
    for container in each(pod):
        container["terminationMessagePath"] = "/dev/termination-log"
        container["imagePullPolicy"] = "IfNotPresent"
        for entry in container.get("env", []):
            if "valueFrom" in entry:
                entry["valueFrom"]["fieldRef"]["apiVersion"] = "v1"
        declared = container.get("resources", {})
        if "limits" in declared:
            declared["requests"] = {**declared["limits"], **declared.get("requests", {})}
    for volume in pod["spec"].get("volumes", []):
        if "projected" in volume:
            volume["projected"]["defaultMode"] = 420


def default_limits(pod: Pod) -> None:
    for container in each(pod):
        resources = container.setdefault("resources", {})
        resources["limits"] = {"memory": "1Gi", **resources.get("limits", {})}
        container["securityContext"] = {"runAsUser": 1000}


def label(pod: Pod) -> None:
    pod["metadata"]["labels"] = {"mesh": "on", **pod["metadata"].get("labels", {})}
    pod["metadata"]["annotations"] = {"mesh": "on", **pod["metadata"].get("annotations", {})}
    pod["metadata"]["finalizers"] = ["mesh/x", *pod["metadata"].get("finalizers", [])]


def last_first(pod: Pod) -> None:
    pod["spec"].get("initContainers", []).reverse()


INJECTORS: list[Callable[[Pod], None]] = [
    prepend_sidecar, append_container, append_gpu_container, rewrite_images, add_env, prepend_preload, add_mounts,
    api_defaults, default_limits, label, last_first,
]  # fmt: skip
injectors = st.lists(st.sampled_from(INJECTORS), max_size=4, unique=True)


def admit(judge: Admission, pod: Pod, case: Case) -> Pod:
    verdict = judge.mutate(pod, case)
    assert verdict.allowed, verdict.violations
    assert all(len(warning) <= 256 for warning in verdict.warnings)
    return apply(pod, verdict.patch)


def asks(container: Pod, resource: str) -> bool:
    """Whether a container asks for more than 0 of a resource."""
    return str(container.get("resources", {}).get("limits", {}).get(resource, 0)) != "0"


def usable(pod: Pod, case: Case) -> None:
    named = pod["spec"].get("priorityClassName")
    assume(named != "research-high" or named in case.policy.allowed_priority_classes)
    holds = any(
        asks(c, r) for c in each(pod) for r in (CORE, *((DEVICE,) if case.policy.nvidia_gpu == "metered" else ()))
    )
    reserved = names.FINALIZER in pod["metadata"].get("finalizers", ())
    reserved = reserved or names.BUDGET_STATE in pod["metadata"].get("annotations", {})
    assume(holds or not reserved)


@relaxed
@given(admissions, pods(), cases)
def test_mutating_twice_changes_nothing_more(judge: Admission, pod: Pod, case: Case) -> None:
    usable(pod, case)
    before = copy.deepcopy(pod)
    once = admit(judge, pod, case)
    assert pod == before
    assert judge.mutate(once, case).patch == []


@relaxed
@given(admissions, pods(), cases, injectors)
def test_another_injector_in_between_undoes_nothing(
    judge: Admission, pod: Pod, case: Case, between: list[Callable[[Pod], None]]
) -> None:
    usable(pod, case)
    changed = copy.deepcopy(admit(judge, pod, case))
    for injector in between:
        injector(changed)
    again = judge.mutate(changed, case)
    assert again.allowed, again.violations
    if append_gpu_container not in between:  # a container that came since gets no GPU from NVIDIA's runtime either
        assert all("NVIDIA_VISIBLE_DEVICES" in str(operation["value"]) for operation in again.patch)
    twice = apply(changed, again.patch)
    assert judge.mutate(twice, case).patch == []
    assert judge.validate(twice, case).allowed


@relaxed
@given(admissions, pods(), cases, st.booleans(), injectors)
def test_what_mutate_returns_validate_accepts_also_after_a_flip(
    judge: Admission, pod: Pod, case: Case, flipped: bool, between: list[Callable[[Pod], None]]
) -> None:
    usable(pod, case)
    admitted = copy.deepcopy(admit(judge, pod, case))
    for injector in between:
        if injector is not append_gpu_container:  # a container that came after our last pass has nothing of ours
            injector(admitted)
    admitted = admit(judge, admitted, case)
    standing = case.standing
    if flipped:
        standing = Standing(over_budget=not standing.over_budget, hard=True, settled=False)
    verdict = judge.validate(admitted, replace(case, standing=standing))
    assert verdict.allowed, verdict.violations


REWRITTEN = {
    ("metadata", "annotations", names.BUDGET_STATE),
    ("spec", "priorityClassName"),
    ("spec", "priority"),
    ("spec", "preemptionPolicy"),
    ("spec", "schedulerName"),
}


def keeps(before: Any, after: Any, path: tuple[str, ...] = ()) -> bool:
    """Whether all of `before` is in `after`, in its order; the values that we compute may differ."""
    if isinstance(before, dict) and before.get("name") == "NVIDIA_VISIBLE_DEVICES":
        return isinstance(after, dict) and after.get("name") == "NVIDIA_VISIBLE_DEVICES"
    if isinstance(before, dict):
        shared = [key for key in after if key in before] if isinstance(after, dict) else []
        return shared == list(before) and all(keeps(before[key], after[key], (*path, key)) for key in before)
    if isinstance(before, list):
        rest = iter(after)
        return all(any(keeps(entry, other, path) for other in rest) for entry in before)
    return before == after or path in REWRITTEN


@relaxed
@given(admissions, pods(), cases)
def test_a_patch_removes_and_reorders_nothing(judge: Admission, pod: Pod, case: Case) -> None:
    usable(pod, case)
    verdict = judge.mutate(pod, case)
    assert {operation["op"] for operation in verdict.patch} <= {"add", "replace"}
    assert keeps(pod, apply(pod, verdict.patch))
    assert json_patch.apply(pod, verdict.patch) == apply(pod, verdict.patch)


@relaxed
@given(admissions, pods(), cases)
def test_gpu_pods_get_all_that_belongs_to_them(judge: Admission, pod: Pod, case: Case) -> None:
    usable(pod, case)
    after = admit(judge, pod, case)
    ours = [c for c in each(pod) if asks(c, CORE)]
    if ours:
        assert after["metadata"]["labels"][names.MANAGED_LABEL] == "true"
        assert after["metadata"]["finalizers"].count(names.FINALIZER) == 1
        assert [c["name"] for c in after["spec"]["initContainers"]].count(names.SIDECAR) == 1
        if not pod["spec"].get("initContainers"):
            assert after["spec"]["initContainers"][0]["name"] == names.SIDECAR
        for container in each(after):
            if container["name"] in {c["name"] for c in ours}:
                assert {"NVIDIA_VISIBLE_DEVICES"} <= {entry["name"] for entry in container["env"]}
    else:
        assert all(c["name"] != names.SIDECAR for c in each(after))


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64 - 1),
    st.floats(allow_nan=False),
    st.text(max_size=12),
    st.sampled_from(["CREATE", "Pod", "50", "9E99", "", "Always", CORE, "gpu-sidecar", names.FINALIZER]),
)
keys = st.one_of(
    st.text(max_size=6),
    st.sampled_from(
        [CORE, MEMORY, DEVICE, "slicekeeper.io/seat", "limits", "requests", "name", "env", "spec", "metadata",
         "containers", "initContainers", "annotations", "labels", "finalizers", "template", "resources", "value"]
    ),
)  # fmt: skip
junk = st.recursive(
    scalars,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(keys, inner, max_size=4)),
    max_leaves=12,
)


def review(obj: Any, kind: str = "Pod", operation: str = "CREATE", group: str = "", **more: Any) -> Pod:
    request = {
        "uid": "u-1",
        "kind": {"group": group, "version": "v1", "kind": kind},
        "operation": operation,
        "namespace": "research",
        "object": obj,
        **more,
    }
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


@st.composite
def reviews(draw: st.DrawFn) -> Pod:
    """Draw a valid review in which some values are replaced by arbitrary ones."""
    pod = draw(pods())
    kind, group = draw(
        st.sampled_from([("Pod", ""), ("Pod", ""), ("Deployment", "apps"), ("CronJob", "batch"), ("X", "")])
    )
    obj = {"Deployment": {"spec": {"template": pod}}, "CronJob": {"spec": {"jobTemplate": {"spec": {"template": pod}}}}}
    sub = draw(st.sampled_from(["", "", "ephemeralcontainers", "status"]))
    operation = draw(st.sampled_from(["CREATE", "CREATE", "UPDATE", "DELETE"]))
    whole = review(obj.get(kind, pod), kind, operation, group, subResource=sub, oldObject=draw(junk))
    for _ in range(draw(st.integers(0, 4))):
        node: Any = whole
        while True:
            inside = list(node) if isinstance(node, dict) else list(range(len(node)))
            if not inside:
                break
            key = draw(st.sampled_from(inside))
            if isinstance(node[key], dict | list) and node[key] and draw(st.integers(0, 3)):
                node = node[key]
                continue
            node[key] = draw(junk)
            break
        if isinstance(node, dict):
            node[draw(keys)] = draw(junk)
    return whole


def ask(whole: bytes, case: Case) -> None:
    """Ask both endpoints; whatever comes of it is an answer or BadReview."""
    reviewer = Reviewer(admission(), lambda _namespace: case)
    for endpoint in (reviewer.mutate, reviewer.validate):
        try:
            answer = endpoint(whole)
        except BadReview:
            continue
        response = orjson.loads(answer.body)["response"]
        assert response["uid"] == orjson.loads(whole)["request"]["uid"]
        assert response["allowed"] or (response["status"]["message"] and 400 <= response["status"]["code"] < 600)


@relaxed
@given(reviews(), cases)
def test_any_review_gets_an_answer(whole: Pod, case: Case) -> None:
    ask(orjson.dumps(whole), case)


@relaxed
@given(junk, cases)
def test_any_json_gets_an_answer(whole: Any, case: Case) -> None:
    ask(orjson.dumps(whole), case)


@relaxed
@given(st.binary(max_size=60), cases)
def test_any_bytes_get_an_answer(whole: bytes, case: Case) -> None:
    ask(whole, case)


@relaxed
@given(pods(), cases, st.data())
def test_a_review_cut_off_anywhere_is_no_review(pod: Pod, case: Case, data: st.DataObject) -> None:
    whole = orjson.dumps(review(pod))
    ask(whole[: data.draw(st.integers(0, len(whole) - 1))], case)
