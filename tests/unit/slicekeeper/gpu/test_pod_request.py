# SPDX-License-Identifier: Apache-2.0
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slicekeeper.config.settings import Resources
from slicekeeper.errors import RequestRefused, Violation
from slicekeeper.gpu.pod_request import parse_admitted, parse_pod
from slicekeeper.gpu.request import GpuRequest, PodRequest
from slicekeeper.kube.objects import Pod, read

R = Resources()


def container(core: object = None, memory: object = None, name: str = "main", **more: Any) -> dict[str, Any]:
    limits = {key: value for key, value in ((R.core, core), (R.memory, memory)) if value is not None}
    return {"name": name, "resources": {"limits": limits}, **more}


def pod(*containers: dict[str, Any], **annotations: str) -> Pod:
    named = {key.replace("__", "/").replace("_", "-"): value for key, value in annotations.items()}
    return read({"metadata": {"annotations": named}, "spec": {"containers": list(containers)}}, Pod)


def refusal(manifest: Pod, **options: Any) -> Violation:
    with pytest.raises(RequestRefused) as caught:
        parse_pod(manifest, R, **options)
    return caught.value.violations[0]


def test_share_of_a_gpu() -> None:
    request = parse_pod(pod(container(50, 15)), R)
    assert request.requests == (GpuRequest("main", 50, 15),)
    assert request.requests[0].memory_mib == 3840
    assert request.requests[0].is_fraction
    assert request.requests[0].gpus == 1


def test_whole_gpus_need_no_memory() -> None:
    request = parse_pod(pod(container(200)), R)
    assert request.requests[0].gpus == 2
    assert not request.has_fraction


def test_pod_without_gpus_asks_for_nothing_whatever_its_annotations() -> None:
    manifest = pod(container(), **{"slicekeeper.io__sharing": "nonsense"})
    assert parse_pod(manifest, R) == PodRequest()


@pytest.mark.parametrize(
    ("manifest", "code", "where"),
    [
        (pod(container(50)), "memory-missing", f"limits[{R.memory}]"),
        (pod(container(None, 5)), "memory-without-core", f"limits[{R.memory}]"),
        (pod(container(150, 5)), "core-not-whole", f"limits[{R.core}]"),
        (pod(container(0, 5)), "quantity-invalid", f"limits[{R.core}]"),
        (pod(container(-1, 5)), "quantity-invalid", f"limits[{R.core}]"),
        (pod(container("0.5", 5)), "quantity-invalid", f"limits[{R.core}]"),
        (pod(container(True, 5)), "quantity-invalid", f"limits[{R.core}]"),
        (pod(container(50, "1e30")), "quantity-invalid", f"limits[{R.memory}]"),
        (pod(container(6500)), "core-too-large", f"limits[{R.core}]"),
        (pod(container(50, 5), **{"tencent.com__vcuda_core_limit": "40"}), "limit-out-of-range", "vcuda-core-limit"),
        (pod(container(50, 5), **{"tencent.com__vcuda_core_limit": "101"}), "limit-out-of-range", "vcuda-core-limit"),
        (pod(container(50, 5), **{"tencent.com__vcuda_core_limit": "x"}), "limit-invalid", "vcuda-core-limit"),
        (pod(container(50, 5), **{"limit.slicekeeper.io__mian": "60"}), "limit-without-share", "io/mian"),
        (pod(container(100), **{"limit.slicekeeper.io__main": "60"}), "limit-without-share", "io/main"),
        (pod(container(50, 5), **{"slicekeeper.io__sharing": "remote"}), "choice-unknown", "sharing"),
        (pod(container(50, 5), **{"slicekeeper.io__gpu_class": "gold"}), "choice-unknown", "gpu-class"),
        (pod(container(50, 5), **{"slicekeeper.io__gpu_affinity": "a b"}), "label-invalid", "gpu-affinity"),
        (pod(container(50, 5), **{"slicekeeper.io__gpu_uuid": ""}), "text-invalid", "gpu-uuid"),
        (pod(container(200), **{"slicekeeper.io__sharing": "shared"}), "shared-whole-gpu", "sharing"),
    ],
)
def test_refusals_name_the_field(manifest: Pod, code: str, where: str) -> None:
    violation = refusal(manifest)
    assert violation.code == code
    assert violation.field.endswith(where) or where in violation.field
    assert violation.rule
    assert violation.example


