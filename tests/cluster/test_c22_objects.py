# SPDX-License-Identifier: Apache-2.0
"""Budgets and policies as objects: installed beside what is there, used by kubectl alone, and taken away again."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import count

import pytest
from cluster.harness.component import added
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Kubectl, Object, Refused, wait_for
from cluster.harness.role_bindings import role_binding, service_account
from cluster.harness.site import Site, gpu_container, pod

from slicekeeper import names
from slicekeeper.errors import Conflict
from slicekeeper.wire.timekeeper import Budget, Parent

SPEC = {"amount": "2h30m", "period": "month"}
HOUR = 3_600_000


@pytest.fixture(scope="module")
def objects(site: Site) -> Iterator[Site]:
    """The cluster with the component, for this file alone."""
    with added(site, objects=True) as ours:
        assert {obj["kind"] for obj in ours} >= {"CustomResourceDefinition", "Deployment", "ValidatingAdmissionPolicy"}
        yield site


def gpu_budget(name: str = "default", **spec: object) -> Object:
    return {
        "apiVersion": "slicekeeper.io/v1alpha1",
        "kind": "GpuBudget",
        "metadata": {"name": name},
        "spec": {**SPEC, **spec},
    }


def cluster_gpu_budget(name: str, **spec: object) -> Object:
    return {
        "apiVersion": "slicekeeper.io/v1alpha1",
        "kind": "ClusterGpuBudget",
        "metadata": {"name": name},
        "spec": {**SPEC, "kind": "team", **spec},
    }


def gpu_policy(name: str, *match: str, **spec: object) -> Object:
    return {
        "apiVersion": "slicekeeper.io/v1alpha1",
        "kind": "GpuPolicy",
        "metadata": {"name": name},
        "spec": {"match": list(match), **spec},
    }


def ready(site: Site, kind: str, name: str, namespace: str = "") -> Object:
    """Wait until the newest spec holds; return the object's status."""

    def look() -> Object | None:
        found = site.kubectl.get(kind, name, namespace)
        status = found.get("status", {})
        [condition] = status.get("conditions") or [{}]
        newest = status.get("observedGeneration") == found["metadata"]["generation"]
        return status if newest and condition.get("status") == "True" else None

    return wait_for(look, f"ready {kind} {name}", 120) or {}


@pytest.mark.parametrize(
    ("obj", "why"),
    [
        (gpu_budget("another"), "its object is named default"),
        (gpu_budget(amount="20"), "spec.amount"),
        (gpu_budget(amount="-1h"), "spec.amount"),
        (gpu_budget(period="decade"), "spec.period"),
        (gpu_budget(period="none", anchor="2026-01-01T00:00:00Z"), "a budget without periods has no anchor"),
        (gpu_budget(anchor="tomorrow"), "spec.anchor"),
        (gpu_budget(surprise=1), "unknown field"),
        (gpu_budget(parent="No"), "spec.parent"),
        (cluster_gpu_budget("physics", kind="club"), "spec.kind"),
        (cluster_gpu_budget("physics", kind="organisation", parent="other"), "an organisation has no parent"),
        (cluster_gpu_budget("physics", parent="physics"), "spec.parent cannot be the object itself"),
        (cluster_gpu_budget("phys.ics"), "up to 63 characters"),
        (gpu_policy("c22"), "spec.match"),
        (gpu_policy("c22", "a", "a"), "Duplicate value"),
        (gpu_policy("c22", "team-*", "Team"), "no namespace can have this name"),
        (gpu_policy("c22", "team.*"), "it is not a pattern"),
        (gpu_policy("c22", "a", mode=False), "spec.mode"),
        (gpu_policy("c22", "a", ceiling=101), "spec.ceiling"),
        (gpu_policy("c22", "a", budget={"amount": "20"}), "spec.budget.amount"),
        (gpu_policy("c22", "a", budget={"period": "none", "anchor": "2026-01-01T00:00:00Z"}), "has no anchor"),
        (gpu_policy("c22", "a", surprise=1), "unknown field"),
    ],
)
def test_the_api_server_refuses_what_is_no_budget_and_no_policy(objects: Site, obj: Object, why: str) -> None:
    where = "default" if obj["kind"] == "GpuBudget" else ""
    with pytest.raises(Refused, match=why):
        objects.kubectl.create(obj, namespace=where, dry_run=True)


