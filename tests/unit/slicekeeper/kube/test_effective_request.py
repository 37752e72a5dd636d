# SPDX-License-Identifier: Apache-2.0
"""What a pod takes of its node: one sum, compared with kubelet's hand-over of devices and with a pod's life."""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cpu_memory import asked_by
from simulator.kubescheduler import request_of
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.devices import part_of
from slicekeeper.gpu.pod_request import parse_pod
from slicekeeper.kube.effective_request import effective_request
from slicekeeper.kube.objects import Pod, read
from timekeeper.core.charged_fraction import meter
from timekeeper.core.pod_need import need_of
from timekeeper.core.rate import RateBook

Wanted = tuple[str, dict[str, int]]
"""A container's kind, and its request by resource."""

DEVICES = ("nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb.shared")
LABELS = {
    "nvidia.com/gpu.product": "NVIDIA-A100-SXM4-80GB",
    "nvidia.com/gpu.replicas": "4",
    "nvidia.com/mig-3g.40gb.replicas": "2",
}

requests = st.dictionaries(st.sampled_from(DEVICES), st.integers(1, 5), max_size=3)
pods = st.tuples(
    st.lists(st.tuples(st.sampled_from(["init", "sidecar"]), requests), max_size=5),
    st.lists(st.tuples(st.just("app"), requests), min_size=1, max_size=3),
).map(lambda parts: [*parts[0], *parts[1]])


def most_at_once(containers: list[Wanted]) -> dict[str, int]:
    """Walk through a pod's life: a native sidecar stays, a plain init container ends before the next one starts."""
    found: dict[str, int] = {}
    staying: list[dict[str, int]] = []
    for kind, asked in containers:
        running = [*staying, asked]
        for name in {name for request in running for name in request}:
            found[name] = max(found.get(name, 0), sum(request.get(name, 0) for request in running))
        if kind != "init":
            staying.append(asked)
    return found


def given_out_by_kubelet(containers: list[Wanted]) -> dict[str, int]:
    """Count the devices of kubelet's device manager: a plain init container's may be used again, a sidecar's not."""
    reusable: dict[str, set[int]] = {}
    taken: dict[str, int] = {}
    for kind, asked in containers:
        for name, count in asked.items():
            again = set(sorted(reusable.get(name, set()))[:count])
            fresh = {taken.get(name, 0) + index for index in range(count - len(again))}
            taken[name] = taken.get(name, 0) + len(fresh)
            kept = reusable.get(name, set())
            reusable[name] = kept | fresh if kind == "init" else kept - again
    return taken


def pod_of(containers: list[Wanted]) -> dict[str, Any]:
    """Return the manifest."""
    spec: dict[str, Any] = {"initContainers": [], "containers": []}
    for index, (kind, asked) in enumerate(containers):
        amounts = {name: str(count) for name, count in asked.items()}
        one = {"name": f"c{index}", "resources": {"limits": amounts, "requests": amounts}}
        if kind == "sidecar":
            one["restartPolicy"] = "Always"
        spec["containers" if kind == "app" else "initContainers"].append(one)
    return {"metadata": {"name": "p", "namespace": "n"}, "spec": spec}


@given(pods)
def test_the_sum_is_what_a_pod_has_at_most_and_what_kubelet_gives_out(containers: list[Wanted]) -> None:
    found = effective_request(containers)
    assert found == most_at_once(containers)
    assert found == given_out_by_kubelet(containers)


@given(pods)
def test_charge_reservation_and_simulated_scheduler_count_the_same(containers: list[Wanted]) -> None:
    pod, held = pod_of(containers), most_at_once(containers)
    request = parse_pod(read(pod, Pod), Resources())
    assert dict(request.held_devices) == held
    assert request_of(pod) == held
    charged = sum((count * part_of(name, LABELS).core for name, count in held.items()), Fraction(0))
    common: dict[str, Any] = {"weight": "core", "background": Fraction(1), "quota": None}
    found = meter(pod, request, inventory={}, device_labels=LABELS, **common)
    assert sum(found.shares.values()) == charged
    if held:
        need = need_of(request, 28_000, gpus=(), book=RateBook([]), now=0, device_nodes=[LABELS], **common)
        assert need is not None
        assert need.amount == charged * 28_000


@given(pods)
def test_cpu_of_a_pod_is_counted_in_the_same_way(containers: list[Wanted]) -> None:
    plain = [(kind, {"cpu": sum(asked.values())}) for kind, asked in containers]
    assert asked_by(pod_of(plain)) == (1000 * most_at_once(plain)["cpu"], 0)


@pytest.mark.parametrize(
    ("containers", "gpus"),
    [
        ([("init", 1), ("app", 1)], 1),
        ([("init", 1), ("init", 1), ("init", 1), ("app", 1)], 1),
        ([("init", 1), ("app", 1), ("app", 1)], 2),
        ([("init", 4), ("app", 1)], 4),
        ([("init", 2), ("app", 0)], 2),
        ([("sidecar", 1), ("init", 1), ("app", 1)], 2),
        ([("init", 1), ("sidecar", 1), ("app", 1)], 2),
        ([("sidecar", 1), ("init", 3), ("sidecar", 2), ("app", 1)], 4),
        ([("init", 3), ("sidecar", 1), ("init", 3), ("app", 1)], 4),
        ([("app", 2), ("ephemeral", 1)], 2),
    ],
)
def test_a_gpu_that_is_passed_on_counts_once(containers: list[tuple[str, int]], gpus: int) -> None:
    assert effective_request((kind, {"nvidia.com/gpu": count}) for kind, count in containers) == {
        "nvidia.com/gpu": gpus
    }
