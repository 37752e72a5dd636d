# SPDX-License-Identifier: Apache-2.0
"""The sidecar's CPU and memory: it fits into what the pod has, and changes neither that nor the QoS class."""

import copy
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from support.json_patch import apply

from simulator import limit_ranger
from simulator.admission_plugins import check_pod, set_defaults
from simulator.api_errors import Denied, Invalid
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Settings
from slicekeeper.kube.objects import PodSpec, read
from slicekeeper.kube.pod_amounts import is_best_effort
from slicekeeper.units import parse_quantity
from webhook.admission import Admission
from webhook.limit_range_watch import LimitRanges
from webhook.review_inputs import Case

ADMISSION, CASE = Admission(Settings()), Case("research", NamespacePolicy())
SHARE = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "15"}


def pod(
    limits: dict[str, Any] | None = None, requests: dict[str, Any] | None = None, own: Any = None, **spec: Any
) -> dict[str, Any]:
    resources: dict[str, Any] = {"limits": {**SHARE, **(limits or {})}}
    if requests is not None:
        resources["requests"] = {**SHARE, **requests}
    if own is not None:
        spec["resources"] = own
    return {"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a", "resources": resources}], **spec}}


def limited(*entries: dict[str, Any], namespace: str = "research") -> Admission:
    """Return the admission in a cluster with a LimitRange for each entry."""
    limit_ranges = LimitRanges()
    limit_ranges.on_list(
        [
            {"metadata": {"name": name, "namespace": namespace}, "spec": {"limits": [entry]}}
            for name, entry in zip(("usual", "another"), entries, strict=False)
        ]
    )
    return Admission(Settings(), limit_ranges=limit_ranges)


def admitted(manifest: dict[str, Any], admission: Admission = ADMISSION) -> dict[str, Any]:
    verdict = admission.mutate(manifest, CASE)
    assert verdict.allowed, verdict.violations
    return apply(manifest, verdict.patch)


def sidecar(manifest: dict[str, Any], admission: Admission = ADMISSION) -> tuple[Any, ...]:
    """Return CPU and memory of the sidecar: requests, then limits."""
    found = admitted(manifest, admission)["spec"]["initContainers"][0]["resources"]
    return tuple(found[section].get(name) for section in ("requests", "limits") for name in ("cpu", "memory"))


ALL, NONE = ("50m", "48Mi", "50m", "48Mi"), (None, None, None, None)


@pytest.mark.parametrize(
    ("manifest", "amounts"),
    [
        (pod(), NONE),
        (pod({"cpu": 0}), NONE),
        (pod(own={}), NONE),
        (pod({"cpu": 1}), ALL),
        (pod(requests={"memory": "1Gi"}), ALL),
        (pod(initContainers=[{"name": "i", "resources": {"requests": {"cpu": "1m"}}}]), ALL),
        (pod(own={"requests": {"cpu": 0}}), ("0", "48Mi", "50m", "48Mi")),
        # A pod whose own amounts leave room, and pods whose amounts do not.
        (pod(own={"limits": {"cpu": 2, "memory": "1Gi"}}), ALL),
        (pod({"cpu": 2}, own={"requests": {"cpu": 2}}), ("0", "48Mi", "50m", "48Mi")),
        (pod({"cpu": 2}, own={"requests": {"cpu": "2050m"}}), ALL),
        (pod({"cpu": 2}, own={"requests": {"cpu": "2049m"}}), ("0", "48Mi", "50m", "48Mi")),
        (pod({"cpu": 2}, own={"limits": {"cpu": 2}}), ("0", "48Mi", "50m", "48Mi")),
        (pod({"memory": "1Gi"}, own={"limits": {"memory": "1Gi"}}), ("50m", "0", "50m", "48Mi")),
        (pod(requests={"memory": "1Gi"}, own={"requests": {"memory": "1Gi"}}), ("50m", "0", "50m", "48Mi")),
        (pod(own={"limits": {"cpu": "20m", "memory": "1Gi"}}), ("20m", "48Mi", "20m", "48Mi")),
        (pod({"cpu": "20m"}, own={"limits": {"cpu": "20m"}}), ("0", "48Mi", "20m", "48Mi")),
        (pod(own={"limits": {"hugepages-2Mi": "4Mi", "memory": "1Gi"}}), ALL),
        # An init container that needs more than the others together decides what is left.
        (
            pod(own={"requests": {"cpu": 2}}, initContainers=[{"name": "i", "resources": {"requests": {"cpu": 2}}}]),
            ("0", "48Mi", "50m", "48Mi"),
        ),
    ],
)  # fmt: skip
def test_the_sidecar_gets_what_fits(manifest: dict[str, Any], amounts: tuple[Any, ...]) -> None:
    assert sidecar(manifest) == amounts


