# SPDX-License-Identifier: Apache-2.0
"""AdmissionReviews (`admission.k8s.io/v1`) in and out, as bytes: find the object under review and call `admission`.

A body with a `uid` is answered by a review, even if it is wrong, so that the API server can inform its user; for any
other, `BadReview` says what is wrong, and the answer is HTTP 400.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import orjson

from slicekeeper import names
from slicekeeper.errors import Violation
from slicekeeper.untyped_json import as_list, as_map, show
from slicekeeper.wire.admission_types import API_VERSION, KIND, AdmissionResponse
from webhook import record_changed_by
from webhook.admission import Admission
from webhook.pod_templates import template_of, template_path
from webhook.refusal_status import status_of
from webhook.review_inputs import Case
from webhook.verdict import Verdict

_KUBELETS: Final = "system:nodes"
"""The group of all kubelets' accounts."""

_OPERATIONS: Final = ("CREATE", "UPDATE", "DELETE", "CONNECT")

WARNING_CHARACTERS: Final = 256
"""The API server truncates longer ones."""

CaseOf = Callable[[str], Case]
"""Returns the facts about a namespace, without waiting."""


class BadReview(Exception):
    """The body is not an AdmissionReview that can be answered; `code` is stable."""

    status = 400

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True)
class Request:
    """The fields of a review's request that are read."""

    uid: str
    kind: str
    group: str
    operation: str
    namespace: str
    subresource: str
    object: Mapping[str, Any]
    old: Mapping[str, Any]
    user: str
    by_kubelet: bool
    """Whether a kubelet sent it: only that may create a mirror of a static pod, which is not checked."""

    @property
    def is_new_pod(self) -> bool:
        """Whether a pod is to be created."""
        return self.kind == "Pod" and not self.group and self.operation == "CREATE" and not self.subresource

    @property
    def changes_pod(self) -> bool:
        """Whether a pod is changed, other than by a subresource."""
        return self.kind == "Pod" and not self.group and self.operation == "UPDATE" and not self.subresource

    @property
    def adds_ephemeral_containers(self) -> bool:
        """Whether a running pod gets containers, as by `kubectl debug`."""
        of_pod = self.kind == "Pod" and not self.group
        return of_pod and self.operation == "UPDATE" and self.subresource == "ephemeralcontainers"

    @property
    def is_budget(self) -> bool:
        """Whether the review is of an object that keeps a budget, and not of its status alone."""
        ours = self.group == names.GROUP and self.kind in record_changed_by.KINDS
        return ours and self.operation in ("CREATE", "UPDATE") and not self.subresource


@dataclass(frozen=True)
class Answer:
    """A review's answer, and its data for metrics and logs."""

    body: bytes
    outcome: str
    """`allowed`, `mutated` or `refused`."""
    request: Request
    verdict: Verdict


class Reviewer:
    """Answers the two endpoints."""

    def __init__(self, admission: Admission, case_of: CaseOf) -> None:
        self._admission = admission
        self._case_of = case_of

    def mutate(self, body: bytes | bytearray) -> Answer:
        """Answer `/mutate`: a patch for a pod, its ephemeral containers or a budget, otherwise nothing."""
        return _answer(body, self._mutate)

    def validate(self, body: bytes | bytearray) -> Answer:
        """Answer `/validate`: new pods, ephemeral containers, and workloads' templates."""
        return _answer(body, self._validate)

    def _mutate(self, request: Request) -> Verdict:
        if request.is_new_pod:
            case = self._case_of(request.namespace)
            return self._admission.mutate(request.object, case, by_kubelet=request.by_kubelet)
        if request.changes_pod:
            return self._admission.mutate_update(request.object, request.old, self._case_of(request.namespace))
        if request.adds_ephemeral_containers:
            return self._admission.mutate_ephemeral(request.object, request.old, self._case_of(request.namespace))
        if request.is_budget:
            return Verdict(record_changed_by.note_writer(request.object, request.old, request.user))
        return Verdict()

    def _validate(self, request: Request) -> Verdict:
        if request.is_new_pod:
            case = self._case_of(request.namespace)
            return self._admission.validate(request.object, case, by_kubelet=request.by_kubelet)
        if request.adds_ephemeral_containers:
            return self._admission.validate_ephemeral(request.object, request.old, self._case_of(request.namespace))
        # Most of an existing pod cannot change, and guards in the API server protect our fields.
        path = template_path(request.group, request.kind)
        if path is None or request.operation not in ("CREATE", "UPDATE") or request.subresource:
            return Verdict()
        template = template_of(request.object, path)
        if request.operation == "UPDATE" and template == template_of(request.old, path):
            return Verdict()  # existing workloads can be scaled, annotated and deleted
        return self._admission.validate_template(
            request.object, template, self._case_of(request.namespace), ".".join(path)
        )


