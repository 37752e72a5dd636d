# SPDX-License-Identifier: Apache-2.0
"""What part of a GPU a device of NVIDIA's plugin is, by its name and its node's labels."""

from __future__ import annotations

from fractions import Fraction

import pytest

from slicekeeper.config.load import load
from slicekeeper.config.resource_names import any_named, is_named
from slicekeeper.config.settings import Resources, Settings
from slicekeeper.errors import RequestRefused, SettingsError
from slicekeeper.gpu.devices import DevicePart, model_of, part_of
from slicekeeper.gpu.pod_request import parse_pod
from slicekeeper.kube.objects import Pod, read
from slicekeeper.kube.pod_manifest import asks_for

A100 = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB", "nvidia.com/gpu.memory": "81920"}
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "nvidia.com/gpu.memory": "81559"}
HALVED = H100 | {"nvidia.com/mig-1g.10gb.replicas": "2"}
H200 = {"nvidia.com/gpu.product": "NVIDIA-H200", "nvidia.com/gpu.memory": "143771"}
A30 = {"nvidia.com/gpu.product": "NVIDIA-A30", "nvidia.com/gpu.memory": "24576"}
SMALL = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB", "nvidia.com/gpu.memory": "40960"}


@pytest.mark.parametrize(
    ("resource", "labels", "core", "memory"),
    [
        ("nvidia.com/gpu", {}, Fraction(1), Fraction(1)),
        ("nvidia.com/gpu", A100 | {"nvidia.com/gpu.replicas": "1"}, Fraction(1), Fraction(1)),
        ("nvidia.com/gpu", A100 | {"nvidia.com/gpu.replicas": "4"}, Fraction(1, 4), Fraction(1, 4)),
        ("nvidia.com/gpu.shared", {"nvidia.com/gpu.replicas": "10"}, Fraction(1, 10), Fraction(1, 10)),
        ("nvidia.com/mig-1g.10gb", A100, Fraction(1, 7), Fraction(1, 8)),
        ("nvidia.com/mig-1g.10gb", H100, Fraction(1, 7), Fraction(1, 8)),
        ("nvidia.com/mig-1g.10gb.me", H100, Fraction(1, 7), Fraction(1, 8)),
        ("nvidia.com/mig-1g.20gb", H100, Fraction(1, 7), Fraction(1, 4)),
        ("nvidia.com/mig-1g.10gb", SMALL, Fraction(1, 7), Fraction(1, 4)),
        ("nvidia.com/mig-2g.20gb", A100, Fraction(2, 7), Fraction(1, 4)),
        ("nvidia.com/mig-3g.40gb", H100, Fraction(3, 7), Fraction(1, 2)),
        ("nvidia.com/mig-7g.80gb", H100, Fraction(1), Fraction(1)),
        ("nvidia.com/mig-1g.18gb", H200, Fraction(1, 7), Fraction(1, 8)),
        ("nvidia.com/mig-3g.71gb", H200, Fraction(3, 7), Fraction(1, 2)),
        ("nvidia.com/mig-1g.6gb", A30, Fraction(1, 4), Fraction(1, 4)),
        ("nvidia.com/mig-4g.24gb", A30, Fraction(1), Fraction(1)),
        ("nvidia.com/mig-1c.3g.40gb", H100, Fraction(1, 7), Fraction(1, 6)),
        ("nvidia.com/mig-1g.10gb.shared", HALVED, Fraction(1, 14), Fraction(1, 16)),
        ("nvidia.com/mig-1g.10gb", H100 | {"nvidia.com/gpu.replicas": "4"}, Fraction(1, 7), Fraction(1, 8)),
        (
            "nvidia.com/gpu",  # the strategy `single`: the slices have the name of whole GPUs
            {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB-MIG-1g.10gb", "nvidia.com/gpu.memory": "9728"},
            Fraction(1, 7),
            Fraction(1, 8),
        ),
    ],
)
def test_a_devices_part_of_a_gpu(resource: str, labels: dict[str, str], core: Fraction, memory: Fraction) -> None:
    assert part_of(resource, labels) == DevicePart(core, memory)


@pytest.mark.parametrize(
    ("resource", "labels", "core", "memory"),
    [
        ("nvidia.com/gpu.shared", {}, Fraction(1), Fraction(1)),
        ("nvidia.com/gpu", {"nvidia.com/gpu.replicas": "many"}, Fraction(1), Fraction(1)),
        ("nvidia.com/gpu.shared", {"nvidia.com/gpu.replicas": "0"}, Fraction(1), Fraction(1)),
        ("nvidia.com/mig-3g.40gb", {}, Fraction(3, 7), None),
        ("nvidia.com/mig-big", A100, Fraction(1), Fraction(1)),
    ],
)
def test_what_nobody_tells_counts_whole_or_by_compute_and_is_flagged(
    resource: str, labels: dict[str, str], core: Fraction, memory: Fraction | None
) -> None:
    assert part_of(resource, labels) == DevicePart(core, memory, known=False)


def test_a_model_is_one_however_it_is_divided() -> None:
    for suffix in ("", "-SHARED", "-MIG-1g.10gb", "-MIG-1g.10gb-SHARED"):
        assert model_of({"nvidia.com/gpu.product": f"NVIDIA-A100-SXM4-80GB{suffix}"}) == "NVIDIA-A100-SXM4-80GB"


def pod(**limits: int | str) -> dict[str, object]:
    named = {f"nvidia.com/{name}": amount for name, amount in limits.items()}
    return {"spec": {"containers": [{"name": "c", "resources": {"limits": named}}]}}


def test_devices_are_told_by_name_and_counted_together() -> None:
    request = parse_pod(read(pod(**{"gpu": 2, "mig-1g.10gb": "3", "gpu.shared": "0", "other": 1}), Pod), Resources())
    assert request.devices == {"c": {"nvidia.com/gpu": 2, "nvidia.com/mig-1g.10gb": 3}}
    assert request.held_devices == {"nvidia.com/gpu": 2, "nvidia.com/mig-1g.10gb": 3}


def test_half_a_slice_is_refused_by_its_own_name() -> None:
    with pytest.raises(RequestRefused, match=r"limits\[nvidia.com/mig-1g.10gb\]"):
        parse_pod(read(pod(**{"mig-1g.10gb": "500m"}), Pod), Resources())


def test_a_plain_name_is_one_device_and_no_more() -> None:
    settings = load(None, {"SLICEKEEPER_RESOURCES_DEVICE": "nvidia.com/gpu"}).settings
    assert settings.resources.devices == ("nvidia.com/gpu",)
    assert not asks_for(pod(**{"mig-1g.10gb": 1}), settings.resources.devices)
    assert asks_for(pod(**{"mig-1g.10gb": 1}), Settings().resources.devices)
    assert any_named(["cpu", 1, "nvidia.com/mig-1g.10gb"], Settings().resources.devices)
    assert not any_named(["cpu", 1, "nvidia.com/MIG"], Settings().resources.devices)
    assert Resources(device="nvidia.com/gpu").devices == ("nvidia.com/gpu",)


def test_patterns_are_beginnings() -> None:
    assert is_named("nvidia.com/mig-1g.5gb", ("nvidia.com/mig-*",))
    assert not is_named("nvidia.com/gpu.shared", ("nvidia.com/gpu", "nvidia.com/mig-*"))


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("{device: [nvidia.com/gpu, 'nvidia.com/*gpu']}", r"'nvidia.com/\*gpu' is not an extended resource"),
        ("{device: ['*']}", "is not an extended resource"),
        ("{device: gpu}", "'gpu' is not an extended resource"),
        ("{core: 'a.io/*'}", "is not an extended resource"),
        ("{core: nvidia.com/gpu}", "'nvidia.com/gpu' is named twice"),
        ("{seat: nvidia.com/mig-seat}", "'nvidia.com/mig-seat' is named twice"),
        ("{core: a.io/x, memory: a.io/x}", "'a.io/x' is named twice"),
        ("{device: ''}", "'' is not an extended resource"),
    ],
)
def test_names_that_cannot_be_are_refused(tmp_path, text: str, told: str) -> None:  # type: ignore[no-untyped-def]
    file = tmp_path / "config.yaml"
    file.write_text(f"resources: {text}\n")
    with pytest.raises(SettingsError, match=told):
        load(file, {})