def test_a_pods_own_amounts_stay_as_they_were_written() -> None:
    own = {"requests": {"cpu": "2"}, "limits": {"cpu": "2", "memory": "1Gi"}}
    once = admitted(pod({"cpu": 2}, own=copy.deepcopy(own)))
    assert once["spec"]["resources"] == own
    assert ADMISSION.mutate(once, CASE).patch == []
    assert ADMISSION.validate(once, CASE).allowed


def test_a_pod_whose_own_amounts_an_older_api_server_dropped_is_still_valid() -> None:
    once = admitted(pod({"cpu": 2}, own={"requests": {"cpu": 2}}))
    del once["spec"]["resources"]
    assert ADMISSION.validate(once, CASE).allowed


AMOUNTS = st.dictionaries(
    st.sampled_from(["cpu", "memory", "hugepages-2Mi"]), st.sampled_from(["0", "10m", "60m", "2", "32Mi", "1Gi"])
)
OWN = st.fixed_dictionaries({}, optional={"requests": AMOUNTS, "limits": AMOUNTS})


@settings(max_examples=200, deadline=None)
@given(AMOUNTS, AMOUNTS, st.one_of(st.none(), OWN), st.lists(OWN, max_size=2), st.booleans())
def test_a_pod_that_kubernetes_accepts_is_accepted_with_the_sidecar(
    limits: Any, requests: Any, own: Any, others: list[Any], native: bool
) -> None:
    manifest = pod(limits, {**limits, **requests}, own)
    more = {"restartPolicy": "Always"} if native else {}
    manifest["spec"]["initContainers"] = [
        {"name": f"i{at}", "resources": resources, **more} for at, resources in enumerate(others)
    ]
    set_defaults(manifest)
    try:
        check_pod(manifest)
    except Invalid:
        return
    after = admitted(manifest)
    set_defaults(after)
    check_pod(after)
    assert is_best_effort(read(after["spec"], PodSpec)) == is_best_effort(read(manifest["spec"], PodSpec))
    assert ADMISSION.mutate(after, CASE).patch == []


def of_container(**entry: Any) -> dict[str, Any]:
    return {"type": "Container", **entry}


def of_pod(**entry: Any) -> dict[str, Any]:
    return {"type": "Pod", **entry}


@pytest.mark.parametrize(
    ("entries", "manifest", "amounts"),
    [
        ([of_container(min={"cpu": "100m", "memory": "64Mi"})], pod({"cpu": 1}), ("100m", "64Mi", "100m", "64Mi")),
        ([of_container(min={"cpu": "10m"})], pod({"cpu": 1}), ALL),
        ([of_container(max={"cpu": "40m", "memory": "32Mi"})], pod({"cpu": "1m"}), ("40m", "32Mi", "40m", "32Mi")),
        ([of_container(min={"cpu": "100m"}), of_container(min={"cpu": "0.2"})], pod({"cpu": 1}),
            ("0.2", "48Mi", "0.2", "48Mi")),
        ([of_container(maxLimitRequestRatio={"cpu": "1", "memory": "2"})], pod({"cpu": 1}), ALL),
        ([of_container(min={"cpu": "100m"})], pod(), NONE),  # the defaults of the LimitRange reach the sidecar as well
        ([of_container(min={"cpu": "100m"})], pod(own={"limits": {"cpu": 2}}), ("100m", "48Mi", "100m", "48Mi")),
        ([of_pod(max={"cpu": 2})], pod({"cpu": 2}), ("0", "48Mi", "0", "48Mi")),
        ([of_pod(max={"cpu": 2})], pod({"cpu": "1950m"}), ALL),
        ([of_pod(max={"cpu": 2})], pod({"cpu": 2}, {"cpu": 1}), ("50m", "48Mi", "0", "48Mi")),
        ([of_pod(max={"memory": "1Gi"})], pod(own={"limits": {"memory": "1Gi"}}), ALL),
        ([of_container(min={"tencent.com/vcuda-core": "0"})], pod({"cpu": 1}), ALL),
    ],
)  # fmt: skip
def test_the_sidecar_fits_into_the_limit_ranges_of_its_namespace(
    entries: list[Any], manifest: dict[str, Any], amounts: tuple[Any, ...]
) -> None:
    assert sidecar(manifest, limited(*entries)) == amounts


