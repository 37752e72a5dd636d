# SPDX-License-Identifier: Apache-2.0
"""CPU and memory beside the GPUs: what counts, and sums that repeats, changes and ends of pods leave right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.cpu_memory import Beside, asked_by, entry_of, offered_by


def container(cpu=None, memory=None, **more):
    return {"resources": {"requests": {k: v for k, v in (("cpu", cpu), ("memory", memory)) if v}}, **more}


def pod(*containers, init=(), node="n", phase="Running", **spec):
    return {
        "spec": {"containers": list(containers), "initContainers": list(init), "nodeName": node, **spec},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("asked", "amount"),
    [
        (pod(container("500m", "1Gi"), container("1", "512Mi")), (1500, 1536)),
        (pod(container("1", "1Gi"), init=[container("3", "10Mi")]), (3000, 1024)),
        (pod(container("1"), init=[container("250m", restartPolicy="Always"), container("2")]), (2250, 0)),
        (pod(container("1"), overhead={"cpu": "100m", "memory": "120Mi"}), (1100, 120)),
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
    beside = Beside()
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
    beside = Beside()
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
