# SPDX-License-Identifier: Apache-2.0
"""A bare pod's file that is applied a second time: what admission replaced is no difference."""

import copy
from base64 import b64decode
from typing import Any

import orjson
import pytest
from support.json_patch import apply

from slicekeeper import names
from slicekeeper.config.policy import ForeignPolicy, NamespacePolicy
from slicekeeper.config.settings import Settings
from webhook.admission import Admission
from webhook.admission_review import Reviewer
from webhook.budget_standing import Standing
from webhook.priority_class_watch import PriorityClasses
from webhook.review_inputs import Case

POLICY = NamespacePolicy(
    allowed_priority_classes=("research-high",), foreign=ForeignPolicy(dialects=("hami", "kai"), gpu_memory="80Gi")
)
IN, OVER = Case("research", POLICY), Case("research", POLICY, Standing(over_budget=True))
ADMISSION = Admission(Settings())
SHARE = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "15"}
HAMI = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3072", "nvidia.com/gpucores": "30"}


def pod(limits: dict[str, str] = SHARE, env: Any = None, **spec: Any) -> dict[str, Any]:
    container: dict[str, Any] = {"name": "a", "resources": {"limits": dict(limits)}}
    if env is not None:
        container["env"] = env
    return {"metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


def merged(live: Any, file: Any) -> Any:
    """Return the live object with all that the file says, lists by name: kubectl's patch of an unchanged file."""
    if isinstance(file, dict) and isinstance(live, dict):
        return {**live, **{key: merged(live.get(key), value) for key, value in file.items()}}
    if isinstance(file, list) and isinstance(live, list) and file and isinstance(file[0], dict):
        named = {entry["name"]: entry for entry in file}
        kept = [merged(entry, named.pop(entry["name"])) if entry["name"] in named else entry for entry in live]
        return [*kept, *named.values()]
    return file


def updated(new: dict[str, Any], live: dict[str, Any], case: Case) -> tuple[dict[str, Any], list[str]]:
    """Return the pod after the review of an update, and the warnings."""
    request = {"uid": "u", "kind": {"group": "", "kind": "Pod"}, "operation": "UPDATE", "namespace": "research",
               "object": new, "oldObject": live}  # fmt: skip
    body = orjson.dumps({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request})
    response = orjson.loads(Reviewer(ADMISSION, lambda _: case).mutate(body).body)["response"]
    assert response["allowed"]
    patch = orjson.loads(b64decode(response["patch"])) if "patch" in response else []
    return apply(new, patch), response.get("warnings", [])


@pytest.mark.parametrize(
    ("file", "case", "warned"),
    [
        (pod(schedulerName="default-scheduler"), IN, True),
        (pod(HAMI, schedulerName="hami-scheduler"), IN, True),
        (pod(priorityClassName="research-high"), IN, False),
        (pod(priorityClassName="research-high"), OVER, True),
        (pod(priorityClassName="gpu-default-priority"), OVER, True),
        (pod(env=[{"name": "LD_PRELOAD", "value": "/opt/own.so"}]), IN, False),
        (pod(env=[{"name": "LD_PRELOAD", "value": ""}]), IN, False),
        (pod(env=[{"name": "LD_PRELOAD", "valueFrom": {"configMapKeyRef": {"name": "c", "key": "k"}}}]), IN, False),
        (pod({**SHARE, "cpu": "2"}, resources={"limits": {"cpu": "2"}}), IN, False),
        (pod(HAMI), IN, False),
        (pod(priority=0), OVER, True),
        (pod(priority=0, preemptionPolicy="PreemptLowerPriority"), OVER, True),
        (pod(priority=0, preemptionPolicy="PreemptLowerPriority"), IN, False),
        (pod(schedulingGates=[{"name": "mine"}], tolerations=[{"name": "x", "operator": "Exists"}]), IN, False),
    ],
)
def test_a_bare_pod_can_be_applied_a_second_time(file: dict[str, Any], case: Case, warned: bool) -> None:
    made = ADMISSION.mutate(file, case)
    assert made.allowed, made.violations
    live = apply(copy.deepcopy(file), made.patch)
    after, warnings = updated(merged(live, file), live, case)
    assert after == live
    assert bool(warnings) == warned


def test_a_value_that_the_webhook_never_replaces_is_left_to_the_api_server() -> None:
    live = apply(pod(), ADMISSION.mutate(pod(), IN).patch)
    changes: list[dict[str, Any]] = [
        {"schedulerName": "volcano"}, {"priorityClassName": "system-node-critical"}, {"priority": 7},
        {"preemptionPolicy": "Never"},
    ]  # fmt: skip
    for change in changes:
        new = merged(live, {"spec": change})
        assert updated(new, live, IN) == (new, [])


def test_a_pod_of_another_scheduler_is_not_given_ours() -> None:
    live = pod(schedulerName="another")
    new = pod(schedulerName="default-scheduler")
    assert updated(new, live, IN) == (new, [])


def test_the_limiters_variable_belongs_to_containers_that_get_the_limiter() -> None:
    mark = {"name": names.LIMITER_VARIABLE, "value": names.LIBRARY_PATH}
    own = {"name": "LD_PRELOAD", "value": "/opt/own.so"}
    assert ADMISSION.mutate(pod(env=[own, mark]), IN).allowed
    for refused in (pod(env=[own, {**mark, "value": "/x"}]), pod({"tencent.com/vcuda-core": "100"}, env=[own, mark])):
        assert [violation.code for violation in ADMISSION.mutate(refused, IN).violations] == ["reserved-env"]


def test_the_numbers_of_the_clusters_default_class_can_be_applied_a_second_time() -> None:
    classes = PriorityClasses(Settings().classes)
    classes.on_list([{"metadata": {"name": "usual"}, "value": 50, "preemptionPolicy": "Never", "globalDefault": True}])
    admission = Admission(Settings(), classes)
    file = pod(priority=50, preemptionPolicy="Never")
    defaulted = pod(priority=50, preemptionPolicy="Never", priorityClassName="usual")  # by the API server, before us
    live = apply(defaulted, admission.mutate(defaulted, IN).patch)
    assert live["spec"]["priority"] != 50
    verdict = admission.mutate_update(merged(live, file), live, IN)
    assert apply(merged(live, file), verdict.patch) == live
    assert len(verdict.warnings) == 2
