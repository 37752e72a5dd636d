# SPDX-License-Identifier: Apache-2.0
"""The HTTP shell over real reviews and over bodies that are none."""

from base64 import b64decode
from collections.abc import Callable
from functools import partial
from typing import Any

import orjson
import pytest
from prometheus_client import generate_latest
from support.asgi import Answer, answer_of, ask
from support.json_patch import apply

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Settings
from webhook import metrics
from webhook.admission import Admission
from webhook.admission_review import Reviewer
from webhook.app import make_shell
from webhook.budget_standing import Standing
from webhook.review_inputs import Case

SHARE = {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 15}
VOID = {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}
BODY_LIMIT = 16 << 20


def pod(**spec: Any) -> dict[str, Any]:
    return {"metadata": {}, "spec": {"containers": [{"name": "a", "resources": {"limits": SHARE}}], **spec}}


def review(obj: Any, **request: Any) -> dict[str, Any]:
    kind = {"group": "", "version": "v1", "kind": "Pod"}
    request = {"uid": "u-1", "kind": kind, "operation": "CREATE", "namespace": "research", "object": obj, **request}
    return {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": request}


IN_BUDGET = Standing()
DEFAULT = NamespacePolicy()


Ask = Callable[..., Answer]


def client(standing: Standing = IN_BUDGET, policy: NamespacePolicy = DEFAULT) -> Ask:
    settings = Settings()
    reviewer = Reviewer(Admission(settings), lambda namespace: Case(namespace, policy, standing))
    return partial(ask, make_shell(reviewer, BODY_LIMIT, lambda: {"status": "ready"}))


def respond(shell: Ask, endpoint: str, whole: dict[str, Any]) -> dict[str, Any]:
    answer = shell("POST", endpoint, orjson.dumps(whole))
    assert answer.status == 200
    body = answer.json
    assert (body["apiVersion"], body["kind"]) == ("admission.k8s.io/v1", "AdmissionReview")
    response: dict[str, Any] = body["response"]
    assert response["uid"] == whole["request"]["uid"]
    return response


def test_a_pod_is_patched_with_a_json_patch() -> None:
    response = respond(client(), "/mutate", review(pod()))
    assert response["allowed"]
    assert response["patchType"] == "JSONPatch"
    assert {o["op"] for o in orjson.loads(b64decode(response["patch"]))} == {"add"}


def test_a_pod_without_gpus_gets_no_patch() -> None:
    assert respond(client(), "/mutate", review({"spec": {"containers": []}})) == {"uid": "u-1", "allowed": True}


def test_a_refusal_carries_status_reason_message_and_causes() -> None:
    response = respond(client(), "/mutate", review(pod(hostPID=True, nodeName="n")))
    status = response["status"]
    assert not response["allowed"]
    assert (status["code"], status["reason"]) == (403, "Forbidden")
    assert "spec.hostPID is true" in status["message"]
    assert [(c["reason"], c["field"]) for c in status["details"]["causes"]] == [
        ("host-pid", "spec.hostPID"),
        ("node-name", "spec.nodeName"),
    ]


def test_a_wrong_manifest_is_422_and_a_state_that_passes_503() -> None:
    wrong = pod(containers=[{"name": "a", "resources": {"limits": {"tencent.com/vcuda-core": 150}}}])
    assert respond(client(), "/mutate", review(wrong))["status"]["code"] == 422
    deny = client(Standing(unknown=True), NamespacePolicy(stale="deny"))
    status = respond(deny, "/mutate", review(pod()))["status"]
    assert (status["code"], status["details"]["causes"][0]["reason"]) == (503, "budget-unknown")


def test_a_refusal_of_a_huge_manifest_is_short() -> None:
    bad = {"resources": {"limits": {"tencent.com/vcuda-core": 150}}}
    answer = client()("POST", "/mutate", orjson.dumps(review(pod(containers=[bad] * 50_000))))
    status = answer.json["response"]["status"]
    assert len(answer.body) < 32_000
    assert len(status["details"]["causes"]) == 20
    assert status["message"].endswith("; and 49980 more")


def test_a_namespace_that_is_only_in_the_request_is_used() -> None:
    seen: list[str] = []
    settings = Settings()

    def case_of(namespace: str) -> Case:
        seen.append(namespace)
        return Case(namespace, NamespacePolicy())

    reviewer = Reviewer(Admission(settings), case_of)
    shell = partial(ask, make_shell(reviewer, BODY_LIMIT, dict))
    respond(shell, "/mutate", review({**pod(), "metadata": {"generateName": "train-"}}, namespace="team-a"))
    respond(shell, "/mutate", review({**pod(), "metadata": {"namespace": "team-b"}}, namespace=None))
    assert seen == ["team-a", "team-b"]


@pytest.mark.parametrize("operation", ["UPDATE", "DELETE", "CONNECT"])
@pytest.mark.parametrize("endpoint", ["/mutate", "/validate"])
def test_only_new_pods_are_judged(endpoint: str, operation: str) -> None:
    response = respond(client(), endpoint, review(pod(hostPID=True), operation=operation, oldObject=pod()))
    assert response == {"uid": "u-1", "allowed": True}


def test_workloads_are_not_mutated_but_their_templates_judged() -> None:
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    good, bad = ({"spec": {"replicas": 1, "template": pod(**more)}} for more in ({}, {"nodeName": "n"}))
    assert "patch" not in respond(client(), "/mutate", review(good, kind=kind))
    assert respond(client(), "/validate", review(good, kind=kind))["allowed"]
    refused = respond(client(), "/validate", review(bad, kind=kind))
    assert refused["status"]["details"]["causes"][0]["field"] == "spec.template.spec.nodeName"


def test_a_workload_whose_template_was_there_before_can_be_scaled() -> None:
    kind = {"group": "apps", "version": "v1", "kind": "Deployment"}
    old = {"spec": {"replicas": 1, "template": pod(nodeName="n")}}
    new = {"spec": {"replicas": 5, "template": pod(nodeName="n")}}
    assert respond(client(), "/validate", review(new, kind=kind, operation="UPDATE", oldObject=old))["allowed"]
    worse = {"spec": {"template": pod(nodeName="n", hostPID=True)}}
    assert not respond(client(), "/validate", review(worse, kind=kind, operation="UPDATE", oldObject=old))["allowed"]


def test_a_template_over_budget_is_allowed_with_a_warning() -> None:
    kind = {"group": "batch", "version": "v1", "kind": "Job"}
    spent = client(Standing(over_budget=True))
    response = respond(spent, "/validate", review({"spec": {"template": pod()}}, kind=kind))
    assert response["allowed"]
    assert "over its GPU budget" in response["warnings"][0]
    assert len(respond(spent, "/mutate", review(pod(), namespace="n" * 200))["warnings"][0]) == 256


def test_a_template_in_a_spent_hard_namespace_is_told_that_its_pods_will_be_refused() -> None:
    kind = {"group": "batch", "version": "v1", "kind": "Job"}
    spent = Standing(over_budget=True, hard=True)
    response = respond(client(spent), "/validate", review({"spec": {"template": pod()}}, kind=kind))
    assert response["allowed"]
    [warning] = response["warnings"]
    assert warning.startswith("pods of this template will be refused: ")
    assert "no GPU budget left" in warning
    plain = {"spec": {"template": {"spec": {"containers": [{"name": "a"}]}}}}
    assert "warnings" not in respond(client(spent), "/validate", review(plain, kind=kind))


@pytest.mark.parametrize(
    ("added", "code"),
    [
        ({"name": "d", "resources": {"limits": SHARE}}, "gpu-in-ephemeral-container"),
        ({"name": "d", "resources": {"requests": {"nvidia.com/gpu": 1}}}, "gpu-in-ephemeral-container"),
        ({"name": "d", "securityContext": {"privileged": True}}, "privileged"),
        ({"name": "d", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, "reserved-env"),
        ({"name": "d", "env": [VOID, {"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]}, "reserved-env"),
        ({"name": "d", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "valueFrom": {"x": {}}}]}, "reserved-env"),
        ({"name": "d", "securityContext": {"capabilities": {"add": ["SYS_ADMIN"]}}}, "capability"),
        (
            {"name": "d", "volumeMounts": [{"name": "v", "mountPath": "/run/nvidia-container-devices/all"}]},
            "device-mount",
        ),
        ({"name": "d"}, ""),
        ({"name": "d", "env": [{"name": "A", "value": "b"}], "envFrom": [{"configMapRef": {"name": "c"}}]}, ""),
        ({"name": "d", "env": [VOID]}, ""),
    ],
)
def test_an_ephemeral_container_does_not_reach_the_pods_gpus(added: dict[str, Any], code: str) -> None:
    old = pod(nodeName="node-1", ephemeralContainers=[{"name": "was", "securityContext": {"privileged": True}}])
    new = {**old, "spec": {**old["spec"], "ephemeralContainers": [*old["spec"]["ephemeralContainers"], added]}}
    whole = review(new, operation="UPDATE", subResource="ephemeralcontainers", oldObject=old)
    mutated = respond(client(), "/mutate", whole)
    assert mutated["allowed"]
    patched = new
    if "patch" in mutated:
        bare = respond(client(), "/validate", whole)
        assert not bare["allowed"], "where the first webhook was away"
        patched = apply(new, orjson.loads(b64decode(mutated["patch"])))
        assert patched["spec"]["ephemeralContainers"][1]["env"][-1] == VOID
        assert patched["spec"]["ephemeralContainers"][0] == old["spec"]["ephemeralContainers"][0]
    whole = review(patched, operation="UPDATE", subResource="ephemeralcontainers", oldObject=old)
    assert "patch" not in respond(client(), "/mutate", whole)
    response = respond(client(), "/validate", whole)
    assert response["allowed"] is not bool(code)
    if code:
        assert response["status"]["details"]["causes"][0]["reason"] == code


def test_ephemeral_containers_of_a_pod_without_gpus_are_left_alone() -> None:
    old: dict[str, Any] = {"metadata": {}, "spec": {"containers": [{"name": "a"}]}}
    new = {**old, "spec": {**old["spec"], "ephemeralContainers": [{"name": "d"}]}}
    for path in ("/mutate", "/validate"):
        asked = review(new, operation="UPDATE", subResource="ephemeralcontainers", oldObject=old)
        assert respond(client(), path, asked) == {"uid": "u-1", "allowed": True}


HOSTILE: list[tuple[str, bytes, str]] = [
    ("empty", b"", "body-not-json"),
    ("not JSON", b"<xml/>", "body-not-json"),
    ("cut off", orjson.dumps(review(pod()))[:-40], "body-not-json"),
    ("not UTF-8", b'{"kind": "\xff\xfe"}', "body-not-json"),
    ("lone surrogate", b'{"kind": "\\ud800"}', "body-not-json"),
    ("NaN", b'{"kind": NaN}', "body-not-json"),
    ("nested lists", b"[" * 200_000, "body-not-json"),
    ("nested and closed", b"[" * 5_000 + b"]" * 5_000, "body-not-json"),
    ("nested maps", b'{"a":' * 100_000, "body-not-json"),
    ("8 MB of text", b'"' + b"a" * (8 << 20) + b'"', "not-admission-review"),
    ("a long list", b"[" + b"0," * (400 << 10) + b"0]", "not-admission-review"),
    ("a number", b"5", "not-admission-review"),
    ("null", b"null", "not-admission-review"),
    ("a pod", orjson.dumps({"apiVersion": "v1", "kind": "Pod"}), "not-admission-review"),
    ("v1beta1", orjson.dumps({**review(pod()), "apiVersion": "admission.k8s.io/v1beta1"}), "review-version"),
    ("no version", orjson.dumps({"kind": "AdmissionReview"}), "review-version"),
    ("no request", orjson.dumps({**review(pod()), "request": None}), "request-missing"),
    ("request is a list", orjson.dumps({**review(pod()), "request": []}), "request-missing"),
    ("no uid", orjson.dumps(review(pod(), uid=None)), "uid-missing"),
    ("uid is a number", orjson.dumps(review(pod(), uid=7)), "uid-missing"),
    ("uid is empty", orjson.dumps(review(pod(), uid="")), "uid-missing"),
]


@pytest.mark.parametrize("endpoint", ["/mutate", "/validate"])
@pytest.mark.parametrize(("body", "code"), [case[1:] for case in HOSTILE], ids=[case[0] for case in HOSTILE])
def test_a_body_that_is_no_review_is_400_and_says_why(endpoint: str, body: bytes, code: str) -> None:
    answer = client()("POST", endpoint, body)
    problem = answer.json
    assert (answer.status, answer.media_type) == (400, "application/problem+json")
    assert (problem["status"], problem["code"]) == (400, code)
    assert problem["detail"]


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"kind": None}, "request.kind.kind"),
        ({"kind": "Pod"}, "request.kind.kind"),
        ({"kind": {"group": "", "kind": 5}}, "request.kind.kind"),
        ({"operation": "REPLACE"}, "request.operation"),
        ({"operation": None}, "request.operation"),
        ({"namespace": 5}, "request.namespace"),
        ({"object": None}, "request.object"),
        ({"object": [1]}, "request.object"),
    ],
)
def test_a_review_that_is_wrong_inside_is_refused_under_its_uid(change: dict[str, Any], field: str) -> None:
    response = respond(client(), "/validate", review(pod(), **change))
    assert response["status"]["code"] == 400
    cause = response["status"]["details"]["causes"][0]
    assert (cause["reason"], cause["field"]) == ("request-malformed", field)
    assert "for example" in cause["message"]


