# SPDX-License-Identifier: Apache-2.0
"""A bare pod's file is applied again, by kubectl and by the API server: what admission changed is no difference."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from cluster.harness.kubectl import Object, Refused
from cluster.harness.patience import patience
from cluster.harness.site import Site, gpu_container, plain_container, pod

from slicekeeper import names

CLIENT: tuple[str, ...] = ()
SERVER = ("--server-side",)
FORCED = ("--server-side", "--force-conflicts")
ORDERS = {
    "client-side": (CLIENT, CLIENT),
    "server-side": (SERVER, SERVER, FORCED),
    "client-side, then server-side": (CLIENT, FORCED, SERVER, CLIENT),
    "server-side, then client-side": (SERVER, CLIENT, FORCED, SERVER),
}
"""To Kubernetes a pod's own values belong to whoever created it, also those that admission replaced."""


@pytest.fixture(autouse=True)
def _patient(site: Site) -> Iterator[None]:
    with patience(site):
        yield


def _full() -> Object:
    """Return a pod with a value of the user's own in each field in which the webhook writes."""
    train = gpu_container(core=5)
    train["env"] = [{"name": "LD_PRELOAD", "value": ""}, {"name": "MODE", "value": "fast"}]
    train["env"].append({"name": "NVIDIA_VISIBLE_DEVICES", "value": "none"})
    train["resources"]["limits"] |= {"cpu": "100m", "memory": "64Mi"}
    train["volumeMounts"] = [{"name": "scratch", "mountPath": "/scratch"}]
    before = {**plain_container("before", "true"), "env": [{"name": "MODE", "value": "slow"}]}
    beside = {**plain_container("beside"), "restartPolicy": "Always"}
    made = pod(
        "full", plain_container("other"), train, annotations={names.GPU_CLASS: names.BACKGROUND, "note": "first"},
        schedulerName="default-scheduler", priority=0, preemptionPolicy="PreemptLowerPriority",
        initContainers=[before, beside], volumes=[{"name": "scratch", "emptyDir": {}}],
        tolerations=[{"key": "mine", "operator": "Exists"}],
    )  # fmt: skip
    made["metadata"] |= {"labels": {"app": "full"}, "finalizers": ["example.com/mine"]}
    return made


def _named() -> Object:
    """Return a pod that names one of our classes, and gets the other; it waits, with a gate of its own."""
    made = pod("named", gpu_container(core=5), annotations={names.GPU_CLASS: names.BACKGROUND})
    made["spec"] |= {"priorityClassName": "gpu-default-priority", "schedulingGates": [{"name": "example.com/mine"}]}
    return made


def _of_hami() -> Object:
    container = plain_container("train")
    limits = {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3072", "nvidia.com/gpucores": "30"}
    container["resources"] = {"limits": limits}
    return pod("foreign", container, schedulerName="hami-scheduler")


def _apply(site: Site, made: Object, namespace: str, how: tuple[str, ...]) -> None:
    site.kubectl("apply", *how, "-n", namespace, "-f", "-", stdin=json.dumps(made))


def _lasting(one: Object) -> Any:
    """Return what no second `apply` may change; kubelet's image names and amounts are not in the spec."""
    return {**one["spec"], "nodeName": None}, one["metadata"]["uid"], one["metadata"].get("finalizers")


@pytest.mark.parametrize("order", ORDERS)
def test_a_bare_pods_file_is_applied_again_without_a_difference(site: Site, order: str) -> None:
    team, foreign = site.namespace(), site.namespace("foreign")
    for namespace, made in ((team, _full()), (team, _named()), (foreign, _of_hami())):
        name, first = made["metadata"]["name"], None
        for count, how in enumerate(ORDERS[order]):
            _apply(site, made, namespace, how)  # unchanged, or new
            made["metadata"]["annotations"] |= {"note": str(count)}
            made["metadata"].setdefault("labels", {})["round"] = str(count)
            _apply(site, made, namespace, how)
            now = site.pod(namespace, name)
            first = first or now
            assert _lasting(now) == _lasting(first), how
            assert (now["metadata"]["annotations"]["note"], now["metadata"]["labels"]["round"]) == 2 * (str(count),)
        assert names.FINALIZER in now["metadata"]["finalizers"]
        assert now["spec"]["schedulerName"] == "slicekeeper-scheduler"
    site.kubectl.patch("pod", "full", {"metadata": {"finalizers": [names.FINALIZER]}}, team)


@pytest.mark.parametrize("how", [CLIENT, FORCED])
@pytest.mark.parametrize("change", [{"schedulerName": "another"}, {"priority": 7}])
def test_what_admission_never_wrote_is_still_refused(site: Site, how: tuple[str, ...], change: Object) -> None:
    team = site.namespace()
    made = pod("one", gpu_container(core=5), nodeSelector={"nowhere": "true"})
    _apply(site, made, team, how)
    with pytest.raises(Refused, match="pod updates may not change fields"):
        _apply(site, {**made, "spec": {**made["spec"], **change}}, team, how)
