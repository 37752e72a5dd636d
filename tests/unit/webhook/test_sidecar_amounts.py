# SPDX-License-Identifier: Apache-2.0
"""The sidecar's CPU and memory: it fits into what the pod has, and changes neither that nor the QoS class."""

import copy
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.json_patch import apply

from simulator.admission_plugins import check_pod, set_defaults
from simulator.api_errors import Invalid
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Settings
from slicekeeper.kube.pod_amounts import is_best_effort
from webhook.admission import Admission
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


def admitted(manifest: dict[str, Any]) -> dict[str, Any]:
    verdict = ADMISSION.mutate(manifest, CASE)
    assert verdict.allowed, verdict.violations
    return apply(manifest, verdict.patch)


def sidecar(manifest: dict[str, Any]) -> tuple[Any, ...]:
    """Return CPU and memory of the sidecar: requests, then limits."""
    found = admitted(manifest)["spec"]["initContainers"][0]["resources"]
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
    assert is_best_effort(after["spec"]) == is_best_effort(manifest["spec"])
    assert ADMISSION.mutate(after, CASE).patch == []
