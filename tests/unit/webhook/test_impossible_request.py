# SPDX-License-Identifier: Apache-2.0
"""A request that no GPU of the cluster can satisfy is admitted with a warning that says what there is."""

from __future__ import annotations

from typing import Any

import pytest

from slicekeeper import names
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Settings
from slicekeeper.wire.timekeeper import NO_GPUS, ClusterGpus
from webhook.admission import Admission
from webhook.review_inputs import Case

GPUS = ClusterGpus(memory_mib={"A100-80GB": 81_920, "T4": 15_360}, most_on_node=4)
THERE = "there are A100-80GB with 81920 MiB, T4 with 15360 MiB"


def warnings(core: int, memory: int | None, gpus: ClusterGpus = GPUS, model: str = "", **policy: Any) -> list[str]:
    """Return the warnings of a pod, which must be those of a template of it too."""
    limits = {"tencent.com/vcuda-core": core, **({} if memory is None else {"tencent.com/vcuda-memory": memory})}
    pod = {
        "metadata": {"annotations": {names.GPU_MODEL: model} if model else {}},
        "spec": {"containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]},
    }
    case = Case("team", NamespacePolicy(**policy), gpus=gpus)
    admission = Admission(Settings())
    found = admission.mutate(pod, case)
    assert found.allowed, found
    assert list(admission.validate_template({}, pod, case, "spec.template").warnings) == list(found.warnings)
    return list(found.warnings)


@pytest.mark.parametrize(
    ("core", "memory", "model"),
    [(50, 320, ""), (100, None, ""), (400, 1280, ""), (50, 60, "T4"), (10, 1, "a100"), (10, 1, "H100,T4")],
)
def test_a_request_that_some_gpu_can_satisfy_gets_no_warning(core: int, memory: int | None, model: str) -> None:
    assert warnings(core, memory, model=model) == []


@pytest.mark.parametrize(
    ("core", "memory", "model", "each"),
    [(50, 30_000, "", 7_680_000), (50, 321, "", 82_176), (10, 61, "T4", 15_616), (400, 1284, "", 82_176)],
)
def test_memory_that_no_gpu_has_gets_a_warning(core: int, memory: int, model: str, each: int) -> None:
    [told] = warnings(core, memory, model=model)
    assert told.startswith(
        f"container main asks for {each} MiB of one GPU, which no GPU of the cluster that it may use "
    )
    assert THERE in told


@pytest.mark.parametrize("mode", ["enforce", "observe"])
def test_more_gpus_than_any_node_has_get_a_warning(mode: str) -> None:
    [told] = warnings(800, None, mode=mode)
    assert "asks for 8 whole GPUs, but no node of the cluster has more than 4" in told


def test_a_model_that_no_gpu_is_gets_a_warning() -> None:
    assert warnings(50, 30_000, model="H100, A10") == [
        f"{names.GPU_MODEL} is H100, A10, which no GPU of the cluster is; {THERE}; the pod will wait"
    ]


def test_there_is_no_warning_while_the_gpus_are_not_known() -> None:
    assert warnings(50, 30_000, NO_GPUS, model="H100") == []
