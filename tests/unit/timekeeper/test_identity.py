# SPDX-License-Identifier: Apache-2.0
"""Whose token it is and what they may do: what is asked of the API server, and how long its answers count."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from slicekeeper.kube.client import TOKEN_REVIEWS
from timekeeper.api.identity import Identity, time
from timekeeper.api.problems import Problem
from timekeeper.core.caller import Caller

EXTRA = {"example.com/scopes": ["read", "write"], "authentication.kubernetes.io/credential-id": ["JTI=1"]}


class ApiServer:
    """Answers reviews as it is told, and keeps what it was asked."""

    def __init__(self) -> None:
        self.valid: set[str] = set()
        self.allowed = True
        self.pods: dict[str, str] = {}
        self.asked: list[dict[str, Any]] = []
        self.meanwhile: Callable[[], None] = lambda: None

    def create(self, resource: object, body: dict[str, Any]) -> dict[str, Any]:
        self.asked.append(body)
        if resource != TOKEN_REVIEWS:
            return {"status": {"allowed": self.allowed}}
        token = body["spec"]["token"]
        pod = {"authentication.kubernetes.io/pod-uid": [self.pods[token]]} if token in self.pods else {}
        user = {"username": "jane", "uid": "42", "groups": ["team", "system:authenticated"], "extra": EXTRA | pod}
        valid = token in self.valid
        self.meanwhile()
        return {"status": {"authenticated": valid, "audiences": ["timekeeper"], "user": user if valid else {}}}


@pytest.fixture
def server() -> ApiServer:
    return ApiServer()


@pytest.fixture
def identity(server: ApiServer) -> Identity:
    return Identity(server, "timekeeper", "")  # type: ignore[arg-type]


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    at = [1000.0]
    monkeypatch.setattr(time, "monotonic", lambda: at[0])
    return at


def test_an_access_review_carries_all_that_the_token_review_said(server: ApiServer, identity: Identity) -> None:
    server.valid = {"t"}
    identity.allow(identity.caller("Bearer t"), "get", "team")
    spec = server.asked[-1]["spec"]
    assert (spec["user"], spec["uid"], spec["groups"]) == ("jane", "42", ["team", "system:authenticated"])
    assert spec["extra"] == EXTRA


def test_callers_of_one_name_and_other_scopes_share_no_answer(server: ApiServer, identity: Identity) -> None:
    identity.allow(Caller("jane", extra=(("scopes", ("all",)),)), "get", "team")
    server.allowed = False
    with pytest.raises(Problem):
        identity.allow(Caller("jane", extra=(("scopes", ("none",)),)), "get", "team")


@pytest.mark.parametrize("verb", ["create", "update", "delete", "patch"])
def test_a_right_to_write_that_was_taken_away_is_gone_within_seconds(
    server: ApiServer, identity: Identity, now: list[float], verb: str
) -> None:
    jane = Caller("jane")
    identity.allow(jane, verb, "team")
    server.allowed = False
    now[0] += 3
    with pytest.raises(Problem):
        identity.allow(jane, verb, "team")


def test_a_right_to_read_is_asked_for_every_half_minute(
    server: ApiServer, identity: Identity, now: list[float]
) -> None:
    jane = Caller("jane")
    for _ in range(29):
        identity.allow(jane, "get", "team")
        now[0] += 1
    assert len(server.asked) == 1
    server.allowed = False
    now[0] += 2
    with pytest.raises(Problem):
        identity.allow(jane, "get", "team")


@pytest.mark.parametrize(("pod", "writes", "seconds"), [(False, False, 31), (False, True, 3), (True, True, 3)])
def test_a_token_that_was_revoked_counts_no_longer_than_its_use_allows(
    server: ApiServer, identity: Identity, now: list[float], pod: bool, writes: bool, seconds: float
) -> None:
    server.valid, server.pods = {"t"}, ({"t": "uid-1"} if pod else {})
    identity.caller("Bearer t", writes=writes)
    server.valid = set()
    now[0] += seconds
    with pytest.raises(Problem):
        identity.caller("Bearer t", writes=writes)


def test_a_pod_that_reports_is_reviewed_every_ten_minutes(
    server: ApiServer, identity: Identity, now: list[float]
) -> None:
    server.valid, server.pods = {"t"}, {"t": "uid-1"}
    for _ in range(59):
        identity.caller("Bearer t")
        now[0] += 10
    assert len(server.asked) == 1


@pytest.mark.parametrize("others", [0, 50_000])
def test_a_pods_end_is_never_forgotten_while_an_answer_from_before_it_counts(
    server: ApiServer, identity: Identity, others: int
) -> None:
    server.valid, server.pods = {"t"}, {"t": "uid-1"}
    identity.caller("Bearer t")
    identity.forget("uid-1")
    for number in range(others):
        identity.forget(f"other-{number}")
    server.valid = set()
    with pytest.raises(Problem):
        identity.caller("Bearer t")


def test_an_answer_that_comes_while_its_pod_ends_is_not_kept(
    server: ApiServer, identity: Identity, now: list[float]
) -> None:
    server.valid, server.pods = {"t"}, {"t": "uid-1"}
    server.meanwhile = lambda: identity.forget("uid-1")
    identity.caller("Bearer t")
    server.valid, server.meanwhile = set(), lambda: None
    for seconds in (0, 599, 2):
        now[0] += seconds
        with pytest.raises(Problem):
            identity.caller("Bearer t")


def test_ends_are_kept_for_as_long_as_answers_and_no_longer(identity: Identity, now: list[float]) -> None:
    for number in range(1000):
        now[0] += 1
        identity.forget(f"pod-{number}")
    assert len(identity._ended) == 601