def test_a_budget_is_applied_looked_at_edited_and_deleted(objects: Site) -> None:
    kubectl, team = objects.kubectl, objects.namespace()
    kubectl.apply(gpu_budget(), namespace=team)
    status = ready(objects, "gpubudget", "default", team)
    assert (status["state"], status["amount"], status["used"], status["left"]) == ("ok", "2h30m", "0s", "2h30m")
    shown = kubectl("get", "gpubudgets", "-A").splitlines()
    assert shown[0].split() == ["NAMESPACE", "NAME", "STATE", "AMOUNT", "TO-SPEND", "USED", "LEFT", "RUN-OUT"]
    assert [line.split()[:7] for line in shown if line.startswith(team)] == [
        [team, "default", "ok", "2h30m", "2h30m", "0s", "2h30m"]
    ]
    assert max(map(len, shown)) <= 80
    with objects.timekeeper() as timekeeper:
        found = timekeeper.budget(Budget, team)
        assert (found.source, found.amount_ms) == ("own", int(2.5 * HOUR))
        with pytest.raises(Conflict, match="kubectl edit gpubudget default"):
            timekeeper.change_budget(Budget, team, {"amountMs": 1})
        kubectl.patch("gpubudget", "default", {"spec": {"amount": "9h"}}, team)
        assert ready(objects, "gpubudget", "default", team)["amount"] == "9h"
        assert timekeeper.budget(Budget, team).amount_ms == 9 * HOUR
        managed = kubectl.get("gpubudget", "default", team)["metadata"]
        assert "finalizers" not in managed
        theirs = {"kubectl.kubernetes.io/last-applied-configuration"}
        assert set(managed.get("annotations", {})) <= {*theirs, names.CHANGED_BY}
        kubectl("delete", "gpubudget", "default", "-n", team, "--timeout=180s", timeout=190)
        wait_for(lambda: timekeeper.budget(Budget, team).source == "policy", "the policy's budget", 120)


def test_the_operator_that_leads_is_killed_between_changes_and_each_is_taken_once(objects: Site) -> None:
    kubectl, team, other = objects.kubectl, objects.namespace(), objects.namespace()
    objects.rollout("deployment/objects", 2)
    kubectl.apply(gpu_budget(amount="1h"), namespace=team)
    ready(objects, "gpubudget", "default", team)
    leader = kubectl.get("lease", "slicekeeper-objects", NAMESPACE)["spec"]["holderIdentity"]
    for hours in range(2, 8):
        kubectl.apply(gpu_budget(amount=f"{hours}h"), namespace=team)
        if hours == 4:
            kubectl("delete", "pod", leader, "-n", NAMESPACE, "--force", "--grace-period=0")
        with objects.timekeeper() as timekeeper, pytest.raises(Conflict, match="kubectl edit"):
            timekeeper.change_budget(Budget, team, {"amountMs": 1})
    assert ready(objects, "gpubudget", "default", team)["amount"] == "7h"
    written = kubectl.get("gpubudget", "default", team)["metadata"]
    taken = [e["detail"]["generation"] for e in _audit(kubectl, team) if e["action"] == "object"]
    assert taken == sorted(set(taken)), "each generation once, and none after a later one"
    assert taken[-1] == written["generation"]
    # A look at another object has been a look at this one, too.
    kubectl.apply(gpu_budget(), namespace=other)
    ready(objects, "gpubudget", "default", other)
    assert kubectl.get("gpubudget", "default", team)["metadata"]["resourceVersion"] == written["resourceVersion"]


