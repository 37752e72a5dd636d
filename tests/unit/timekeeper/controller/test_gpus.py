# SPDX-License-Identifier: Apache-2.0
"""Which GPUs a charge is for: those of the node, or a MIG slice of one."""

from __future__ import annotations

from support.controller_stage import GPU, Stage

from slicekeeper import names
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NODES, PODS, Object
from timekeeper.store import workloads


def test_gpus_of_a_node_that_the_watch_has_not_brought_are_asked_for_and_kept(stage: Stage) -> None:
    pod = stage.create(core="10")
    stage.look()
    row = stage.workload(pod["metadata"]["uid"])
    assert (row.shares, row.flags) == ('{"' + GPU.model + '":"1/10"}', "")
    with stage.books.database.reading() as session:
        assert workloads.gpus(session) == {GPU.uuid: GPU}


def test_a_mig_slice_is_charged_for_what_it_is_also_when_it_is_gone(stage: Stage) -> None:
    mig = (inventory.MigSlice("MIG-1", 19968, 3, 7),)
    divided = inventory.Gpu("GPU-m", "A100", 40960, healthy=False, mig=mig)

    def publish(*gpus: inventory.Gpu) -> None:
        def change(node: Object) -> Object:
            node["metadata"]["annotations"] = {names.NODE_GPUS: inventory.encode(list(gpus))}
            return node

        stage.cluster.store.update(NODES, "n", "", change)

    def on_slice(name: str) -> Object:
        pod = stage.create(name, core="10")
        annotations = {names.gpu_annotation("main"): "MIG-1"}

        def change(pod: Object) -> Object:
            pod["metadata"]["annotations"] |= annotations
            return pod

        return stage.cluster.store.update(PODS, pod["metadata"]["name"], "team", change)

    publish(GPU, divided)
    first = on_slice("a")
    stage.look()
    publish(GPU)
    second = on_slice("b")
    stage.look()
    for pod in (first, second):
        row = stage.workload(pod["metadata"]["uid"])
        assert (row.shares, row.flags, row.gpus) == ('{"A100":"1/2"}', "", "MIG-1")