def test_limit_ranges_of_other_namespaces_and_deleted_ones_do_not_count() -> None:
    entry = of_container(min={"cpu": "100m"})
    assert sidecar(pod({"cpu": 1}), limited(entry, namespace="other")) == ALL
    limit_ranges = LimitRanges()
    obj = {"metadata": {"name": "a", "namespace": "research"}, "spec": {"limits": [entry]}}
    judge = Admission(Settings(), limit_ranges=limit_ranges)
    for kind, cpu in (("ADDED", "100m"), ("MODIFIED", "100m"), ("DELETED", "50m")):
        limit_ranges.on_event(kind, obj)
        assert sidecar(pod({"cpu": 1}), judge)[0] == cpu


@pytest.mark.parametrize(
    ("entry", "manifest", "said"),
    [
        (of_container(min={"cpu": "100m"}), pod({"cpu": 2}, own={"requests": {"cpu": 2}}), "demands 100m of each"),
        (of_container(maxLimitRequestRatio={"cpu": "2"}), pod({"cpu": 2}, own={"limits": {"cpu": 2}}), "Ratio 2"),
        (of_container(min={"tencent.com/vcuda-core": 5}), pod({"cpu": 1}), "the sidecar holds no GPU"),
        (of_container(min={"tencent.com/vcuda-memory": "1"}), pod(), "with type: Pod"),
    ],
)
def test_a_limit_that_the_sidecar_cannot_satisfy_is_named_with_a_remedy(
    entry: dict[str, Any], manifest: dict[str, Any], said: str
) -> None:
    judge = limited(entry)
    [violation] = judge.mutate(manifest, CASE).violations
    assert violation.code == "limit-range"
    assert said in str(violation)
    assert "LimitRange usual" in str(violation)
    assert "gpu-sidecar" in str(violation)
    template = judge.validate_template({}, manifest, CASE, "spec.template")
    assert [violation.code for violation in template.violations] == ["limit-range"]


def test_a_pod_that_a_limit_range_keeps_from_being_guaranteed_gets_a_warning() -> None:
    judge = limited(of_pod(max={"cpu": 2}))
    full = pod({"cpu": 2, "memory": "1Gi"})
    assert "cannot be Guaranteed" in " ".join(judge.mutate(full, CASE).warnings)
    assert judge.mutate(pod({"cpu": 1, "memory": "1Gi"}), CASE).warnings == []
    assert judge.mutate(admitted(full, judge), CASE).warnings == []


ORDER = ("min", "defaultRequest", "default", "max")
AMOUNT = st.sampled_from(["20m", "100m", "2", "64Mi", "1Gi"])


@st.composite
def limit_range_items(draw: st.DrawFn) -> dict[str, Any]:
    """Return an entry that the API server stores: min, defaultRequest, default and max don't fall in this order."""
    kind = draw(st.sampled_from(["Container", "Pod"]))
    item: dict[str, Any] = {"type": kind}
    for resource in draw(st.sets(st.sampled_from(["cpu", "memory"]))):
        named = [name for name in ORDER if draw(st.booleans()) and (kind == "Container" or name in ("min", "max"))]
        amounts = draw(st.lists(AMOUNT, min_size=len(named), max_size=len(named)))
        for name, amount in zip(named, sorted(amounts, key=parse_quantity), strict=True):
            item.setdefault(name, {})[resource] = amount
    return item


@settings(max_examples=300, deadline=None)
@example({}, {"cpu": "0"}, {"requests": {"cpu": "0"}}, [{"type": "Container", "max": {"cpu": "20m"}}])
@example({}, {}, {"requests": {"cpu": "0"}}, [{"type": "Pod", "max": {"cpu": "20m"}}])
@given(AMOUNTS, AMOUNTS, st.one_of(st.none(), OWN), st.lists(limit_range_items(), min_size=1, max_size=2))
def test_a_pod_within_its_limit_ranges_is_within_them_with_the_sidecar(
    limits: Any, requests: Any, own: Any, entries: list[Any]
) -> None:
    manifest, judge = pod(limits, {**limits, **requests}, own), limited(*entries)
    stored = [{"spec": {"limits": [entry]}} for entry in entries]
    store: Any = SimpleNamespace(collection=lambda _resource, _namespace: (stored, 1))

    def through_the_api_server(made: dict[str, Any]) -> None:
        set_defaults(made)
        limit_ranger.set_defaults(store, made, "research")
        check_pod(made)
        limit_ranger.check(store, made, "research")

    try:
        through_the_api_server(manifest)
    except (Invalid, Denied):
        return
    verdict = judge.mutate(manifest, CASE)
    if verdict.allowed:
        after = apply(manifest, verdict.patch)
        through_the_api_server(after)
        assert judge.mutate(after, CASE).patch == []
    else:
        assert {violation.code for violation in verdict.violations} == {"limit-range"}
