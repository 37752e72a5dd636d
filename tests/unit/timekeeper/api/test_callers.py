# SPDX-License-Identifier: Apache-2.0
"""Who a caller is, what they may do, and how their name is kept."""

from __future__ import annotations

import pytest
from support.timekeeper_service import GOOD_GRANT, World

from slicekeeper.kube.client import PODS
from timekeeper.core.caller import Caller


def test_rights_are_asked_of_the_api_server(world: World) -> None:
    # The simulator lets its one user do all, and others nothing.
    identity = world.service.identity
    identity.allow(Caller("slicekeeper-operator-test", operator=True), "update", "team")
    with pytest.raises(Exception, match="may not get gpubudgets/statement in namespace team"):
        identity.allow(Caller("system:serviceaccount:team:default"), "get", "team", "statement")


def test_whoever_has_a_long_name_is_kept_by_its_beginning_and_a_digest(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    actors = set()
    for end in "ab":
        name = f"system:serviceaccount:{'n' * 63}:{'s' * 252}{end}"
        monkeypatch.setattr(world.service.identity, "caller", lambda _, name=name, **_kw: Caller(name, operator=True))
        answer = world.call("POST", "/api/v1/budgets/team/grants", GOOD_GRANT, {"Idempotency-Key": end})
        assert answer.status_code == 201, answer.data
        actors.add(world.get("/api/v1/budgets/team/grants")["items"][0]["actor"])
    assert len(actors) == 2
    assert {len(actor) for actor in actors} == {253}
    assert all(actor.startswith(f"system:serviceaccount:{'n' * 63}:s") for actor in actors)


def test_a_token_is_reviewed_once_until_its_pod_ends(world: World) -> None:
    token = world.pod("a")
    identity = world.service.identity
    first = identity.caller(f"Bearer {token}")
    assert (first.pod_name, first.namespace) == ("a-pod", "team")
    world.cluster.store.delete(PODS, "a-pod", "team", grace=0)
    assert identity.caller(f"Bearer {token}") == first
    identity.forget(first.pod_uid)
    with pytest.raises(Exception, match="not valid"):
        identity.caller(f"Bearer {token}")
