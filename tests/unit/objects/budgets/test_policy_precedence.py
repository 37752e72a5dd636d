# SPDX-License-Identifier: Apache-2.0
"""One precedence for a namespace's budget: GpuBudget, REST, GpuPolicy, the policy file."""

from __future__ import annotations

from contextlib import suppress
from itertools import permutations

from support.budget_objects import ObjectWorld

from slicekeeper.config.policy_objects import GpuPolicy, apply_policies
from slicekeeper.errors import Conflict
from slicekeeper.wire.timekeeper import Budget

MINUTE = 60_000
FILE, POLICY, REST, OBJECT = 150 * MINUTE, 180 * MINUTE, 240 * MINUTE, 300 * MINUTE


def change(world: ObjectWorld, who: str, *, there: bool) -> None:
    """Have one of the three say its amount, or say nothing any more."""
    if who == "policy":
        spec = {"match": ["team"], "budget": {"amount": "180m"}}
        objects = [GpuPolicy("p", "u", "2026-01-01T00:00:00Z", spec)] if there else []
        world.service.policy.apply_over(lambda book: apply_policies(book, objects).book)
        world.service.controller.look()
    elif who == "object":
        if there:
            world.apply({"amount": "5h", "period": "day"})
        else:
            world.delete()
        world.keeper().keep()
    else:
        with suppress(Conflict):  # as long as there is an object
            world.timekeeper.change_budget(Budget, "team", {"amountMs": REST})


def test_of_what_is_there_the_first_holds_in_whatever_order_it_came(world: ObjectWorld) -> None:
    def amount() -> int:
        return world.timekeeper.budget(Budget, "team").amount_ms

    for order in permutations(("policy", "rest", "object")):
        assert amount() == FILE
        rest = False
        for number, who in enumerate(order):
            change(world, who, there=True)
            said = order[: number + 1]
            rest = rest or (who == "rest" and "object" not in said)
            wanted = OBJECT if "object" in said else REST if rest else POLICY if "policy" in said else FILE
            assert amount() == wanted, said
        change(world, "object", there=False)
        assert amount() == POLICY, "as if it had never had one of its own"
        change(world, "policy", there=False)


def test_a_budget_of_its_own_is_left_alone_by_the_policy(world: ObjectWorld) -> None:
    change(world, "rest", there=True)
    change(world, "policy", there=True)
    change(world, "policy", there=False)
    found = world.timekeeper.budget(Budget, "team")
    assert (found.amount_ms, found.source) == (REST, "own")
