# SPDX-License-Identifier: Apache-2.0
"""Users have the rights of the REST interface, and accounts those of the components that are installed."""

from __future__ import annotations

import pytest
import yaml
from support.rbac_server import GRANTED, MANIFESTS, READ, documents

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
    [role] = [
        d for d in every if d["kind"] == "ClusterRole" and d["metadata"] == {"name": everybodys["roleRef"]["name"]}
    ]
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
    base = "".join(file.read_text() for file in (MANIFESTS / "base").glob("*.yaml"))
    assert "CustomResourceDefinition" not in base
    assert "gpubudgets/objects" not in base


@pytest.mark.parametrize("part", ["timekeeper", "nodeagent"])
def test_evictions_and_quotas_come_only_by_components(part: str) -> None:
    base = [yaml.safe_load_all(file.read_text()) for file in (MANIFESTS / "base").glob(f"{part}.yaml")]
    rules = [rule for docs in base for d in docs if d["kind"] == "ClusterRole" for rule in d["rules"]]
    resources = {resource for rule in rules for resource in rule["resources"]}
    assert not {"pods/eviction", "resourcequotas"} & resources
