# SPDX-License-Identifier: Apache-2.0
"""What is counted of arriving pods: the mix of kinds, in which old pods fade."""

import pytest
from support.fleets import share

from scheduler.placement.arrivals import FULL, MOST_KINDS, Arrivals
from scheduler.placement.demand import Demand


def test_a_mix_counts_slices_and_old_pods_fade():
    arrivals = Arrivals()
    arrivals.add(Demand(()))
    for _ in range(FULL):
        arrivals.add(share(30))
    for _ in range(FULL):
        arrivals.add(Demand(share(100).pieces * 4))
    mix = {one.core: one for one in arrivals.mix().kinds}
    assert arrivals.seen == 2 * FULL
    assert mix[100].gpus == 4
    assert mix[100].weight > 0.85
    assert sum(one.weight for one in mix.values()) == pytest.approx(1)


def test_a_mix_knows_what_part_of_the_pods_wants_no_gpu_and_old_ones_fade():
    arrivals = Arrivals()
    for _ in range(3 * FULL // 4):
        arrivals.add(share(30))
    for _ in range(FULL // 4):
        arrivals.add_without_gpus()
    assert arrivals.mix().without_gpus == pytest.approx(1 / 4)
    for _ in range(4 * FULL):
        arrivals.add(share(30))
    assert arrivals.mix().without_gpus < 0.02


def test_whoever_makes_pods_of_ever_new_kinds_does_not_make_learning_slow():
    arrivals = Arrivals()
    for cpu in range(1, 3 * MOST_KINDS):
        arrivals.add(share(20, cpu=cpu))
    arrivals.add(share(70))
    arrivals.add(share(70))
    mix = arrivals.mix().kinds
    assert len(mix) == MOST_KINDS
    assert mix[0].core == 70, "the most frequent one stays"
    assert sum(one.weight for one in mix) == pytest.approx(1)
