# SPDX-License-Identifier: Apache-2.0
"""Fragmentation gradient descent, by hand."""

import numpy as np
from support.fleets import arrival, fleet_of, judge, share

from scheduler.placement.arrivals import Mix
from scheduler.placement.fgd import FragmentationGradient


def test_fgd_by_hand():
    """One kind of pod wants 50. A pod of 30 on 100 free leaves 70, all useful; on 60 free it leaves 30 of waste."""
    fleet = fleet_of({"a": [100], "b": [60]})
    policy = FragmentationGradient(Mix([arrival(50, 1.0)]), fleet.publish())
    prices = judge(fleet, share(30), policy)
    assert prices["a"] >> 32 == 100 - 50
    assert prices["b"] >> 32 == 100 - int(100 / (1 + np.exp(0.3)))


def test_fgd_counts_pods_without_gpus_which_can_use_nothing_that_is_free():
    fleet = fleet_of({"a": [100], "b": [60]})
    policy = FragmentationGradient(Mix([arrival(50, 1.0)], without_gpus=0.2), fleet.publish())
    prices = judge(fleet, share(30), policy)
    assert prices["a"] >> 32 == 100 - int(100 / (1 + np.exp(-0.2 * 0.3)))
    assert prices["b"] >> 32 == 100 - int(100 / (1 + np.exp(0.8 * 0.3 - 0.2 * 0.3)))


def test_of_equals_fgd_takes_the_node_that_is_left_with_the_least_cores_and_gpus():
    fleet = fleet_of({"few-cores": [100, 0], "more-cores": [100, 0], "more-gpus": [100, 100]})
    for node, cores in (("few-cores", 8.0), ("more-cores", 16.0), ("more-gpus", 8.0)):
        fleet.set_cpu_memory(node, cores, 1e6)
    prices = judge(fleet, share(30, cpu=1000), FragmentationGradient(Mix([arrival(50, 1.0, cpu=1.0)]), fleet.publish()))
    assert len({price >> 32 for price in prices.values()}) == 1
    assert prices["few-cores"] < prices["more-cores"] < prices["more-gpus"]
