# SPDX-License-Identifier: Apache-2.0
"""What holds of every policy."""

import pytest
from support.fleets import A100, MIX, fleet_of, judge, names_of, row, share

from scheduler.placement.arrivals import Mix
from scheduler.placement.demand import Demand
from scheduler.placement.evaluation import evaluate
from scheduler.placement.learner import FIXED, LEARNING


@pytest.mark.parametrize("name", LEARNING)
def test_a_model_that_came_after_learning_is_priced(name):
    fleet = fleet_of({"a": [80]})
    policy = LEARNING[name](Mix(MIX), fleet.publish())
    fleet.set("new", [row("new-0", 100, A100)])
    assert judge(fleet, share(30), policy)["new"] >= 0


@pytest.mark.parametrize("name", [*FIXED, *LEARNING])
def test_every_policy_takes_every_demand(name):
    fleet = fleet_of({"a": [100, 80, 50], "b": [100, 100, 100], "c": [0]})
    policy = FIXED[name]() if name in FIXED else LEARNING[name](Mix(MIX), fleet.publish())
    for demand in (
        share(30),
        share(100),
        Demand(share(100).pieces * 2),
        Demand((*share(100).pieces, *share(20).pieces)),
    ):
        prices = evaluate(fleet.view(names_of(fleet), demand), demand, policy)
        assert prices.fits.tolist()[1]
        assert not prices.fits.tolist()[2]
        assert 0 <= prices.price[1] < 1 << 50


def test_spread_and_packing_go_opposite_ways():
    fleet = fleet_of({"empty": [100, 100], "used": [100, 60]})
    assert min(judge(fleet, share(30), FIXED["spread"]()).items(), key=lambda item: item[1])[0] == "empty"
    assert min(judge(fleet, share(30), FIXED["packing"]()).items(), key=lambda item: item[1])[0] == "used"
