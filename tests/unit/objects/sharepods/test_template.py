# SPDX-License-Identifier: Apache-2.0
"""The pod of a SharePod: whose it is, what it takes over, and where it goes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.sharepods import SHARE, sharepod

from objects.sharepods.template import DIGEST_ANNOTATION, SHAREPOD_LABEL, template_of
from scheduler.node_fit import admits, read_node
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.pod_request import parse_pod
from slicekeeper.kube.objects import Pod, read

CORE, MEMORY = Resources().core, Resources().memory


def pod_of(obj: dict[str, Any]) -> dict[str, Any]:
    template = template_of(obj, Resources())
    assert template.violations == ()
    return template.pod


def test_its_pod_is_its_own_and_has_its_labels_and_annotations() -> None:
    obj = sharepod(annotations={**SHARE, "team.io/note": "x", "kubectl.kubernetes.io/last-applied-configuration": "{}"})
    obj["metadata"]["labels"] = {"app": "train"}
    metadata = pod_of(obj)["metadata"]
    assert (metadata["name"], metadata["namespace"]) == ("one", "team")
    assert metadata["labels"] == {"app": "train", SHAREPOD_LABEL: "true"}
    assert metadata["annotations"].items() >= {**SHARE, "team.io/note": "x"}.items()
    assert "kubectl.kubernetes.io/last-applied-configuration" not in metadata["annotations"]
    assert metadata["ownerReferences"] == [
        {
            "apiVersion": "kubeshare.nthu/v1",
            "kind": "SharePod",
            "name": "one",
            "uid": "uid-one",
            "controller": True,
            "blockOwnerDeletion": True,
        }
    ]
    assert not {"uid", "resourceVersion", "generation", "finalizers"} & metadata.keys()


def test_the_first_container_has_the_share_and_the_rest_stays_as_it_is() -> None:
    containers = [
        {"name": "cuda", "image": "a", "resources": {"limits": {"cpu": "1"}, "requests": {"cpu": "1"}}},
        {"name": "log", "image": "b"},
    ]
    obj = sharepod(containers=containers, hostname="h")
    made = pod_of(obj)["spec"]
    assert made["containers"][0]["resources"] == {
        "limits": {"cpu": "1", CORE: "50", MEMORY: "4"},
        "requests": {"cpu": "1"},
    }
    assert made["containers"][1] == containers[1]
    assert obj["spec"]["containers"][0]["resources"]["limits"] == {"cpu": "1"}, "the SharePod itself is not changed"
    assert parse_pod(read(pod_of(obj), Pod), Resources()).requests[0].core == 50


def test_who_asks_in_our_terms_already_is_asked_to_choose() -> None:
    containers = [{"name": "cuda", "resources": {"limits": {CORE: 10, MEMORY: 1}}}]
    [violation] = template_of(sharepod(containers=containers), Resources()).violations
    assert violation.field == f"spec.containers[0].resources.limits[{CORE}]"
    plain = sharepod(annotations={}, containers=containers)
    assert pod_of(plain)["spec"]["containers"] == containers


@pytest.mark.parametrize(
    ("affinity", "here", "there"),
    [
        (None, True, False),
        ({}, True, False),
        ({"nodeAffinity": {}}, True, False),
        ([("disk", "ssd")], True, False),
        ([("disk", "hdd")], False, False),
        ([("disk", "hdd"), ("disk", "ssd")], True, False),
        ([None], False, False),
    ],
)
def test_a_node_that_is_named_is_wished_for_and_the_scheduler_decides(affinity: Any, here: bool, there: bool) -> None:
    if isinstance(affinity, list):
        terms = [
            {} if one is None else {"matchExpressions": [{"key": one[0], "operator": "In", "values": [one[1]]}]}
            for one in affinity
        ]
        required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        affinity = {"nodeAffinity": required, "podAffinity": {"kept": True}}
    more = {} if affinity is None else {"affinity": affinity}
    spec = pod_of(sharepod(nodeName="node01", **more))["spec"]
    assert "nodeName" not in spec
    assert bool(spec["affinity"].get("podAffinity")) == (affinity is not None and "podAffinity" in affinity)
    nodes = [read_node({"metadata": {"name": name, "labels": {"disk": "ssd"}}}) for name in ("node01", "node02")]
    assert [admits(node, {"spec": spec}) for node in nodes] == [here, there]


def test_the_hash_is_of_what_the_sharepod_says() -> None:
    def digest(**more: Any) -> str:
        return str(pod_of(sharepod(**more))["metadata"]["annotations"][DIGEST_ANNOTATION])

    applied = {**SHARE, "kubectl.kubernetes.io/last-applied-configuration": "{}"}
    assert digest() == digest(annotations=applied) == template_of(sharepod(), Resources()).digest
    assert len({digest(), digest(hostname="h"), digest(annotations={**SHARE, "kubeshare/gpu_limit": "0.9"})}) == 3
    renamed = Resources(core="gpu.example/percent")
    assert template_of(sharepod(), renamed).digest == digest(), "an upgrade makes no pod out of date"


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
FIELDS = ("containers", "initContainers", "affinity", "nodeName", "restartPolicy", "ephemeralContainers")


@given(
    spec=st.dictionaries(st.sampled_from(FIELDS), anything, max_size=4),
    resources=anything,
    annotations=st.dictionaries(st.sampled_from([*SHARE, "gemini/GPUID", "kubeshare/x"]), st.text(max_size=8)),
)
def test_a_spec_that_makes_no_sense_is_left_for_the_api_server_to_refuse(
    spec: dict[str, Any], resources: Any, annotations: dict[str, str]
) -> None:
    """The operator must outlive whatever a tenant writes into a spec that no schema checks."""
    template_of({**sharepod(annotations=annotations), "spec": spec}, Resources())
    template_of(sharepod(containers=[{"name": "a", "resources": resources}], affinity=resources), Resources())
    required = {"requiredDuringSchedulingIgnoredDuringExecution": resources}
    template_of(sharepod(affinity={"nodeAffinity": required}, nodeName="n"), Resources())


def test_reserved_names_are_handed_on_as_they_are_for_the_webhook_to_judge() -> None:
    obj = sharepod(annotations={**SHARE, names.BUDGET_STATE: names.IN_BUDGET})
    assert pod_of(obj)["metadata"]["annotations"][names.BUDGET_STATE] == names.IN_BUDGET
