# SPDX-License-Identifier: Apache-2.0
"""Objects in, budgets out, statuses back; what is deleted, refused, and not served."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.budget_objects import T0, TEAM, ObjectWorld
from support.operators import Operator

from simulator import kinds
from slicekeeper import names
from slicekeeper.errors import Forbidden, Unavailable
from slicekeeper.kube.client import KubeClient, Object, Resource
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.units import format_seconds
from slicekeeper.wire.timekeeper import Budget, Parent

HOUR = 3_600_000
SPEC = {"amount": "2h30m", "period": "month", "credit": "1h", "timeZone": "Europe/Berlin"}


def budget(world: ObjectWorld, namespace: str = "team") -> Budget:
    return world.timekeeper.budget(Budget, namespace)


def test_an_object_becomes_a_budget_and_its_status_tells_how_it_stands(world: ObjectWorld) -> None:
    made = world.apply(SPEC)
    world.keeper().keep()
    found = budget(world)
    assert (found.amount_ms, found.period, found.credit_ms, found.time_zone) == (
        int(2.5 * HOUR),
        "month",
        HOUR,
        "Europe/Berlin",
    )
    assert found.kept_by is not None
    assert (found.kept_by.uid, found.kept_by.generation) == (made["metadata"]["uid"], 1)
    status = world.status()
    assert {key: status[key] for key in ("state", "amount", "toSpend", "used", "left")} == {
        "state": "ok",
        "amount": "2h30m",
        "toSpend": "2h30m",
        "used": "0s",
        "left": "2h30m",
    }
    [ready] = status["conditions"]
    assert ready == {
        "type": "Ready",
        "status": "True",
        "reason": "Synced",
        "message": "the timekeeper uses this spec",
        "observedGeneration": 1,
        "lastTransitionTime": format_seconds(T0),
    }
    assert (status["observedGeneration"], status["asOf"]) == (1, format_seconds(T0))
    # Nothing of ours is on the object but that, and nothing is written while nothing changes.
    before = world.store.get(TEAM, "default", "team")
    assert set(before["metadata"]) == {"name", "namespace", "uid", "creationTimestamp", "resourceVersion", "generation"}
    version, acts = world.store.version, world.acts()
    for _ in range(3):
        world.clock.advance(60_000)
        world.keeper().keep()
    assert (world.store.version, world.acts()) == (version, acts)


def test_figures_are_written_at_most_twice_a_minute_and_what_matters_at_once(world: ObjectWorld) -> None:
    world.apply(SPEC)
    world.keeper().keep()
    body = {"amountMs": HOUR, "reason": "r"}
    world.timekeeper.move_time(Budget, "team", "grants", body, "k")
    world.clock.advance(29_000)
    world.keeper().keep()
    assert world.status()["left"] == "2h30m"
    world.clock.advance(1_000)
    world.keeper().keep()
    assert world.status()["left"] == "3h30m"
    world.timekeeper.move_time(Budget, "team", "grants", body, "k2")
    world.clock.ms -= 1_000  # another operator's clock was ahead
    world.keeper().keep()
    assert world.status()["left"] == "4h30m"
    world.timekeeper.set_status(Budget, "team", "suspended", "r")
    world.keeper().keep()
    assert world.status()["state"] == "suspended"
    world.clock.advance(1_000)
    world.apply({**SPEC, "amount": "9h"})
    world.keeper().keep()
    status = world.status()
    assert (status["amount"], status["observedGeneration"]) == ("9h", 2)
    assert status["conditions"][0]["lastTransitionTime"] == format_seconds(T0)


def test_a_namespace_to_which_no_budget_applies_says_so_in_the_status(world: ObjectWorld) -> None:
    file = Path(world.service.settings.policy.file)
    file.write_text("default: {mode: off}")
    world.service.policy.refresh()
    world.apply(SPEC)
    world.keeper().keep()
    [ready] = world.status()["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "NamespaceOff")
    assert "no budget applies to team" in ready["message"]
    file.write_text("default: {mode: observe}")
    world.service.policy.refresh()
    world.keeper().keep()
    assert world.status()["conditions"][0]["reason"] == "Synced"


def test_the_ledger_names_who_wrote_an_object(world: ObjectWorld) -> None:
    world.apply_parent("physics", {"kind": "team", "amount": "9h", "period": "none"}, by="carol")
    world.apply({**SPEC, "parent": "physics"}, by="alice")
    world.keeper().keep()
    assert {who for who, _ in world.audit(parent="physics")} == {"carol"}
    assert world.audit(namespace="team") == [("alice", "object"), ("alice", "budget"), ("alice", "parent")]
    world.clock.advance(1_000)
    world.apply({**SPEC, "amount": "9h"}, by="system:serviceaccount:argocd:argocd")
    world.keeper().keep()
    assert {who for who, _ in world.audit(namespace="team")[3:]} == {"system:serviceaccount:argocd:argocd"}


def test_a_writer_of_before_is_not_named_for_what_was_written_while_the_webhook_was_away(world: ObjectWorld) -> None:
    world.apply(SPEC, by="alice")
    world.keeper().keep()
    world.clock.advance(1_000)
    changed = world.apply({**SPEC, "amount": "9h"})
    assert changed["metadata"]["annotations"] == {names.CHANGED_BY: "1 alice"}
    world.keeper().keep()
    assert [who for who, _ in world.audit(namespace="team")] == ["alice", "alice", "operator", "operator"]


@pytest.mark.parametrize("name", ["a\0b", "a\nb", "u" * 1024, "\n" * 1024])
def test_a_users_strange_name_keeps_no_budget_from_being_followed(world: ObjectWorld, name: str) -> None:
    world.apply(SPEC, by=name)
    world.keeper().keep()
    assert world.status()["conditions"][0]["reason"] == "Synced"
    [who] = {who for who, _ in world.audit(namespace="team")}
    assert who.isprintable()
    assert who[:2] == ascii(name)[1:3]


def test_who_does_not_hold_the_lease_writes_nothing(world: ObjectWorld) -> None:
    world.apply(SPEC)
    world.keeper(acts=lambda: False).keep()
    assert (budget(world).source, world.status()) == ("policy", {})


def test_what_the_timekeeper_refuses_is_told_in_the_object_and_nothing_else_waits(world: ObjectWorld) -> None:
    world.apply({**SPEC, "timeZone": "Mars/Olympus"})
    world.apply(SPEC, "other")
    world.keeper().keep()
    [ready] = world.status()["conditions"]
    assert (ready["status"], ready["reason"]) == ("False", "TimeZoneUnknown")
    assert "Mars/Olympus" in ready["message"]
    assert (budget(world).source, budget(world, "other").source) == ("policy", "own")
    world.clock.advance(5_000)
    world.apply(SPEC)
    world.keeper().keep()
    [ready] = world.status()["conditions"]
    assert (ready["status"], ready["lastTransitionTime"]) == ("True", format_seconds(T0 + 5_000))


@pytest.mark.parametrize("amount", ["", "20", None, "999999999999999h"])
def test_an_amount_that_says_nothing_is_told(world: ObjectWorld, amount: str | None) -> None:
    world.apply({**SPEC, "amount": amount})
    world.keeper().keep()
    [ready] = world.status()["conditions"]
    assert ready["reason"] == "SpecInvalid"
    assert "spec.amount" in ready["message"]


def test_a_status_that_is_refused_holds_up_no_other_object(world: ObjectWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.apply(SPEC)
    world.apply(SPEC, "other")
    patch = KubeClient.patch

    def refused(self: KubeClient, resource: Resource, name: str, body: object, namespace: str, **more: str) -> Object:
        if namespace == "team":
            raise Forbidden("a policy says no", 403)
        return patch(self, resource, name, body, namespace, **more)

    monkeypatch.setattr(KubeClient, "patch", refused)
    world.keeper().keep()
    assert (world.status(), world.status("other")["state"]) == ({}, "ok")


def test_a_hierarchy_applied_in_any_order_comes_to_be(world: ObjectWorld) -> None:
    world.apply({**SPEC, "parent": "atoms"})
    world.keeper().keep()
    assert world.status()["conditions"][0]["reason"] == "ParentUnknown"
    world.apply_parent("atoms", {"kind": "team", "amount": "5h", "period": "month", "parent": "physics"})
    world.apply_parent("physics", {"kind": "organisation", "amount": "9h", "period": "none"})
    world.keeper().keep()
    assert (budget(world).parent, world.status()["conditions"][0]["reason"]) == ("atoms", "Synced")
    atoms = world.timekeeper.budget(Parent, "atoms")
    assert (atoms.kind, atoms.parent, atoms.amount_ms) == ("team", "physics", 5 * HOUR)


def test_a_deleted_object_gives_way_to_the_policy_whether_or_not_somebody_looked(world: ObjectWorld) -> None:
    world.apply(SPEC)
    world.keeper().keep()
    world.delete()
    world.clock.advance(2_000)
    world.keeper().keep()
    found = budget(world)
    assert (found.source, found.kept_by, found.amount_ms) == ("policy", None, 150 * 60_000)
    world.apply({**SPEC, "amount": "7h"})
    world.keeper().keep()
    assert budget(world).amount_ms == 7 * HOUR


def test_one_that_was_made_anew_between_two_looks_is_followed(world: ObjectWorld) -> None:
    world.apply(SPEC)
    world.keeper().keep()
    world.delete()
    world.clock.advance(2_000)
    made = world.apply({**SPEC, "amount": "7h"})
    world.keeper().keep()
    found = budget(world)
    assert found.kept_by is not None
    assert (found.amount_ms, found.kept_by.uid) == (7 * HOUR, made["metadata"]["uid"])


def test_a_kind_that_is_not_served_is_no_deleted_object(world: ObjectWorld) -> None:
    """While CRDs are being replaced, or an API server starts, no budget may fall back to the policy's."""
    world.apply(SPEC)
    world.keeper().keep()
    parts = kinds.BY_PATH.pop((TEAM.prefix, TEAM.plural))
    with pytest.raises(Exception, match="could not find the requested resource"):
        world.keeper().keep()
    kinds.BY_PATH[TEAM.prefix, TEAM.plural] = parts
    assert budget(world).source == "own"