def test_unknown_fields_are_passed_over() -> None:
    whole = review({**pod(), "future": {"a": 1}}, future=[1, 2])
    assert respond(client(), "/mutate", {**whole, "future": True})["allowed"]


def test_an_eight_megabyte_pod_is_judged() -> None:
    env = [{"name": f"V{n}", "value": "x" * 80} for n in range(80_000)]
    whole = review(pod(containers=[{"name": "a", "env": env, "resources": {"limits": SHARE}}]))
    assert len(orjson.dumps(whole)) > 8 << 20
    assert respond(client(), "/mutate", whole)["allowed"]


def test_a_value_nested_deeply_is_judged() -> None:
    deep: Any = 1
    for _ in range(240):
        deep = {"a": deep}
    assert not respond(client(), "/mutate", review(pod(volumes=[{"name": deep}])))["allowed"]


def test_a_body_above_the_limit_is_413_and_not_read_further() -> None:
    announced = client()("POST", "/mutate", [None], {"content-length": str(BODY_LIMIT + 1)})
    quarter = b" " * (BODY_LIMIT // 4)
    chunked = client()("POST", "/mutate", [quarter, quarter, quarter, quarter, b" ", None])
    for answer in (announced, chunked):
        problem = answer.json
        assert (answer.status, answer.media_type) == (413, "application/problem+json")
        assert (problem["status"], problem["code"]) == (413, "request-entity-too-large")
        assert "webhook.maxBodyBytes" in problem["detail"]


def test_a_body_in_pieces_is_one_body() -> None:
    whole = orjson.dumps(review(pod()))
    answer = client()("POST", "/mutate", [whole[:100], whole[100:101], whole[101:]])
    assert answer.json["response"]["allowed"]


@pytest.mark.parametrize("piece", [b"[],", b"{},", b'{"a":0},', b"[0],", b'"ab",', b"0,"])
def test_a_body_that_unfolds_to_more_memory_than_there_is_is_413_and_not_parsed(piece: bytes) -> None:
    body = b'{"a":[' + piece * ((8 << 20) // len(piece)) + b"0]}"
    answer = client()("POST", "/mutate", body)
    assert (answer.status, answer.json["code"]) == (413, "review-too-complex")


def test_text_full_of_marks_is_no_reason_to_refuse() -> None:
    whole = review(pod(containers=[{"name": "a", "args": ['[{,:"\\' * 500_000], "resources": {"limits": SHARE}}]))
    assert respond(client(), "/mutate", whole)["allowed"]


def test_other_routes_and_methods_are_problems() -> None:
    shell = client()
    for path in ("/nothing", "/mutate/", "/"):
        answer = shell("GET", path)
        assert (answer.status, answer.json["code"]) == (404, "not-found")
    answer = shell("GET", "/mutate")
    assert (answer.status, answer.json["code"]) == (405, "method-not-allowed")
    assert (answer.media_type, answer.headers["allow"]) == ("application/problem+json", "POST")


def test_what_nobody_expected_is_a_problem_that_tells_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_namespace: str) -> Case:
        raise RuntimeError("a secret")

    settings = Settings()
    reviewer = Reviewer(Admission(settings), broken)
    shell = make_shell(reviewer, BODY_LIMIT, dict)
    sent: list[dict[str, Any]] = []
    with pytest.raises(RuntimeError, match="a secret"):  # for the server; the client has its answer by then
        ask(shell, "POST", "/mutate", orjson.dumps(review(pod())), sent=sent)
    answer = answer_of(sent)
    assert (answer.status, answer.json["code"]) == (500, "internal-server-error")
    assert b"secret" not in answer.body
    assert "a secret" in caplog.text


def test_probes_and_metrics() -> None:
    shell = client()
    shell("POST", "/mutate", b"x")
    respond(shell, "/mutate", review(pod(hostPID=True)))
    assert shell("GET", "/healthz").body == b"ok"
    assert shell("GET", "/readyz").json == {"status": "ready"}
    assert shell("GET", "/metrics").status == 404  # it has a port of its own
    text = generate_latest(metrics.registry()).decode()
    assert 'slicekeeper_webhook_reviews_total{endpoint="mutate",outcome="refused"}' in text
    assert 'slicekeeper_webhook_refusals_total{code="host-pid"}' in text
    assert 'slicekeeper_webhook_bad_requests_total{code="body-not-json"}' in text
