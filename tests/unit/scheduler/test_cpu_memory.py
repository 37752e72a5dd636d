# SPDX-License-Identifier: Apache-2.0
"""CPU and memory beside the GPUs: what counts, and sums that repeats, changes and ends of pods leave right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cpu_memory import CpuMemoryUse, asked_by, entry_of, offered_by


def container(cpu=None, memory=None, **more):
    return {"resources": {"requests": {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v}}, **more}


def pod(*containers, init=(), node="n", phase="Running", status=None, **spec):
    return {
        "spec": {"containers": list(containers), "initContainers": list(init), "nodeName": node, **spec},
        "status": {"phase": phase, **(status or {})},
    }


def resized(now, allocated, *, name="c", reason="", where="containerStatuses"):
    """Return the status of a pod whose container has CPU `now`, and is to have what kubelet has allocated."""
    pending = [{"type": "PodResizePending", "status": "True", "reason": reason}] if reason else []
    there = {"name": name, "resources": {"requests": {"cpu": now}}, "allocatedResources": {"cpu": allocated}}
    return {"conditions": pending, where: [there]}


@pytest.mark.parametrize(
    ("asked", "amount"),
    [
        (pod(container("500m", "1Gi"), container("1", "512Mi")), (1500, 1536)),
        (pod(container("1", "1Gi"), init=[container("3", "10Mi")]), (3000, 1024)),
        (pod(container("1"), init=[container("250m", restartPolicy="Always"), container("2")]), (2250, 0)),
        (pod(container("1"), overhead={"cpu": "100m", "memory": "120Mi"}), (1100, 120)),
        (pod(container("1", "1Gi"), init=[container("9")], resources={"requests": {"cpu": "3"}}), (3000, 1024)),
        (pod(container("1"), resources={"requests": {"memory": "2Gi"}}, overhead={"memory": "1Gi"}), (1000, 3072)),
        (pod(container("1"), resources={"limits": {"cpu": "3"}}), (1000, 0)),
        # A resize counts by the largest of what is asked for, allocated and in effect, unless it never can be.
        (pod(container("1", "1Gi", name="c"), status=resized("2", "2")), (2000, 1024)),
        (pod(container("3", name="c"), status=resized("1", "2", reason="Deferred")), (3000, 0)),
        (pod(container("3", name="c"), status=resized("1", "2", reason="Infeasible")), (2000, 0)),
        (pod(container("3", name="b"), status=resized("9", "9")), (3000, 0)),
        (
            pod(
                container("1"),
                init=[container("1", name="c", restartPolicy="Always"), container("1", name="d")],
                status=resized("2", "2", where="initContainerStatuses"),
            ),
            (3000, 0),
        ),
        (pod(init=[container("1", name="c")], status=resized("2", "2", where="initContainerStatuses")), (1000, 0)),
        (
            pod(
                resources={"requests": {"cpu": "1"}},
                status={"resources": {"requests": {"cpu": "2"}}, "allocatedResources": {"cpu": "1"}},
            ),
            (2000, 0),
        ),
        (pod(container("nonsense", True), {}, {"resources": None}), (0, 0)),
        ({"spec": None}, (0, 0)),
    ],
)
def test_a_pod_asks_for_what_kube_scheduler_counts(asked, amount):
    assert asked_by(asked) == amount


def test_pods_count_from_their_binding_until_they_have_ended():
    assert entry_of(pod(container("1"))) == ("n", 1000, 0)
    assert entry_of(pod(container("1"), node="")) is None
    assert entry_of(pod(container("1"), phase="Succeeded")) is None


def test_what_a_node_offers():
    assert offered_by({"status": {"allocatable": {"cpu": "95500m", "memory": "2Gi"}}}) == (95_500, 2048)
    assert offered_by({"status": {"allocatable": {"cpu": "4"}}}) is None
    beside = CpuMemoryUse()
    assert beside.free("n", iter(())) == (float("inf"), float("inf"))
    assert beside.set_node("n", (4000, 1024))
    assert not beside.set_node("n", (4000, 1024))
    list(beside.put("seen", ("n", 1000, 24)))
    assert beside.free("n", iter([("coming", (500, 0)), ("seen", (1000, 24))])) == (2.5, 1000.0)
    list(beside.put("more", ("n", 9000, 0)))
    assert beside.free("n", iter(())) == (0.0, 1000.0)


ENTRIES = st.none() | st.tuples(st.sampled_from("nm"), st.integers(0, 3), st.integers(0, 3))


@given(st.lists(st.tuples(st.sampled_from("abc"), ENTRIES)))
def test_sums_are_those_of_the_pods_as_seen_last_whatever_repeats(events):
    beside = CpuMemoryUse()
    last = {}
    for name in "nm":
        beside.set_node(name, (100_000, 100))
    for uid, entry in [event for event in events for _ in range(2)]:
        list(beside.put(uid, entry))
        last[uid] = entry
    for name in "nm":
        there = [entry for entry in last.values() if entry and entry[0] == name]
        assert beside.free(name, iter(())) == (100 - sum(e[1] for e in there) / 1000, 100.0 - sum(e[2] for e in there))
    assert beside.uids() == {uid for uid, entry in last.items() if entry}
