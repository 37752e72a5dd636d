# SPDX-License-Identifier: Apache-2.0
"""Scores for kube-scheduler."""

import numpy as np

from scheduler.placement.ranking import scores


def test_the_best_node_alone_has_ten_points():
    given_ = scores(np.array([True, True, False, True]), np.array([5, 5, 0, 9]), 1)
    assert given_.tolist() == [9, 10, 0, 0]
    assert scores(np.array([False]), np.array([0]), None).tolist() == [0]
