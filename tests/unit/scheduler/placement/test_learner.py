# SPDX-License-Identifier: Apache-2.0
"""When a policy that looks ahead is learned."""

from support.fleets import A100, T4, fleet_of, share

from scheduler.placement.best_fit import BestFit
from scheduler.placement.expected_fill import ExpectedFill
from scheduler.placement.learner import ENOUGH, Learner


def test_it_is_best_fit_until_enough_pods_have_arrived_and_then_learned_again_as_more_come():
    learner = Learner("expected-fill")
    for _ in range(ENOUGH - 1):
        learner.arrivals.add(share(30))
    assert learner.due([T4]) is None
    assert isinstance(learner.policy, BestFit)
    learner.arrivals.add(share(30))
    mix = learner.due([T4])
    learner.learn(mix, fleet_of({"t4": [100]}).publish())
    assert [round(one.weight, 9) for one in mix.kinds] == [1.0]
    assert isinstance(learner.policy, ExpectedFill)
    learner.arrivals.add(share(30))
    assert learner.due([T4]) is None
    assert learner.due([T4, A100]) is not None
    for _ in range(ENOUGH):
        learner.arrivals.add(share(50))
    assert len(learner.due([T4]).kinds) == 2
