# SPDX-License-Identifier: Apache-2.0
"""The nodes that a cluster begins with."""

import pytest

from simulator.initial_objects import node
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.errors import SettingsError
from slicekeeper.gpu import inventory


def test_an_unknown_model_is_refused_with_the_known_ones() -> None:
    with pytest.raises(SettingsError, match="one of T4, L4"):
        node("n", 1, "A1000", Resources())


@pytest.mark.parametrize(
    ("model", "mig", "reason"),
    [
        ("A100", "4g.20gb+4g.20gb", r"'4g\.20gb\+4g\.20gb': one A100 has no room .* 8 compute slices of 7"),
        ("A100", "3g.20gb+3g.20gb+1g.5gb", "7 compute slices of 7 and 9 memory slices of 8"),
        ("H200", "3g.71gb+3g.71gb+1g.18gb", "9 memory slices of 8"),
        ("A100", "3g.40gb", r"'3g\.40gb': the slices of A100 are 1g\.5gb, "),
        ("A100", "3g.20gb+", "'': the slices of A100 are"),
        ("T4", "1g.5gb", "MIG cannot divide a T4; use --model A100, "),
    ],
)
def test_slices_that_a_gpu_cannot_have_are_refused_with_the_reason(model: str, mig: str, reason: str) -> None:
    with pytest.raises(SettingsError, match=reason):
        node("n", 1, model, Resources(), mig)


@pytest.mark.parametrize(
    ("model", "mig"),
    [
        ("A100", "3g.20gb+4g.20gb"),
        ("A100", "+".join(["1g.5gb"] * 7)),
        ("A100-80GB", "1g.20gb+1g.20gb+2g.20gb+1g.20gb"),
        ("H100", "7g.80gb"),
        ("H200", "2g.35gb+2g.35gb+3g.71gb"),
    ],
)
def test_a_node_has_the_slices_that_fit_on_one_gpu(model: str, mig: str) -> None:
    gpu, _ = inventory.decode(node("n", 2, model, Resources(), mig)["metadata"]["annotations"][names.NODE_GPUS])
    assert "+".join(piece.profile for piece in gpu.mig) == mig
    assert sum(piece.memory_mib for piece in gpu.mig) <= gpu.memory_mib