def test_nearest_container_is_named() -> None:
    violation = refusal(pod(container(50, 5), **{"limit.slicekeeper.io__mian": "60"}))
    assert violation.example == 'limit.slicekeeper.io/main: "100"'


def test_namespace_ceiling_bounds_request_and_limit() -> None:
    assert refusal(pod(container(60, 5)), ceiling=50).code == "core-above-ceiling"
    manifest = pod(container(40, 5), **{"tencent.com__vcuda_core_limit": "60"})
    assert refusal(manifest, ceiling=50).code == "limit-out-of-range"


def test_containers_own_limit_wins_over_the_pods() -> None:
    manifest = pod(
        container(30, 5, "a"),
        container(40, 5, "b"),
        **{"tencent.com__vcuda_core_limit": "80", "limit.slicekeeper.io__b": "50"},
    )
    assert [r.limit for r in parse_pod(manifest, R).requests] == [80, 50]


def test_requests_must_equal_limits() -> None:
    bad = container(50, 5)
    bad["resources"]["requests"] = {R.core: "40"}
    assert refusal(pod(bad)).code == "request-differs"
    bad["resources"]["requests"] = {R.core: "50"}
    assert parse_pod(pod(bad), R).core == 50
    only = {"name": "main", "resources": {"requests": {R.core: 50, R.memory: 5}}}
    assert refusal(pod(only)).code == "limit-missing"


def test_plain_init_container_is_refused_and_a_native_sidecar_is_not() -> None:
    spec = {"containers": [container(50, 5)], "initContainers": [container(20, 5, "prepare")]}
    violation = refusal(read({"spec": spec}, Pod))
    assert (violation.code, violation.container) == ("gpu-in-init-container", "prepare")
    spec["initContainers"][0]["restartPolicy"] = "Always"
    assert [r.container for r in parse_pod(read({"spec": spec}, Pod), R).requests] == ["prepare", "main"]


def test_every_violation_of_every_container_is_told() -> None:
    with pytest.raises(RequestRefused) as caught:
        parse_pod(pod(container(50, None, "a"), container(None, 5, "b"), container(150, 5, "c")), R)
    assert [(v.container, v.code) for v in caught.value.violations] == [
        ("a", "memory-missing"),
        ("b", "memory-without-core"),
        ("c", "core-not-whole"),
    ]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.fixed_dictionaries(
        {
            "metadata": JSON | st.fixed_dictionaries({"annotations": JSON}),
            "spec": JSON
            | st.fixed_dictionaries(
                {
                    "containers": JSON
                    | st.lists(
                        st.fixed_dictionaries(
                            {
                                "name": JSON,
                                "resources": JSON
                                | st.fixed_dictionaries(
                                    {
                                        "limits": JSON
                                        | st.dictionaries(
                                            st.sampled_from([R.core, R.memory, *R.devices, "nvidia.com/mig-1g.10gb"]),
                                            JSON,
                                        )
                                    }
                                ),
                            }
                        ),
                        max_size=3,
                    )
                }
            ),
        }
    )
)
def test_any_input_is_read_or_refused(manifest: dict[str, Any]) -> None:
    violations: tuple[Violation, ...] = ()
    try:
        parse_pod(read(manifest, Pod), R)
    except RequestRefused as refused:
        violations = refused.violations
    assert all(v.code and v.field and v.rule and v.example for v in violations)


@pytest.mark.parametrize(
    "ceiling",
    [
        {"tencent.com__vcuda_core_limit": "10"},
        {"tencent.com__vcuda_core_limit": "x"},
        {"limit.slicekeeper.io__other": "60"},
    ],
)
def test_a_ceiling_that_its_owner_got_wrong_changes_nothing_else_of_an_admitted_pod(ceiling: dict[str, str]) -> None:
    wishes = {"slicekeeper.io__gpu_exclusion": "vision", "slicekeeper.io__gpu_class": "background"}
    good = parse_pod(pod(container(50, 5), **wishes), R)
    assert parse_admitted(pod(container(50, 5), **wishes, **ceiling), R) == (good, "")
    request, refused = parse_admitted(pod(container(50, 5), **{**wishes, **ceiling, "slicekeeper.io__sharing": "x"}), R)
    assert (request.requests, request.exclusion) == (good.requests, "")
    assert "slicekeeper.io/sharing" in refused
