# SPDX-License-Identifier: Apache-2.0
"""Objects, requests and the policy changed between any two calls of two operators that are killed, late, or both lead.

What must come of it is worked out from what was asked and which of it took effect when, by the precedence that
`docs/objects.md` states; no code of the operator has a part in that.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget_objects import ORGANISATION, TEAM, ObjectWorld, object_world
from support.databases import Databases
from support.operators import Call, Operator

from objects.budgets.resources import ONLY_NAME
from simulator.api_errors import ObjectNotFound
from simulator.store import Change
from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.errors import Conflict, NotFound
from slicekeeper.kube.client import Object
from slicekeeper.units import parse_duration, parse_instant
from slicekeeper.wire.timekeeper import Budget, Parent
from timekeeper.ledger.budget import follow_policy

MINUTE: Final = 60_000
FIGURES_MS: Final = 30_000
NUMBERS = count()
Shown = tuple[str, int, int, str] | None
"""What people see of a budget: state, amount, what is left, which one above it binds; None: there is none."""

minutes = st.integers(1, 4)
spec = st.tuples(
    minutes,
    st.sampled_from(
        [{}, {}, {}, {}, {"parent": ""}, {"parent": "theirs"}, {"parent": "nobody"}, {"timeZone": "Mars/Olympus"}]
    ),
)
team_spec = st.tuples(minutes, st.sampled_from([{}, {}, {"timeZone": "Mars/Olympus"}]))
which = st.integers(0, 1)
FATES: Final = ("killed before", "killed after", "unreachable", "answer lost")
# `one_of` would give all that is in a group the same weight as a group; what is mapped it takes as one.
said = st.one_of(
    st.tuples(st.just("apply"), spec),
    st.tuples(st.just("delete"), st.none()),
    st.tuples(st.just("replace"), spec),
    st.tuples(st.just("apply team"), team_spec),
    st.tuples(st.just("delete team"), st.none()),
).map(tuple)
asked = st.one_of(
    st.tuples(st.just("put"), minutes),
    st.tuples(st.just("patch"), minutes),
    st.tuples(st.just("unset"), st.none()),
    st.tuples(st.just("put team"), minutes),
    st.tuples(st.just("move"), st.booleans()),
    st.tuples(st.just("grant"), minutes),
    st.tuples(st.just("suspend"), st.booleans()),
    st.tuples(st.just("suspend team"), st.booleans()),
    st.tuples(st.just("policy"), minutes),
    st.tuples(st.just("wait"), st.sampled_from([1, 1_000, 10_000, FIGURES_MS])),
).map(tuple)
calls = st.tuples(st.just("calls"), st.tuples(which, st.integers(1, 10)))
late = st.tuples(st.just("late"), st.tuples(which, st.integers(1, 9), said))
"""An operator stops in the middle of a look, something changes, and the other one looks."""
luck = st.one_of(
    st.tuples(st.just("fate"), st.tuples(which, st.sampled_from(FATES))),
    st.tuples(st.just("lease"), st.sampled_from([(True, False), (False, True), (True, True)])),
).map(tuple)
Steps = list[tuple[str, Any]]


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[ObjectWorld]:
    """One world for all examples, each in a namespace and a team of its own."""
    with databases.migrated() as url, object_world(tmp_path_factory.mktemp("objects"), url) as made:
        yield made


@dataclass
class Expected:
    """A budget as it must be: what took effect, folded in the order in which it did."""

    there: bool
    amount: int | None = None
    """Of its own; None: it has the policy's."""
    kept: tuple[str, int] | None = None
    parent: str | None = None
    active: bool = True
    granted: int = 0
    specs: dict[tuple[str, int], Object] = field(default_factory=dict)
    """What its objects said, by UID and generation."""
    taken: Counter[tuple[str, int]] = field(default_factory=Counter)
    released: Counter[str] = field(default_factory=Counter)
    noted: int = 0
    """How many entries of the audit log were read."""
    window: list[Shown] = field(default_factory=list)
    """What has been true of it since its object was made, or its status written."""

    def names_parent(self) -> bool:
        return self.kept is not None and "parent" in self.specs[self.kept]