def parse(body: bytes | bytearray) -> tuple[Request, Violation | None]:
    """Return the request of a review, and its error if an answer can report it.

    Raises BadReview if no answer is possible.
    """
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadReview("body-not-json", f"the body is not JSON: {error.msg} at byte {error.pos}") from error
    if not isinstance(review, dict) or review.get("kind") != KIND:
        raise BadReview("not-admission-review", f"the body must be an object of kind {KIND}")
    if review.get("apiVersion") != API_VERSION:
        found = show(review.get("apiVersion"))
        raise BadReview("review-version", f"apiVersion is {found}: only {API_VERSION} is spoken here")
    raw = review.get("request")
    if not isinstance(raw, dict):
        raise BadReview("request-missing", "request must be an object")
    uid = raw.get("uid")
    if not isinstance(uid, str) or not uid:
        raise BadReview("uid-missing", "request.uid must be a non-empty string")
    return _request(uid, raw)


def _request(uid: str, raw: Mapping[str, Any]) -> tuple[Request, Violation | None]:
    """Return a review's request, and what is wrong with it, if anything: it has a UID, so it can be answered."""
    kind = as_map(raw.get("kind"))
    obj = raw.get("object")
    namespace = raw.get("namespace")
    if namespace is None:
        namespace = as_map(as_map(obj).get("metadata")).get("namespace", "")
    user = as_map(raw.get("userInfo"))
    request = Request(
        uid=uid,
        kind=_text(kind.get("kind")),
        group=_text(kind.get("group")),
        operation=_text(raw.get("operation")),
        namespace=_text(namespace),
        subresource=_text(raw.get("subResource")),
        object=as_map(obj),
        old=as_map(raw.get("oldObject")),
        user=_text(user.get("username")),
        by_kubelet=_KUBELETS in as_list(user.get("groups")),
    )
    if not request.kind:
        return request, _bad("request.kind.kind", kind.get("kind"), "it must name the object's kind", "kind: Pod")
    if request.operation not in _OPERATIONS:
        rule = f"it must be one of {', '.join(_OPERATIONS)}"
        return request, _bad("request.operation", raw.get("operation"), rule, "operation: CREATE")
    if not isinstance(namespace, str):
        return request, _bad("request.namespace", namespace, "it must be a string", "namespace: team-a")
    if request.operation in ("CREATE", "UPDATE") and not isinstance(obj, dict):
        return request, _bad("request.object", obj, "it must be an object", 'object: {"metadata": {}, "spec": {}}')
    return request, None


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _bad(field: str, value: object, rule: str, example: str) -> Violation:
    return Violation(code="request-malformed", field=field, value=show(value), rule=rule, example=example)


def _answer(body: bytes | bytearray, review: Callable[[Request], Verdict]) -> Answer:
    """Return the answer to a review, or to a request that is wrong itself."""
    request, fault = parse(body)
    verdict = review(request) if fault is None else Verdict(violations=[fault])
    response: AdmissionResponse = {"uid": request.uid, "allowed": verdict.allowed}
    outcome = "allowed"
    if verdict.violations:
        outcome = "refused"
        response["status"] = status_of(verdict.violations)
    elif verdict.patch:
        outcome = "mutated"
        response["patchType"] = "JSONPatch"
        response["patch"] = b64encode(orjson.dumps(verdict.patch)).decode("ascii")
    if verdict.warnings:
        response["warnings"] = list(map(shortened, verdict.warnings))
    encoded = orjson.dumps({"apiVersion": API_VERSION, "kind": KIND, "response": response})
    return Answer(encoded, outcome, request, verdict)


def shortened(warning: str) -> str:
    """Return a warning, truncated to the length from which the API server would truncate it."""
    return warning if len(warning) <= WARNING_CHARACTERS else warning[: WARNING_CHARACTERS - 3] + "..."
