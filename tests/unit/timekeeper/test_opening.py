# SPDX-License-Identifier: Apache-2.0
"""What is recorded of a pod: here, devices of NVIDIA's own plugin on a node that no watch has delivered yet."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Resources, Settings, TimekeeperSettings
from slicekeeper.errors import NotFound
from slicekeeper.gpu.inventory import Gpu
from timekeeper.cluster.opening import Openings, charged_request
from timekeeper.cluster.watches import ClusterNodes, Namespaces
from timekeeper.core import interval
from timekeeper.core.rate import RateBook
from timekeeper.ledger.books import Books

T0 = 1_767_225_600_000
H100 = {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3-SHARED", "nvidia.com/gpu.memory": "81559"}


class Client:
    """An API server with one node, and the ResourceQuotas of one namespace."""

    quotas: tuple[dict[str, Any], ...] = ()

    def __init__(self, labels: dict[str, str] | None) -> None:
        self.labels = labels
        self.asked = 0

    def get(self, _resource: object, name: str, _namespace: str = "") -> dict[str, Any]:
        self.asked += 1
        if self.labels is None:
            raise NotFound("gone")
        return {"metadata": {"name": name, "labels": self.labels}}

    def list(self, _resource: object, *, namespace: str) -> tuple[list[dict[str, Any]], str]:
        return (list(self.quotas) if namespace == "team" else []), "1"


def pod(**devices: int) -> dict[str, Any]:
    limits = {f"nvidia.com/{name}": str(count) for name, count in devices.items()}
    return {
        "metadata": {"name": "p", "namespace": "team", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"},
        "spec": {"nodeName": "n", "containers": [{"name": "c", "resources": {"limits": limits}}]},
    }


def openings(books: Books, client: Client, settings: Settings = Settings()) -> Openings:  # noqa: B008 - immutable
    namespaces = Namespaces()
    namespaces.on_list([{"metadata": {"name": "team", "uid": "team-uid"}}])
    return Openings(settings, client, books.database, ClusterNodes(), namespaces)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("devices", "labels", "shares", "flags"),
    [
        ({"gpu": 2}, H100, {"NVIDIA-H100-80GB-HBM3": Fraction(2)}, ()),
        ({"gpu": 2}, H100 | {"nvidia.com/gpu.replicas": "8"}, {"NVIDIA-H100-80GB-HBM3": Fraction(1, 4)}, ()),
        ({"gpu.shared": 1}, H100 | {"nvidia.com/gpu.replicas": "8"}, {"NVIDIA-H100-80GB-HBM3": Fraction(1, 8)}, ()),
        ({"mig-1g.10gb": 1, "mig-3g.40gb": 1}, H100, {"NVIDIA-H100-80GB-HBM3": Fraction(1, 7) + Fraction(1, 2)}, ()),
        ({"gpu.shared": 1}, None, {"": Fraction(1)}, ("gpu-unknown",)),
    ],
)
def test_devices_are_charged_by_their_part_of_a_gpu(
    books: Books,
    devices: dict[str, int],
    labels: dict[str, str] | None,
    shares: dict[str, Fraction],
    flags: tuple[str, ...],
) -> None:
    made = openings(books, Client(labels)).opening(pod(**devices), interval.Start(T0, exact=True), NamespacePolicy())
    assert made is not None
    assert (made.shares, made.flags) == (shares, flags)


def test_a_gpu_that_an_init_container_passes_on_is_charged_and_set_aside_once(books: Books) -> None:
    asking = pod(gpu=1)
    [app] = asking["spec"]["containers"]
    asking["spec"]["initContainers"] = [{**app, "name": f"init-{index}"} for index in range(3)]
    found = openings(books, Client(H100))
    made = found.opening(asking, interval.Start(T0, exact=True), NamespacePolicy())
    assert made is not None
    assert made.shares == {"NVIDIA-H100-80GB-HBM3": Fraction(1)}
    need = found.need(asking, NamespacePolicy(), 24_000, RateBook({}), T0)
    assert need is not None
    assert need.amount == 24_000


@pytest.mark.parametrize("nvidia_gpu", ["refused", "ignored"])
def test_devices_are_not_charged_where_the_policy_meters_none(books: Books, nvidia_gpu: Any) -> None:
    policy = NamespacePolicy(nvidia_gpu=nvidia_gpu)
    found = openings(books, Client({}))
    assert found.opening(pod(**{"mig-1g.10gb": 1}), interval.Start(T0, exact=True), policy) is None


def test_a_share_stays_exclusive_where_the_policy_meters_no_devices(books: Books) -> None:
    both = pod(gpu=1)
    limits = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "4"}
    both["spec"]["containers"].append({"name": "share", "resources": {"limits": limits}})
    both["metadata"]["annotations"] = {"slicekeeper.io/sharing": "exclusive"}
    request = charged_request(both, NamespacePolicy(nvidia_gpu="ignored"), Settings())
    assert (request.sharing, request.devices, request.held_devices) == ("exclusive", {}, {})


def test_what_is_no_device_by_the_settings_is_not_charged(books: Books) -> None:
    settings = Settings(resources=Resources(device="nvidia.com/gpu"))
    found = openings(books, Client({}), settings)
    start = interval.Start(T0, exact=True)
    assert found.opening(pod(**{"mig-1g.10gb": 1}), start, NamespacePolicy()) is None
    assert found.opening(pod(gpu=1), start, NamespacePolicy()) is not None


@pytest.mark.parametrize(("priority_class", "parts"), [("gpu-lower-priority", Fraction(3, 4)), ("", Fraction(3, 64))])
def test_a_scoped_quota_weighs_and_sets_aside_only_for_the_pods_that_it_selects(
    books: Books, priority_class: str, parts: Fraction
) -> None:
    def quota(amount: str, **spec: Any) -> dict[str, Any]:
        hard = {f"requests.tencent.com/vcuda-{name}": amount for name in ("core", "memory")}
        return {"spec": {"hard": hard, **spec}}

    selector = {"scopeName": "PriorityClass", "operator": "In", "values": ["gpu-lower-priority"]}
    client = Client({})
    client.quotas = (quota("64"), quota("4", scopeSelector={"matchExpressions": [selector]}))
    asking = pod()
    limits = {f"tencent.com/vcuda-{name}": 3 for name in ("core", "memory")}
    asking["spec"]["containers"][0]["resources"]["limits"] = limits
    asking["spec"]["priorityClassName"] = priority_class
    found = openings(books, client, Settings(timekeeper=TimekeeperSettings(weight="quota")))
    made = found.opening(asking, interval.Start(T0, exact=True), NamespacePolicy())
    assert made is not None
    assert sum(made.shares.values()) == parts
    found._inventory = {"a": Gpu("a", "A100", 40960)}
    need = found.need(asking, NamespacePolicy(), 64, RateBook({}), T0)
    assert need is not None
    assert need.amount == 64 * parts


@pytest.mark.parametrize(("labels", "amount"), [({"nvidia.com/gpu.replicas": "4"}, 2500), ({}, 10_000)])
def test_a_reservation_is_for_the_dearest_node(books: Books, labels: dict[str, str], amount: int) -> None:
    made = openings(books, Client(labels))
    made._nodes.on_event("ADDED", {"metadata": {"name": "n", "labels": labels}})
    need = made.need(pod(gpu=1), NamespacePolicy(), 10_000, RateBook({}), T0)
    assert need is not None
    assert need.amount == amount
