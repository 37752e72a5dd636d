# SPDX-License-Identifier: Apache-2.0
import pytest

from slicekeeper import names
from slicekeeper.gpu import inventory


def test_round_trip() -> None:
    gpus = [
        inventory.Gpu("GPU-1", "A100", 40960, numa_node=0, links={"GPU-2": 4}),
        inventory.Gpu("GPU-2", "A100", 40960),
    ]
    node = {"metadata": {"annotations": {names.NODE_GPUS: inventory.encode(gpus)}}}
    assert inventory.of_node(node) == gpus


def test_node_without_agent_has_none() -> None:
    assert inventory.of_node({"metadata": {}}) == []


@pytest.mark.parametrize("text", ["", "{", "{}", '[{"uuid": "a"}]', '[{"uuid": "a", "model": "m", "memoryMib": 0}]'])
def test_damage_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="slicekeeper.io/gpus"):
        inventory.decode(text)
