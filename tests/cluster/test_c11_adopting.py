# SPDX-License-Identifier: Apache-2.0
"""A busy cluster takes Slicekeeper up: it observes, one namespace after the other is enforced, old pods are charged."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from fractions import Fraction
from math import floor

import pytest
from cluster.harness import install
from cluster.harness.install import NAMESPACE
from cluster.harness.kubectl import Object, Refused, wait_for
from cluster.harness.site import Site, gpu_container, plain_container, pod

from slicekeeper import names

ENFORCED = "slicekeeper-enforced"
OBSERVE = {
    **install.SUITE,
    "mode": "observe",
    "policy": {"namespaces": [{"match": ENFORCED, "mode": "enforce"}]},
}

DEVICE = "nvidia.com/gpu"


@pytest.fixture
def observed(site: Site) -> Iterator[Site]:
    """The installation with a policy that observes, and one line that enforces."""
    _apply(site, OBSERVE)
    team = site.namespace()
    try:
        wait_for(lambda: _admitted(site, team), "policy that observes", seconds=150, pause=1)
        yield site
    finally:
        _apply(site, install.SUITE)
        wait_for(lambda: not _admitted(site, team), "policy that enforces", seconds=150, pause=1)


def _apply(site: Site, values: install.Values) -> None:
    install.install(site.kubectl, values)
    # kubelet looks at a pod's ConfigMaps when it looks at the pod: once a minute, or when the pod changes.
    site.kubectl("annotate", "pods", "--all", "-n", NAMESPACE, "--overwrite", f"suite/mode={values['mode']}")


def _wrong() -> Object:
    return pod("wrong", gpu_container(core=150))


def _admitted(site: Site, namespace: str) -> bool:
    try:
        return bool(site.kubectl.create(_wrong(), namespace=namespace, dry_run=True))
    except Refused:
        return False


def test_every_namespace_observes_and_one_line_moves_one_to_enforce(observed: Site) -> None:
    site = observed
    team = site.namespace()
    site.kubectl("create", "namespace", ENFORCED)
    site.namespaces.append(ENFORCED)
    account = ("get", "serviceaccount", "default", "-n", ENFORCED, "--ignore-not-found", "-o", "name")
    wait_for(lambda: site.kubectl(*account), "service account")
    for namespace in (team, ENFORCED):
        site.kubectl.create(pod("one", gpu_container(core=5)), namespace=namespace)
    seen, held = (site.wait_phase(namespace, "one", "Running") for namespace in (team, ENFORCED))
    assert names.FINALIZER in seen["metadata"]["finalizers"], "metered"
    assert "priorityClassName" not in seen["spec"], "but nothing of it is changed"
    assert held["spec"]["priorityClassName"] == "gpu-default-priority"
    site.kubectl.create(_wrong(), namespace=team)
    with pytest.raises(Refused, match="vcuda-core"):
        site.kubectl.create(_wrong(), namespace=ENFORCED)
    wait_for(lambda: all(site.workloads(n) for n in (team, ENFORCED)), "both in the ledger")


def test_pods_from_before_are_found_shown_and_charged_from_then_on(site: Site) -> None:
    team = site.namespace()
    [node] = [n["metadata"]["name"] for n in site.kubectl.list("nodes")]

    def devices(count: str | None) -> None:
        there = {"status": {part: {DEVICE: count} for part in ("capacity", "allocatable")}}
        site.kubectl("patch", "node", node, "--subresource=status", "--type=merge", "-p", json.dumps(there))

    devices("2")
    whole = {**plain_container("train"), "resources": {"limits": {DEVICE: "2"}}}
    with site.without_webhook():
        site.kubectl.create(pod("whole", whole), pod("share", gpu_container(core=25)), namespace=team)
        # A manifest that our rules refuse: the pod runs, and its charge cannot be determined.
        site.kubectl.create(pod("odd", gpu_container(core=30, blocks=None)), namespace=team)
        for name in ("whole", "share", "odd"):
            site.wait_phase(team, name, "Running")
    assert site.workloads(team) == {}
    code, told = site.check()
    assert code == 1
    for name in ("whole", "share"):
        assert f"pod {team}/{name} uses GPUs unmetered\n" in told
    assert f"pod {team}/odd uses GPUs unmetered, and cannot be charged" in told

    code, told = site.check("--adopt")
    assert code == 1
    assert f"pod {team}/share is charged from now on" in told
    assert f"pod {team}/whole is charged from now on" in told
    wait_for(lambda: len(site.workloads(team)) == 2, "two in the ledger")
    last = {}
    site.kubectl("delete", "pods", "--all", "-n", team, "--wait=false")

    def gone() -> bool:
        there = site.pods(team)
        last.update({p["metadata"]["name"]: p for p in there})
        return not there

    wait_for(gone, "pods that are let go", pause=0.05)
    booked = {w.pod_name: w for w in site.workloads(team).values()}
    assert {name: w.state for name, w in booked.items()} == {"whole": "closed", "share": "closed"}
    for name, gpus in (("whole", Fraction(2)), ("share", Fraction(25, 100))):
        adopted = _instant(last[name]["metadata"]["annotations"][names.ADOPTED_AT])
        begin, end = (_instant(str(text)) for text in (booked[name].start, booked[name].end))
        assert begin == adopted
        assert booked[name].charged_ms == floor((end - begin) * gpus + Fraction(1, 2))
    wait_for(lambda: site.check() == (0, "nothing is missing, nothing is unmetered\n"), "whole installation", 60, 1)
    devices(None)


def _instant(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)
