# SPDX-License-Identifier: Apache-2.0
"""Objects, requests and the policy changed in any order, by two operators that are killed, late, or both at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from itertools import count

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.budget_objects import TEAM, Killed, ObjectWorld, object_world
from support.databases import Databases

from objects.budgets.resources import ONLY_NAME
from slicekeeper.config.policy import BudgetPolicy, NamespacePolicy
from slicekeeper.errors import Conflict
from slicekeeper.wire.timekeeper import Budget
from timekeeper.ledger.budget import follow_policy

MINUTE = 60_000
NUMBERS = count()
minutes = st.integers(1, 5)
step = st.one_of(
    st.tuples(st.just("apply"), minutes),
    st.tuples(st.just("delete"), st.just(0)),
    st.tuples(st.just("request"), minutes),
    st.tuples(st.just("policy"), minutes),
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("killed before"), st.integers(0, 9)),
    st.tuples(st.just("killed after"), st.integers(0, 9)),
)
late = st.tuples(st.just("late"), st.integers(0, 9))
"""While one operator looks, the object is deleted and made again, and the other one looks."""


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory, databases: Databases) -> Iterator[ObjectWorld]:
    """One world for all examples, each in a namespace of its own."""
    with databases.migrated() as url, object_world(tmp_path_factory.mktemp("objects"), url) as made:
        yield made


class Story:
    """One namespace, and what must come of what is done to it."""

    def __init__(self, world: ObjectWorld) -> None:
        self.world = world
        self.team = world.namespace(f"n{next(NUMBERS)}")
        self.object: int | None = None
        self.request: int | None = None
        """What the last request set that nothing has overruled since."""
        self.policy = 150
        self.changes = 0
        """How often the object changed."""

    def budget(self) -> Budget:
        return self.world.timekeeper.budget(Budget, self.team)

    def do(self, what: str, value: int) -> None:
        self.world.clock.advance(2_000)
        if what == "apply":
            self.changes += self.object != value
            self.object = value
            self.world.apply({"amount": f"{value}m", "period": "day"}, self.team)
        elif what == "delete":
            self.changes += self.object is not None
            self.object = None
            self.world.delete(self.team)
        elif what == "request":
            self._request(value)
        elif what == "policy":
            self.policy = value
            self._follow_policy()
        elif what == "look":
            self.world.keeper().keep()
        elif what == "late":
            self._look_beside(value)
        else:
            self._killed(value, after=what == "killed after")
        if self.budget().kept_by is not None:
            self.request = None

    def _request(self, value: int) -> None:
        body = {"amountMs": value * MINUTE, "period": "day"}
        if self.budget().kept_by is not None:
            with pytest.raises(Conflict, match="kubectl edit gpubudget default"):
                self.world.timekeeper.set_budget(Budget, self.team, body)
            return
        self.world.timekeeper.set_budget(Budget, self.team, body)
        self.request = value

    def _follow_policy(self) -> None:
        policy = NamespacePolicy(budget=BudgetPolicy(amount=f"{self.policy}m", period="day"))
        service = self.world.service
        service.policy.book.exact[self.team] = policy
        follow_policy(service.books, {self.team: policy}, self.world.clock.now_ms())

    def _killed(self, at: int, *, after: bool) -> None:
        def die() -> None:
            raise Killed

        with suppress(Killed):
            self.world.interrupted(at, die, after=after).keep()

    def _look_beside(self, at: int) -> None:
        def change() -> None:
            self.do("delete", 0)
            self.do("apply", at + 1)
            self.do("look", 0)

        self.world.interrupted(at, change, after=True).keep()

    def end(self) -> None:
        """Look once more: whatever happened, this must be enough."""
        self.do("look", 0)
        found = self.budget()
        if self.object is not None:
            expected = self.object
            there = self.world.store.get(TEAM, ONLY_NAME, self.team)["metadata"]
            assert found.kept_by is not None
            assert (found.kept_by.uid, found.kept_by.generation) == (there["uid"], there["generation"])
            assert self.world.status(self.team)["observedGeneration"] == there["generation"]
            assert self.world.status(self.team)["conditions"][0]["status"] == "True"
        else:
            expected = self.policy if self.request is None else self.request
            assert found.kept_by is None
        assert found.amount_ms == expected * MINUTE

    def settle(self) -> None:
        """Leave nothing for the next story to look at."""
        self.do("delete", 0)
        self.do("look", 0)


several = settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])


@several
@given(steps=st.lists(step, max_size=10))
def test_it_ends_in_the_same_state_with_one_write_for_each_change(
    shared: ObjectWorld, steps: list[tuple[str, int]]
) -> None:
    story = Story(shared)
    for what, value in steps:
        story.do(what, value)
    story.end()
    if story.changes:
        assert shared.acts(story.team).count("object") <= story.changes
    story.settle()


@several
@given(steps=st.lists(st.one_of(step, late), max_size=8))
def test_two_that_look_at_once_end_in_the_same_state(shared: ObjectWorld, steps: list[tuple[str, int]]) -> None:
    story = Story(shared)
    for what, value in steps:
        story.do(what, value)
    story.end()
    story.settle()
