# SPDX-License-Identifier: Apache-2.0
"""Names and labels that the API server would refuse, local mode refuses too, and no others."""

from typing import Any

import pytest

from simulator.api_errors import Invalid
from simulator.cluster import Cluster
from simulator.initial_objects import fill
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Settings
from slicekeeper.kube.client import CONFIG_MAPS, DEPLOYMENTS, JOBS, NAMESPACES, PODS, Object, Resource

SPEC = {"containers": [{"name": "c"}]}


@pytest.fixture
def cluster() -> Cluster:
    made = Cluster(Clock())
    fill(made.store, Settings(), 1, 1, "T4")
    return made


def create(cluster: Cluster, resource: Resource, metadata: Object, **rest: Any) -> Object:
    body = {"metadata": metadata, **({"spec": SPEC} if resource == PODS else {}), **rest}
    return cluster.create(resource, body, "default" if resource.namespaced else "")[0]


@pytest.mark.parametrize(
    ("resource", "metadata", "told"),
    [
        (NAMESPACES, {"name": "Bad_Name"}, 'Namespace "Bad_Name" is invalid: metadata.name: Invalid value: "Bad_Name"'),
        (NAMESPACES, {"name": "team.a"}, "a lowercase RFC 1123 label must consist of"),
        (NAMESPACES, {"name": "a" * 64}, "must be no more than 63 characters"),
        (NAMESPACES, {"name": "-a"}, "must start and end with an alphanumeric character"),
        (PODS, {"name": "Big"}, "a lowercase RFC 1123 subdomain must consist of"),
        (PODS, {"name": "a..b"}, "metadata.name"),
        (PODS, {"name": "a/b"}, "metadata.name"),
        (PODS, {"name": "a" * 254}, "must be no more than 253 characters"),
        (PODS, {"name": 7}, "must be a string"),
        (PODS, {"generateName": "Big-"}, 'metadata.generateName: Invalid value: "Biga"'),
        (CONFIG_MAPS, {"name": "a b"}, "metadata.name"),
        (PODS, {"name": "p", "labels": {"team": "a b"}}, 'metadata.labels: Invalid value: "a b": a valid label must'),
        (PODS, {"name": "p", "labels": {"a/b/c": ""}}, 'metadata.labels: Invalid value: "a/b/c"'),
        (PODS, {"name": "p", "labels": {"": "x"}}, "name part must consist of"),
        (PODS, {"name": "p", "annotations": {"-x": "y"}}, 'metadata.annotations: Invalid value: "-x"'),
    ],
)
def test_a_name_that_the_api_server_refuses_is_refused(
    cluster: Cluster, resource: Resource, metadata: Object, told: str
) -> None:
    with pytest.raises(Invalid) as refused:
        create(cluster, resource, metadata)
    assert told in str(refused.value)


def test_the_labels_of_a_template_are_checked_too(cluster: Cluster) -> None:
    template = {"metadata": {"labels": {"a": "no label"}}, "spec": {**SPEC, "restartPolicy": "Never"}}
    for resource in (JOBS, DEPLOYMENTS):
        with pytest.raises(Invalid, match=r"spec\.template\.metadata\.labels: Invalid value"):
            create(cluster, resource, {"name": "w"}, spec={"template": template})


@pytest.mark.parametrize(
    ("resource", "metadata"),
    [
        (NAMESPACES, {"name": "123-abc"}),
        (NAMESPACES, {"name": "a" * 63}),
        (PODS, {"name": "a.b-c.0"}),
        (PODS, {"name": "a" * 253}),
        (PODS, {"generateName": "p-"}),
        (PODS, {"name": "p", "labels": {"a.b/C_d.e": "", "F": "1.2_3-G"}, "annotations": {"a/b": "any\n text"}}),
    ],
)
def test_a_name_that_the_api_server_accepts_is_accepted(cluster: Cluster, resource: Resource, metadata: Object) -> None:
    assert create(cluster, resource, metadata)["metadata"]["name"]


def test_an_update_cannot_bring_a_label_that_is_refused_at_first(cluster: Cluster) -> None:
    create(cluster, PODS, {"name": "p"})

    def mark(pod: Object) -> Object:
        pod["metadata"]["labels"] = {"a": "not a label"}
        return pod

    with pytest.raises(Invalid, match="a valid label must"):
        cluster.store.update(PODS, "p", "default", mark)
