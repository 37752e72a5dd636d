# SPDX-License-Identifier: Apache-2.0
"""What the scheduler keeps of a pod."""

from scheduler.pods import read_pod
from slicekeeper.config.settings import Resources


def read(uid, devices="", namespace="team"):
    limits = {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "4"}
    whole = {"name": "whole", "resources": {"limits": {"nvidia.com/gpu": devices}}}
    containers = [{"name": "main", "resources": {"limits": limits}}, *([whole] if devices else [])]
    metadata = {"name": uid, "namespace": namespace, "uid": uid, "annotations": {}}
    return read_pod({"metadata": metadata, "spec": {"containers": containers}}, Resources())


def test_pods_that_ask_for_the_same_share_what_is_kept_of_it():
    one, other = read("a"), read("b")
    assert one.request is other.request
    assert one.demand is other.demand
    assert one != other


def test_pods_that_differ_in_devices_or_namespace_alone_share_nothing_wrong():
    counts = [read("a", count).request.held_devices for count in ("1", "2", "1")]
    assert counts == [{"nvidia.com/gpu": n} for n in (1, 2, 1)]
    assert [read("a", namespace=name).namespace for name in ("x", "y", "x")] == ["x", "y", "x"]
