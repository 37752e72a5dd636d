# SPDX-License-Identifier: Apache-2.0
"""GPUs that another device plugin gives out too."""

from __future__ import annotations

import pytest
from support.checked_cluster import NODES, Server, check, problems

from slicekeeper import names
from slicekeeper.gpu import inventory


@pytest.mark.parametrize(
    ("ours", "capacity", "labels", "told"),
    [
        (0, {"nvidia.com/gpu": "4"}, {}, "node n has nvidia.com/gpu of another plugin, so Slicekeeper offers none"),
        (2, {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu.count": "4"}, ""),
        (2, {"nvidia.com/gpu": "3"}, {"nvidia.com/gpu.count": "4"}, "node n has 4 GPUs: Slicekeeper offers 2 of them"),
        (2, {"nvidia.com/gpu": "8"}, {"nvidia.com/gpu.count": "4", "nvidia.com/gpu.replicas": "4"}, ""),
        (
            2,
            {"nvidia.com/gpu": "16"},
            {"nvidia.com/gpu.count": "4", "nvidia.com/gpu.replicas": "4"},
            "nvidia.com/gpu offers 4",
        ),
        (2, {"nvidia.com/gpu": "4"}, {}, ""),
        (0, {"nvidia.com/gpu": "0"}, {}, ""),
    ],
)
def test_gpus_that_another_plugin_gives_out_too_are_named(
    server: Server, ours: int, capacity: dict[str, str], labels: dict[str, str], told: str
) -> None:
    server.install()
    gpus = inventory.encode([inventory.Gpu(f"g{index}", "A100", 81920) for index in range(ours)])
    metadata = {"name": "n", "annotations": {names.NODE_GPUS: gpus}, "labels": labels}
    server.objects[NODES].append({"metadata": metadata, "status": {"capacity": capacity}})
    found = [problem for problem in problems(check(server, "-o", "json")) if problem.startswith("node n")]
    assert len(found) == bool(told)
    assert told in "".join(found)