def test_a_list_that_is_short_lets_nothing_go(world: ObjectWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.apply(SPEC)
    world.keeper().keep()
    monkeypatch.setattr(KubeClient, "list", lambda *_, **__: ([], "1"))
    world.keeper().keep()
    assert budget(world).source == "own"


def test_a_timekeeper_that_does_not_serve_us_is_no_objects_fault(
    world: ObjectWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    def down(*_: object) -> None:
        raise Unavailable("down", 503)

    world.apply(SPEC)
    monkeypatch.setattr(TimekeeperClient, "put_object", down)
    with pytest.raises(Unavailable):
        world.keeper().keep()
    assert world.status() == {}


LOOK = range(1, 7)
"""After how many calls an operator stops in the middle of a look at one object."""


def late(world: ObjectWorld, at: int) -> Operator:
    """Return an operator that has stopped in the middle of a look."""
    operator = Operator(world)
    for _ in range(at):
        operator.call()
    return operator


def test_an_operator_that_is_late_tells_no_figures_of_before(world: ObjectWorld) -> None:
    for at in LOOK:
        team = world.namespace(f"n{at}")
        world.apply(SPEC, team)
        world.keeper().keep()
        operator = late(world, at)
        world.timekeeper.set_status(Budget, team, "suspended", "r")
        world.keeper().keep()
        told = world.store.version
        list(operator.end())
        world.keeper().keep()
        assert (world.status(team)["state"], world.store.version) == ("suspended", told)


def test_an_object_that_is_gone_is_not_taken_from_an_operator_that_is_late(world: ObjectWorld) -> None:
    for at in LOOK:
        team = world.namespace(f"n{at}")
        world.apply(SPEC, team)
        operator = late(world, at)
        world.keeper().keep()
        world.delete(team)
        world.keeper().keep()
        acts = world.acts(team)
        list(operator.end())
        assert (world.acts(team), budget(world, team).source) == (acts, "policy")


def test_an_object_that_was_made_anew_is_taken_once_though_an_operator_is_late(world: ObjectWorld) -> None:
    """Even if both were made within a second."""
    for at in LOOK:
        team = world.namespace(f"n{at}")
        world.apply(SPEC, team)
        operator = late(world, at)
        world.delete(team)
        made = world.apply({**SPEC, "amount": "7h"}, team)
        world.keeper().keep()
        acts = world.acts(team)
        list(operator.end())
        world.keeper().keep()
        kept = budget(world, team).kept_by
        assert kept is not None
        assert (kept.uid, world.acts(team)) == (made["metadata"]["uid"], acts)