class Story:
    """A namespace and a team, and what must come of what is done to them."""

    def __init__(self, world: ObjectWorld) -> None:
        number = next(NUMBERS)
        self.world = world
        self.namespace, self.team = world.namespace(f"n{number}"), f"t{number}"
        self.policy = 0
        self.of = {self.namespace: Expected(there=True), self.team: Expected(there=False)}
        self.operators = (Operator(world), Operator(world))
        self.sent: list[Call] = []
        self.changes = 0
        self.began = world.store.version
        world.timekeeper.set_status(Budget, self.namespace, "active", "so that it has an account")
        self.do("policy", 150)

    def do(self, what: str, value: Any = None) -> None:
        self.world.clock.advance(1)
        if what == "calls":
            operator, number = value
            for _ in range(number):
                self._note(self.operators[operator].call())
        elif what == "fate":
            operator, fate = value
            self._note(self.operators[operator].call(fate))
        elif what == "late":
            operator, number, (change, spec) = value
            self.do("calls", (operator, number))
            self.do(change, spec)
            self.do("look", 1 - operator)
        elif what == "look":
            for one in self.operators[value].look():
                self._note(one)
        elif what == "lease":
            for operator, leads in zip(self.operators, value, strict=True):
                operator.leads = leads
        elif what == "wait":
            self.world.clock.advance(value)
        else:
            self.changes += 1
            getattr(self, f"_{what.replace(' ', '_')}")(value)
            self._see(self.team if "team" in what else self.namespace)

    def _apply(self, value: tuple[int, Object]) -> None:
        minutes, more = value
        if more.get("parent") == "theirs":
            more = {"parent": self.team}
        self._say(TEAM, self.namespace, {"amount": f"{minutes}m", "period": "none", **more})

    def _apply_team(self, value: tuple[int, Object]) -> None:
        minutes, more = value
        self._say(ORGANISATION, self.team, {"kind": "team", "amount": f"{minutes}m", "period": "none", **more})

    def _say(self, resource: Any, holder: str, spec: Object) -> None:
        before = self.object(holder)
        if resource == TEAM:
            made = self.world.apply(spec, holder)["metadata"]
        else:
            made = self.world.apply_parent(holder, spec)["metadata"]
        self.of[holder].specs[made["uid"], made["generation"]] = spec
        if before is None:
            self.of[holder].window = [self.shown(holder)]

    def _delete(self, _: None) -> None:
        self.world.delete(self.namespace)

    def _replace(self, value: tuple[int, Object]) -> None:
        self._delete(None)
        self._apply(value)

    def _delete_team(self, _: None) -> None:
        with suppress(ObjectNotFound):
            self.world.store.delete(ORGANISATION, self.team)

    def _policy(self, value: int) -> None:
        self.policy = value
        policy = NamespacePolicy(budget=BudgetPolicy(amount=f"{value}m", period="none"))
        service = self.world.service
        service.policy.book.exact[self.namespace] = policy
        follow_policy(service.books, {self.namespace: policy}, self.world.clock.now_ms())

    def _put(self, value: int) -> None:
        body = {"amountMs": value * MINUTE, "period": "none"}
        if self._may_change(self.namespace, lambda: self.world.timekeeper.set_budget(Budget, self.namespace, body)):
            self.of[self.namespace].amount = value

    def _patch(self, value: int) -> None:
        body = {"amountMs": value * MINUTE}
        if self._may_change(self.namespace, lambda: self.world.timekeeper.change_budget(Budget, self.namespace, body)):
            self.of[self.namespace].amount = value

    def _unset(self, _: None) -> None:
        if self._may_change(self.namespace, lambda: self.world.timekeeper.unset_budget(self.namespace, "r")):
            self.of[self.namespace].amount = None

    def _put_team(self, value: int) -> None:
        body = {"kind": "team", "amountMs": value * MINUTE, "period": "none"}
        if self._may_change(self.team, lambda: self.world.timekeeper.set_budget(Parent, self.team, body)):
            self.of[self.team].amount = value
            self.of[self.team].there = True

    def _may_change(self, holder: str, request: Callable[[], object]) -> bool:
        """Send a request that an object refuses; return whether it was taken."""
        if self.of[holder].kept is None:
            request()
            return True
        with pytest.raises(Conflict, match="kubectl edit"):
            request()
        return False

    def _move(self, under: bool) -> None:
        expected, parent = self.of[self.namespace], self.team if under else None
        if expected.names_parent():
            with pytest.raises(Conflict, match="kubectl edit"):
                self.world.timekeeper.put_under(Budget, self.namespace, parent, "r")
        elif under and not self.of[self.team].there:
            with pytest.raises(NotFound):
                self.world.timekeeper.put_under(Budget, self.namespace, parent, "r")
        else:
            self.world.timekeeper.put_under(Budget, self.namespace, parent, "r")
            expected.parent = parent

    def _grant(self, value: int) -> None:
        self.world.timekeeper.grant(Budget, self.namespace, value * MINUTE, "r", f"key-{self.changes}")
        self.of[self.namespace].granted += value

    def _suspend(self, value: bool) -> None:
        self.world.timekeeper.set_status(Budget, self.namespace, "suspended" if value else "active", "r")
        self.of[self.namespace].active = not value

    def _suspend_team(self, value: bool) -> None:
        if self.of[self.team].there:
            self.world.timekeeper.set_status(Parent, self.team, "suspended" if value else "active", "r")
            self.of[self.team].active = not value

    def object(self, holder: str) -> Object | None:
        """Return the object that is there now."""
        store = self.world.store
        return store.find(TEAM, ONLY_NAME, holder) if holder == self.namespace else store.find(ORGANISATION, holder)

    def budget(self, holder: str) -> Budget | Parent | None:
        """Return the budget that the timekeeper has now."""
        if not self.of[holder].there:
            return None
        return self.world.timekeeper.budget(Budget if holder == self.namespace else Parent, holder)

    def shown(self, holder: str) -> Shown:
        """Return what people should see of a budget now."""
        found = self.budget(holder)
        return None if found is None else (found.state, found.amount_ms, found.balance_ms, found.bound_by)

    def _see(self, changed: str) -> None:
        """Have what is true now among what a status may say."""
        for holder in {self.namespace, changed}:
            self.of[holder].window.append(self.shown(holder))

    def _note(self, call: Call | None) -> None:
        """Have what an operator's call brought about in what is expected."""
        if call is None:
            return
        self.sent.append(call)
        if call.name in ("put_object", "delete_object") and call.args[1] in self.of:
            self._take(call.args[1])
            self._see(call.args[1])
        elif call.name == "patch" and call.refused is None:
            _, name, body, namespace = call.args
            if (expected := self.of.get(namespace or name)) is not None:
                # What was so before the last status was written would take that back, and another write this one.
                assert _shown(body["status"]) in expected.window
                expected.window = expected.window[-1:]

    def _take(self, holder: str) -> None:
        """Take in what the ledger noted of an object: no generation twice, and never one before another."""
        expected = self.of[holder]
        whose = "namespace" if holder == self.namespace else "parent"
        entries: list[Any] = []
        with suppress(NotFound):
            entries += self.world.timekeeper.records("audit", query={whose: holder})
        for entry in entries[expected.noted :]:
            if entry["action"] != "object":
                continue
            uid, generation = entry["detail"]["uid"], int(entry["detail"]["generation"])
            if "deleted" in entry["detail"]:
                expected.released[uid] += 1
                assert (expected.released[uid], expected.kept) == (1, (uid, generation))
                expected.kept = None
                expected.amount = None if holder == self.namespace else expected.amount
                continue
            expected.taken[uid, generation] += 1
            assert expected.taken[uid, generation] == 1
            assert all(one <= generation for other, one in expected.taken if other == uid)
            spec = expected.specs[uid, generation]
            expected.there, expected.kept = True, (uid, generation)
            expected.amount = parse_duration(spec["amount"]) // MINUTE
            if "parent" in spec:
                expected.parent = spec["parent"] or None
        expected.noted = len(entries)

    def _entries(self) -> list[int]:
        for holder in self.of:
            self._take(holder)
        return [expected.noted for expected in self.of.values()]

    def end(self) -> None:
        """Let both finish, and one pass run: whatever happened, this is enough, and nothing more is written."""
        self.do("lease", (True, True))
        for operator in self.operators:
            for one in operator.end():
                self._note(one)
        for _ in range(2):  # the second for the figures of a budget that the first one let go
            self.do("wait", FIGURES_MS)
            self.do("look", 0)
        self._nobody_writes()
        for holder in self.of:
            self._is_as_it_must_be(holder)
        self._each_status_said_something_else()

    def _nobody_writes(self) -> None:
        version, entries, sent = self.world.store.version, self._entries(), len(self.sent)
        for operator in (1, 0):
            self.do("wait", FIGURES_MS)
            self.do("look", operator)
        assert (self.world.store.version, self._entries()) == (version, entries)
        # What is refused is tried again, because what it lacks may have come; it changes nothing.
        assert {call.name for call in self.sent[sent:] if call.refused is None} <= {"budgets", "get", "list"}

    def _is_as_it_must_be(self, holder: str) -> None:
        expected, obj, found = self.of[holder], self.object(holder), self.budget(holder)
        if obj is not None:
            metadata, [ready] = obj["metadata"], obj["status"]["conditions"]
            state, reason = (metadata["uid"], metadata["generation"]), self._refused(obj["spec"])
            assert (ready["status"], ready["reason"]) == (("False", reason) if reason else ("True", "Synced"))
            assert obj["status"]["observedGeneration"] == ready["observedGeneration"] == metadata["generation"]
            assert _shown(obj["status"]) == self.shown(holder)
            if reason:
                assert expected.kept is None or expected.kept[0] == metadata["uid"]
            else:
                assert expected.kept == state
        else:
            assert expected.kept is None
        if found is None:
            return
        kept = None if found.kept_by is None else (found.kept_by.uid, found.kept_by.generation)
        amount = self.policy if expected.amount is None else expected.amount
        assert (kept, found.amount_ms, found.parent) == (expected.kept, amount * MINUTE, expected.parent)
        assert (found.status == "active", found.granted_ms) == (expected.active, expected.granted * MINUTE)
        if isinstance(found, Budget):
            assert found.source == ("policy" if expected.amount is None else "own")

    def _refused(self, spec: Object) -> str:
        """Return why the timekeeper cannot go by a spec, empty if it can."""
        if "timeZone" in spec:
            return "TimeZoneUnknown"
        known = ("", self.team) if self.of[self.team].there else ("",)
        return "" if spec.get("parent", "") in known else "ParentUnknown"

    def _each_status_said_something_else(self) -> None:
        for one in self._statuses():
            assert one.old is not None
            new, old = one.obj["status"], one.old.get("status") or {}
            says, said = ({key: of[key] for key in of if key != "asOf"} for of in (new, old))
            assert says != said
            assert new["observedGeneration"] >= old.get("observedGeneration", 0)
            if all(new.get(key) == old.get(key) for key in ("observedGeneration", "conditions", "state")):
                assert parse_instant(new["asOf"]) - parse_instant(old["asOf"]) >= FIGURES_MS

    def _statuses(self) -> list[Change]:
        mine = (TEAM, self.namespace, ONLY_NAME), (ORGANISATION, "", self.team)
        return [
            one
            for one in self.world.store.since(self.began)
            if (one.resource, one.obj["metadata"].get("namespace", ""), one.obj["metadata"]["name"]) in mine
            and one.old is not None
            and one.obj.get("status") != one.old.get("status")
        ]

    def each_change_was_sent_once(self) -> None:
        """One operator at a time led, so nothing was tried in vain."""
        told = Counter(
            (call.args[2]["uid"], call.args[2]["generation"])
            for call in self.sent
            if call.name == "put_object" and call.refused is None
        )
        deleted = Counter(call.args[2] for call in self.sent if call.name == "delete_object")
        assert all(number == 1 for number in (*told.values(), *deleted.values()))
        for holder in self.of:
            patched = [one for one in self.sent if one.name == "patch" and holder in (one.args[1], one.args[3])]
            assert len(patched) <= self.changes

    def clean(self) -> None:
        """Leave nothing for the next story to look at."""
        for operator in self.operators:
            while operator.looks:
                operator.call("killed before")
        self.world.delete(self.namespace)
        self._delete_team(None)
        self.world.keeper().keep()


def _shown(status: Object) -> Shown:
    if "state" not in status or status["state"] is None:
        return None
    return (
        status["state"],
        parse_duration(status["amount"]),
        parse_duration(status["left"]),
        status.get("boundBy") or "",
    )


@settings(max_examples=10, deadline=None)
@given(steps=st.lists(st.one_of(said, asked, luck, calls, late), min_size=10, max_size=24))
def test_two_operators_bring_about_one_state_with_one_write_for_each_change(shared: ObjectWorld, steps: Steps) -> None:
    story = Story(shared)
    try:
        for what, value in steps:
            story.do(what, value)
        story.end()
    finally:
        story.clean()


@settings(max_examples=6, deadline=None)
@given(steps=st.lists(st.one_of(said, asked, calls), min_size=6, max_size=16))
def test_one_that_leads_sends_each_change_once(shared: ObjectWorld, steps: Steps) -> None:
    story = Story(shared)
    try:
        for what, value in steps:
            if what != "calls" or not story.operators[1 - value[0]].looks:
                story.do(what, value)
        story.end()
        story.each_change_was_sent_once()
    finally:
        story.clean()
