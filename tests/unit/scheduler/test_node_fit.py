# SPDX-License-Identifier: Apache-2.0
"""Which nodes kube-scheduler allows a pod, by the node's own fields."""

import pytest

from scheduler.node_fit import admits, read_node

CORDON = "node.kubernetes.io/unschedulable"
BLOCKED = {"taints": [{"key": "team", "value": "a", "effect": "NoExecute"}]}


@pytest.mark.parametrize(
    ("node", "tolerations", "expected"),
    [
        ({"unschedulable": True}, [], False),
        ({"unschedulable": True}, [{"operator": "Exists"}], True),
        ({"unschedulable": True}, [{"key": CORDON, "operator": "Exists", "effect": "NoSchedule"}], True),
        ({"unschedulable": True}, [{"key": CORDON}], True),
        ({"unschedulable": True}, [{"key": CORDON, "operator": "Exists", "effect": "NoExecute"}], False),
        ({"unschedulable": True} | BLOCKED, [{"key": CORDON, "operator": "Exists"}], False),
        (BLOCKED, [], False),
        (BLOCKED, [{"key": "team", "value": "a"}], True),
        (BLOCKED, [{"key": "team", "operator": "Equal", "value": "b"}], False),
        (BLOCKED, [{"key": "team", "operator": "Exists", "effect": "NoSchedule"}], False),
        (BLOCKED, [{"key": "team", "operator": "Lt", "value": "a"}], False),
        ({"taints": [{"key": "n", "effect": "PreferNoSchedule"}]}, [], True),
    ],
)  # fmt: skip
def test_cordons_and_taints_keep_out_who_does_not_tolerate_them(node, tolerations, expected):
    there = read_node({"metadata": {"name": "n"}, "spec": node})
    assert admits(there, {"spec": {"tolerations": tolerations}}) is expected