def test_teams_and_who_may_say_what_is_under_them(objects: Site) -> None:
    kubectl, team, name = objects.kubectl, objects.namespace(), "c22-physics"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "lead"}}
    binding = role_binding("lead", "slicekeeper-budget-editor", service_account("lead", team))
    kubectl.apply(account, binding, namespace=team)
    lead = kubectl.acting(f"--as=system:serviceaccount:{team}:lead")
    kubectl.apply(cluster_gpu_budget(name))
    try:
        assert ready(objects, "clustergpubudget", name)["amount"] == "2h30m"
        assert max(map(len, kubectl("get", "clustergpubudgets").splitlines())) <= 80
        # The API server knows a new guard, and a new right, a moment later.
        wait_for(lambda: "the right to update gpubudgets/parents" in _refusal(lead, team, parent=name), "guard")
        lead.apply(gpu_budget(), namespace=team)
        kubectl.patch("gpubudget", "default", {"spec": {"parent": name}}, team)
        ready(objects, "gpubudget", "default", team)
        lead.patch("gpubudget", "default", {"spec": {"amount": "1h"}}, team)
        ready(objects, "gpubudget", "default", team)
        with objects.timekeeper() as timekeeper:
            found = timekeeper.budget(Budget, team)
            assert (found.parent, found.amount_ms) == (name, HOUR)
            assert timekeeper.budget(Parent, name).kind == "team"
        for change, why in (
            ({"spec": {"parent": ""}}, "spec.parent: changing the parent"),
            ({"status": {"state": "ok"}}, "gpubudgets/status"),
        ):
            more = ("--subresource=status",) if "status" in change else ()
            with pytest.raises(Refused, match=why):
                lead.patch("gpubudget", "default", change, team, *more)
        with pytest.raises(Refused, match="cannot"):
            lead.apply(gpu_budget(), namespace="default")
        with pytest.raises(Refused, match="kind cannot be changed"):
            kubectl.patch("clustergpubudget", name, {"spec": {"kind": "organisation"}})
    finally:
        kubectl("delete", "clustergpubudget", name, "--ignore-not-found", "--timeout=180s", timeout=190)


def _refusal(kubectl: Kubectl, team: str, **spec: object) -> str:
    try:
        kubectl.create(gpu_budget(**spec), namespace=team, dry_run=True)
    except Refused as error:
        return str(error)
    return ""


def test_the_audit_log_names_who_wrote_an_object_and_nobody_forges_it(objects: Site) -> None:
    kubectl, team = objects.kubectl, objects.namespace()
    users = [{"kind": "User", "name": name} for name in ("alice", "bob")]
    binding = role_binding("editors", "slicekeeper-budget-editor", *users)
    kubectl.apply(binding, namespace=team)
    alice, bob = kubectl.acting("--as=alice"), kubectl.acting("--as=bob")
    wait_for(lambda: not _refusal(alice, team) and not _refusal(bob, team), "right to edit", 120)
    hours = count(1)

    def writes(user: Kubectl, name: str) -> int:
        """Write the budget as `user` until the webhook has recorded it; return the generation.

        The API server needs a moment to learn of a new webhook, and ignores one that is too slow on a busy machine.
        """

        def write() -> int:
            user.apply(gpu_budget(amount=f"{next(hours)}h"), namespace=team)
            written = kubectl.get("gpubudget", "default", team)["metadata"]
            generation = int(written["generation"])
            return generation if written["annotations"].get(names.CHANGED_BY) == f"{generation} {name}" else 0

        return wait_for(write, f"note of {name}", 120)

    expected = {}
    for user, name in ((alice, "alice"), (bob, "bob")):
        expected[writes(user, name)] = name
        ready(objects, "gpubudget", "default", team)
    another = f"{names.CHANGED_BY}={max(expected)} alice"
    forge = ("annotate", "gpubudget", "default", "-n", team, "--overwrite", another)
    wait_for(lambda: "only the webhook may write it" in _said(bob, *forge, "--dry-run=server"), "guard", 120)
    with pytest.raises(Refused, match="only the webhook may write it"):
        bob(*forge)
    assert kubectl.get("gpubudget", "default", team)["metadata"]["annotations"][names.CHANGED_BY].endswith(" bob")

    told = wait_for(lambda: _audit(kubectl, team), "audit log by way of the API server", 120)
    entries = {e["detail"]["generation"]: e for e in told if e["action"] == "object"}
    assert {generation: entries[generation]["actor"] for generation in expected} == expected
    reporters = {entries[generation]["detail"]["reportedBy"] for generation in expected}
    assert reporters == {f"system:serviceaccount:{NAMESPACE}:objects"}


def _audit(kubectl: Kubectl, team: str) -> list[Object]:
    """Return the audit log of a namespace's budget by way of the API server, empty while that does not lead there."""
    told = _said(kubectl, "get", "--raw", f"/apis/{names.API}/audit?namespace={team}&limit=500")
    return list(json.loads(told)["items"]) if told.startswith("{") else []


def _said(kubectl: Kubectl, *arguments: str) -> str:
    try:
        return kubectl(*arguments)
    except Refused as error:
        return str(error)


