# SPDX-License-Identifier: Apache-2.0
"""What part of the GPUs a pod is charged for."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import pytest

from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.inventory import Gpu, MigSlice, by_uuid
from slicekeeper.gpu.pod_request import parse_pod
from slicekeeper.kube.objects import Pod, read
from timekeeper.core.charged_fraction import GPU_UNKNOWN, Metering, Weight, meter
from timekeeper.core.quota_weight import MISSING, Quota, quota_of

RESOURCES = Resources()
A = Gpu(uuid="GPU-a", model="A100", memory_mib=40960)
H = Gpu(uuid="GPU-h", model="H100", memory_mib=81920)
MIG = (MigSlice("MIG-3g", 19968, 3, 7), MigSlice("MIG-1g", 4864, 1, 7))
M = Gpu(uuid="GPU-m", model="A100", memory_mib=40960, healthy=False, mig=MIG)
INVENTORY = {"GPU-a": A, "GPU-h": H, **by_uuid(M)}


def pod(*containers: tuple[str, int, int, str], gpu_class: str = "", devices: int = 0) -> dict[str, Any]:
    """Containers as (name, core, blocks, GPUs)."""
    made = []
    annotations = {names.GPU_CLASS: gpu_class} if gpu_class else {}
    for name, core, blocks, gpus in containers:
        limits = {RESOURCES.core: str(core)} | ({RESOURCES.memory: str(blocks)} if blocks else {})
        made.append({"name": name, "resources": {"limits": limits}})
        if gpus:
            annotations[names.gpu_annotation(name)] = gpus
    if devices:
        made.append({"name": "whole", "resources": {"limits": {"nvidia.com/gpu": devices}}})
    return {"metadata": {"annotations": annotations}, "spec": {"nodeName": "n", "containers": made}}


@dataclass
class Priced:
    found: Metering
    rates: dict[str, Fraction]

    @property
    def rate(self) -> Fraction:
        return sum((share * self.rates.get(model, 1) for model, share in self.found.shares.items()), Fraction(0))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.found, name)


def metered(
    given: dict[str, Any], weight: Weight = "max", rates: dict[str, Fraction] | None = None, **more: Any
) -> Priced:
    arguments = {"background": Fraction(1, 2), **more}
    found = meter(given, parse_pod(read(given, Pod), RESOURCES), inventory=INVENTORY, weight=weight, **arguments)
    return Priced(found, rates or {})


@pytest.mark.parametrize(
    ("weight", "rate"),
    [("max", Fraction(1, 2)), ("mean", Fraction(3, 8)), ("core", Fraction(1, 4))],
)
def test_weights_of_a_fraction(weight: Weight, rate: Fraction) -> None:
    found = metered(pod(("main", 25, 80, "GPU-a")), weight)  # 80 blocks are 20,480 of 40,960 MiB
    assert (found.rate, found.gpus, found.flags) == (rate, ("GPU-a",), ())


def test_two_containers_on_one_gpu_are_summed_there_before_the_larger_is_taken() -> None:
    both = metered(pod(("a", 30, 16, "GPU-a"), ("b", 10, 64, "GPU-a")))
    assert both.rate == Fraction(1, 2)  # compute 40 %, memory 50 %
    apart = metered(pod(("a", 30, 16, "GPU-a"), ("b", 10, 64, "GPU-h")))
    assert apart.rate == Fraction(3, 10) + Fraction(1, 5)


@pytest.mark.parametrize("weight", ["max", "mean", "core"])
def test_whole_gpus_count_one_each(weight: Weight) -> None:
    found = metered(pod(("main", 200, 0, "GPU-a,GPU-h")), weight)
    assert found.rate == 2


@pytest.mark.parametrize("weight", ["max", "mean", "core"])
def test_a_gpu_kept_for_the_pod_alone_counts_whole(weight: Weight) -> None:
    given = pod(("a", 10, 16, "GPU-a"), ("b", 20, 8, "GPU-a"))
    given["metadata"]["annotations"][names.SHARING_MODE] = "exclusive: asked for by the pod"
    assert metered(given, weight).rate == 1


@pytest.mark.parametrize(
    ("weight", "rate"), [("max", Fraction(1, 2)), ("mean", Fraction(13, 28)), ("core", Fraction(3, 7)), ("quota", 1)]
)
def test_a_mig_slice_counts_as_what_it_is_whatever_was_asked_for(weight: Weight, rate: Fraction) -> None:
    quota = Quota(Fraction(10), Fraction(4)) if weight == "quota" else None
    found = metered(pod(("main", 10, 4, "MIG-3g")), weight, quota=quota)
    assert (found.rate, found.gpus, found.flags) == (rate, ("MIG-3g",), ())
    assert found.found.shares.keys() == {"A100"}


def test_each_container_pays_for_its_own_mig_slice() -> None:
    found = metered(pod(("a", 10, 4, "MIG-3g"), ("b", 10, 4, "MIG-1g")), rates={"A100": Fraction(2)})
    assert found.rate == 2 * (Fraction(1, 2) + Fraction(1, 7))
    assert metered(pod(("a", 10, 4, "MIG-1g"), gpu_class="background")).rate == Fraction(1, 14)
    unknown = metered(pod(("a", 10, 4, "MIG-gone")))
    assert (unknown.rate, unknown.flags) == (Fraction(1, 10), (GPU_UNKNOWN,))


def test_rates_by_model_and_for_background() -> None:
    rates = {"H100": Fraction(3, 2)}
    assert metered(pod(("main", 200, 0, "GPU-a,GPU-h")), rates=rates).rate == Fraction(5, 2)
    assert metered(pod(("main", 50, 1, "GPU-h"), gpu_class="background"), rates=rates).rate == Fraction(3, 8)


def test_whole_gpus_of_nvidias_plugin_are_counted() -> None:
    assert metered(pod(devices=3)).rate == 3
    assert metered(pod(devices=2), rates={"H100": Fraction(2)}, device_model="H100").rate == 4
    assert metered(pod(devices=2), "quota", quota=Quota(Fraction(50), Fraction(15))).rate == 2


@pytest.mark.parametrize(
    ("weight", "rate"), [("max", Fraction(1)), ("mean", Fraction(13, 14)), ("core", Fraction(6, 7)), ("quota", 1)]
)
def test_slices_of_nvidias_plugin_count_by_compute_and_memory(weight: Weight, rate: Fraction) -> None:
    given = {"spec": {"containers": [{"name": "c", "resources": {"limits": {"nvidia.com/mig-3g.40gb": 2}}}]}}
    labels = {"nvidia.com/gpu.memory": "81559"}
    quota = Quota(Fraction(50), Fraction(15)) if weight == "quota" else None
    found = metered(given, weight, device_model="H100", device_labels=labels, quota=quota)
    assert (found.rate, found.flags) == (rate, ())
    assert metered(given, weight, quota=quota).flags == (GPU_UNKNOWN,)


def test_replicas_of_nvidias_plugin_count_by_their_number() -> None:
    labels = {"nvidia.com/gpu.replicas": "4"}
    assert metered(pod(devices=3), device_labels=labels).rate == Fraction(3, 4)
    assert metered(pod(("main", 50, 16, "GPU-a"), devices=1), device_labels=labels).rate == Fraction(3, 4)


def test_a_gpu_that_nobody_published_is_charged_by_compute_and_flagged() -> None:
    found = metered(pod(("main", 25, 80, "GPU-lost")))
    assert (found.rate, found.gpus, found.flags) == (Fraction(1, 4), ("GPU-lost",), (GPU_UNKNOWN,))
    unnamed = metered(pod(("main", 25, 80, "")))
    assert (unnamed.rate, unnamed.gpus, unnamed.flags) == (Fraction(1, 4), (), (GPU_UNKNOWN,))


def test_the_originals_rule_is_the_mean_of_the_shares_of_the_quota() -> None:
    quota = Quota(Fraction(50), Fraction(15))
    assert metered(pod(("main", 50, 15, "GPU-a")), "quota", quota=quota).rate == 1
    assert metered(pod(("main", 25, 3, "GPU-a")), "quota", quota=quota).rate == Fraction(7, 20)
    assert metered(pod(("main", 25, 3, "GPU-h")), "quota", quota=quota, rates={"H100": Fraction(2)}).rate == Fraction(
        7, 10
    )


def test_without_a_quota_the_larger_share_is_charged_and_flagged() -> None:
    found = metered(pod(("main", 25, 80, "GPU-a")), "quota")
    assert (found.rate, found.flags) == (Fraction(1, 2), (MISSING,))


def resource_quota(core: str = "", memory: str = "", **spec: Any) -> dict[str, Any]:
    given = {"core": core, "memory": memory}
    hard = {f"requests.tencent.com/vcuda-{name}": amount for name, amount in given.items() if amount}
    return {"spec": {"hard": hard, **spec}}


def test_the_tightest_quota_counts() -> None:
    two = [resource_quota("50"), resource_quota("40", "15")]
    assert quota_of(two, {}, RESOURCES) == Quota(Fraction(40), Fraction(15))
    assert quota_of([resource_quota("50")], {}, RESOURCES) is None
    assert quota_of([resource_quota("0", "x"), {}], {}, RESOURCES) is None


def by_class(operator: str, *values: str) -> dict[str, Any]:
    selector = {"scopeName": "PriorityClass", "operator": operator, "values": list(values)}
    return {"scopeSelector": {"matchExpressions": [selector]}}


def affinity(kind: str, **term: Any) -> dict[str, Any]:
    required = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "x", **term}]}
    return {"spec": {"affinity": {kind: required}}}


CPU = {"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "50m"}}}]}}
CLASSES: dict[str, dict[str, Any]] = {name: {"spec": {"priorityClassName": name}} for name in ("low", "high")}


@pytest.mark.parametrize(
    ("scopes", "selected", "others"),
    [
        (by_class("In", "low"), [CLASSES["low"]], [CLASSES["high"], {}, {"spec": {"priorityClassName": ""}}]),
        (by_class("NotIn", "low"), [CLASSES["high"], {}], [CLASSES["low"]]),
        (by_class("Exists"), [CLASSES["low"]], [{}]),
        (by_class("DoesNotExist"), [{}], [CLASSES["low"]]),
        (by_class("Like", "low"), [], [{}, CLASSES["low"]]),
        ({"scopes": ["PriorityClass"]}, [CLASSES["low"]], [{}]),
        ({"scopes": ["Terminating"]}, [{"spec": {"activeDeadlineSeconds": 60}}], [{}]),
        ({"scopes": ["NotTerminating"]}, [{}], [{"spec": {"activeDeadlineSeconds": 60}}]),
        ({"scopes": ["BestEffort"]}, [{}, {**CPU, "status": {"qosClass": "BestEffort"}}], [CPU]),
        ({"scopes": ["NotBestEffort"]}, [CPU, {"status": {"qosClass": "Burstable"}}], [{}, {"status": {}}]),
        ({"scopes": ["NotBestEffort"]}, [{"spec": {"resources": {"limits": {"memory": "1Gi"}}}}], []),
        ({"scopes": ["NotBestEffort"]}, [{"spec": {"initContainers": CPU["spec"]["containers"]}}], []),
        (
            {"scopes": ["CrossNamespacePodAffinity"]},
            [affinity("podAffinity", namespaces=["b"]), affinity("podAntiAffinity", namespaceSelector={})],
            [{}, affinity("podAffinity"), affinity("podAntiAffinity", namespaces=[])],
        ),
        (
            {"scopes": ["CrossNamespacePodAffinity"]},
            [
                {
                    "spec": {
                        "affinity": {
                            "podAffinity": {
                                "preferredDuringSchedulingIgnoredDuringExecution": [
                                    {"weight": 1, "podAffinityTerm": {"namespaces": ["b"]}}
                                ]
                            }
                        }
                    }
                }
            ],
            [],
        ),
        ({"scopes": ["VolumeAttributesClass"]}, [], [{}, CPU]),
        ({"scopes": ["OfALaterKubernetes"]}, [], [{}]),
        ({"scopes": ["Terminating"], **by_class("In", "low")}, [], [CLASSES["low"]]),
        ({"scopes": [], "scopeSelector": None}, [{}], []),
    ],
)
def test_a_quota_counts_for_the_pods_that_its_scopes_select(
    scopes: dict[str, Any], selected: list[dict[str, Any]], others: list[dict[str, Any]]
) -> None:
    quotas = [resource_quota("6400", "6400"), resource_quota("400", **scopes)]
    for given in selected:
        assert quota_of(quotas, given, RESOURCES) == Quota(Fraction(400), Fraction(6400))
    for given in others:
        assert quota_of(quotas, given, RESOURCES) == Quota(Fraction(6400), Fraction(6400))
