# SPDX-License-Identifier: Apache-2.0
"""The types of an AdmissionReview `admission.k8s.io/v1`: what the API server sends, and what we answer."""

from typing import Any, Literal, NotRequired, TypedDict

API_VERSION = "admission.k8s.io/v1"
KIND = "AdmissionReview"


class GroupVersionKind(TypedDict):
    """The kind of the object under review."""

    group: str
    version: str
    kind: str


class AdmissionRequest(TypedDict):
    """The `request` of a review, with only the fields that we read."""

    uid: str
    kind: GroupVersionKind
    operation: Literal["CREATE", "UPDATE", "DELETE", "CONNECT"]
    namespace: NotRequired[str]
    name: NotRequired[str]
    subResource: NotRequired[str]
    object: NotRequired[dict[str, Any] | None]
    oldObject: NotRequired[dict[str, Any] | None]
    dryRun: NotRequired[bool]
    userInfo: NotRequired[dict[str, Any]]


class Status(TypedDict):
    """Why a review was refused."""

    code: int
    message: str
    reason: NotRequired[str]
    details: NotRequired[dict[str, Any]]


class AdmissionResponse(TypedDict):
    """The `response` of a review; `patch` is a JSON patch in base64."""

    uid: str
    allowed: bool
    status: NotRequired[Status]
    patchType: NotRequired[Literal["JSONPatch"]]
    patch: NotRequired[str]
    warnings: NotRequired[list[str]]


class AdmissionReview(TypedDict):
    """The envelope of request and response."""

    apiVersion: str
    kind: str
    request: NotRequired[AdmissionRequest]
    response: NotRequired[AdmissionResponse]