def _ceiling(site: Site, team: str) -> str:
    """Return the elastic maximum that the webhook would give to a pod; empty while it does not answer."""
    made = json.dumps(pod("probe", gpu_container(core=5)))
    try:
        shown = site.kubectl("create", "-n", team, "--dry-run=server", "-o", "json", "-f", "-", stdin=made)
    except Refused:
        return ""
    return str(json.loads(shown)["metadata"]["annotations"].get(names.CORE_LIMIT, ""))


def test_a_policy_comes_before_the_file_and_says_what_became_of_it(objects: Site) -> None:
    kubectl, team = objects.kubectl, objects.namespace()
    name = f"c22-{team}"

    def told() -> Object:
        """Return the condition of the newest spec, empty before there is one."""
        found = kubectl.get("gpupolicy", name)
        status = found.get("status", {})
        [condition] = status.get("conditions") or [{}]
        return condition if status.get("observedGeneration") == found["metadata"]["generation"] else {}

    with objects.timekeeper() as timekeeper:

        def amount() -> int:
            return timekeeper.budget(Budget, team).amount_ms

        usual = amount()
        wait_for(lambda: _ceiling(objects, team) == "100", "the file's ceiling", 120)
        kubectl.apply(gpu_policy(name, team, ceiling=50, budget={"amount": "3h"}))
        try:
            assert ready(objects, "gpupolicy", name)["namespaces"] == 1
            wait_for(lambda: _ceiling(objects, team) == "50", "the policy's ceiling", 120)
            wait_for(lambda: amount() == 3 * HOUR, "the policy's budget", 120)
            shown = kubectl("get", "gpupolicies").splitlines()
            assert shown[0].split() == ["NAME", "MODE", "BUDGET", "NAMESPACES", "READY", "AGE"]
            assert max(map(len, shown)) <= 80
            with pytest.raises(Refused, match=r"cannot (get|patch) resource \"gpupolicies\""):
                kubectl.acting("--as=c22-nobody").patch("gpupolicy", name, {"spec": {"ceiling": 100}})
            # What only our own code knows to be wrong: as if it were not there, until it is mended.
            kubectl.patch("gpupolicy", name, {"spec": {"budget": {"timeZone": "Mars/Olympus"}}})
            wait_for(lambda: "Mars/Olympus" in told().get("message", ""), "what is wrong", 120)
            assert (told()["status"], told()["reason"]) == ("False", "SpecInvalid")
            wait_for(lambda: _ceiling(objects, team) == "100", "the file's ceiling again", 120)
            wait_for(lambda: amount() == usual, "the file's budget again", 120)
            kubectl.patch("gpupolicy", name, {"spec": {"budget": {"timeZone": "Europe/Berlin"}}})
            ready(objects, "gpupolicy", name)
            wait_for(lambda: _ceiling(objects, team) == "50", "the policy's ceiling again", 120)
            # Nothing on the object is ours but its status, and who wrote it.
            managed = kubectl.get("gpupolicy", name)["metadata"]
            assert "finalizers" not in managed
            theirs = "kubectl.kubernetes.io/last-applied-configuration"
            assert set(managed.get("annotations", {})) <= {theirs, names.CHANGED_BY}
            timekeeper.grant(
                Budget, team, HOUR, "the ledger follows budgets that it has an account of", f"grant-{team}"
            )
            user, hours = kubectl("auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"), count(4)

            def is_named() -> bool:
                kubectl.patch("gpupolicy", name, {"spec": {"budget": {"amount": f"{next(hours)}h"}}})
                details = [entry["detail"] for entry in _audit(kubectl, team) if entry["actor"] == "policy"]
                return any((one.get("gpuPolicy"), one.get("changedBy")) == (name, user) for one in details)

            wait_for(is_named, "audit log that names who wrote the policy", 120, 2)
        finally:
            kubectl("delete", "gpupolicy", name, "--ignore-not-found", "--timeout=180s", timeout=190)
        wait_for(lambda: _ceiling(objects, team) == "100", "the file's ceiling at last", 120)
        wait_for(lambda: amount() == usual, "the file's budget at last", 120)


def test_a_namespace_with_an_object_is_deleted_like_any_other(objects: Site) -> None:
    team = objects.namespace()
    objects.kubectl.apply(gpu_budget(), namespace=team)
    objects.kubectl("delete", "namespace", team, "--timeout=240s", timeout=250)
