# SPDX-License-Identifier: Apache-2.0
"""Users have the rights of the REST interface, and accounts those of the components that are installed."""

from __future__ import annotations

import pytest
from support.chart import documents, installed
from support.rbac_server import GRANTED, READ

from slicekeeper import names
from timekeeper.api.routes import PREFIX, ROUTES


def test_everybody_is_let_in_to_every_route_that_the_api_server_offers_and_to_nothing_else() -> None:
    """How the API server classifies a path (k8s.io/apiserver, RequestInfo), and the role that admits all users."""
    verbs = {"GET": {"get", "list"}, "POST": {"create"}, "PUT": {"update"}, "PATCH": {"patch"}, "DELETE": {"delete"}}
    every = list(documents())
    bindings = [d for d in every if d["kind"].endswith("Binding") and "subjects" in d]
    [everybodys] = [d for d in bindings if d["subjects"][0]["kind"] == "Group"]
    assert (everybodys["kind"], len(everybodys["subjects"])) == ("ClusterRoleBinding", 1)
    assert everybodys["subjects"][0]["name"] == "system:authenticated"
    [role] = [d for d in every if (d["kind"], d["metadata"]["name"]) == ("ClusterRole", everybodys["roleRef"]["name"])]
    [rule] = role["rules"]
    group, _, version = names.API.partition("/")
    assert (rule["apiGroups"], set(rule["verbs"])) == ([group], set.union(*verbs.values()))
    paths = [route.path.removeprefix(f"{PREFIX}/").split("/") for route in ROUTES if route.aggregated]
    assert set(rule["resources"]) == {"/".join((path[0], *path[2:3])) for path in paths}
    [service] = [d for d in every if d["kind"] == "APIService"]
    assert service["metadata"]["name"] == names.API_SERVICE == f"{version}.{group}"
    assert (service["spec"]["group"], service["spec"]["version"]) == (group, version)
    assert "insecureSkipTLSVerify" not in service["spec"]


def test_objects_come_only_by_their_component_and_their_rights_are_those_of_the_rest_interface() -> None:
    every = list(documents())
    editor = next(d for d in every if d.get("metadata", {}).get("name") == "slicekeeper-budget-editor")
    [rule] = editor["rules"]
    assert (rule["apiGroups"], rule["resources"]) == ([names.GROUP], ["gpubudgets"])
    operators = {right for right in GRANTED if right.account == "objects" and right.group == names.GROUP}
    assert {r.resource for r in operators if r.verb not in READ} == {
        "gpubudgets/objects",
        "gpubudgets/status",
        "clustergpubudgets/status",
        "gpupolicies/status",
    }
    base = list(installed())
    assert "CustomResourceDefinition" not in {one["kind"] for one in base}
    assert "gpubudgets/objects" not in str(base)


@pytest.mark.parametrize("part", ["timekeeper", "nodeagent"])
def test_evictions_and_quotas_come_only_by_components(part: str) -> None:
    roles = [one for one in installed() if one["kind"] == "ClusterRole" and part in one["metadata"]["name"]]
    rules = [rule for one in roles for rule in one["rules"]]
    resources = {resource for rule in rules for resource in rule["resources"]}
    assert not {"pods/eviction", "resourcequotas"} & resources
