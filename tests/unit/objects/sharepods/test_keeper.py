# SPDX-License-Identifier: Apache-2.0
"""One SharePod, one pod: made, mirrored, made again; what is refused, taken, orphaned, and not to be made again."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from support.sharepods import SHARE, T0, TEAM, SharePodWorld, spec
from support.waiting import wait_for

from objects.sharepods.keeper import SharePodKeeper
from objects.sharepods.template import DIGEST_ANNOTATION, SHAREPOD_LABEL, SHAREPODS
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.errors import Conflict, Forbidden, Unavailable
from slicekeeper.kube.client import PODS, KubeClient, Object, Resource
from slicekeeper.units import format_seconds

READY = [{"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": "True"}]


def uid(world: SharePodWorld) -> str:
    pod = world.pod()
    assert pod is not None
    return str(pod["metadata"]["uid"])


def pods(world: SharePodWorld) -> list[str]:
    return [pod["metadata"]["name"] for pod in world.store.collection(PODS)[0]]


def test_its_pod_is_made_and_what_becomes_of_it_is_told(world: SharePodWorld) -> None:
    world.apply(SHARE, spec())
    world.look()
    pod = world.pod()
    assert pod is not None
    assert pod["metadata"]["ownerReferences"][0]["uid"] == world.sharepod()["metadata"]["uid"]
    assert world.status()["PodObjectMeta"] == {
        key: pod["metadata"][key] for key in ("name", "namespace", "uid", "creationTimestamp")
    }
    assert world.condition("Ready") == ("False", "PodPending", "its pod is not scheduled yet")
    assert world.condition("UpToDate")[:2] == ("True", "SpecUnchanged")
    world.clock.advance(1_000)
    unplaced = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/3 nodes fit"}
    world.kubelet(conditions=[unplaced])
    world.look()
    assert world.condition("Ready") == ("False", "Unschedulable", "0/3 nodes fit")
    annotations = {names.gpu_annotation("cuda"): "GPU-1", names.BOUND_AT: format_seconds(T0)}
    world.cluster.bind("one", TEAM, {"target": {"name": "node01"}, "metadata": {"annotations": annotations}})
    world.clock.advance(1_000)
    running = [{"name": "cuda", "ready": True, "state": {"running": {}}}]
    world.kubelet(phase="Running", conditions=READY, containerStatuses=running)
    world.look()
    status = world.status()
    assert (status["nodeName"], status["BoundDeviceID"], status["PodStatus"]["phase"]) == ("node01", "GPU-1", "Running")
    assert status["PodStatus"]["containerStatuses"] == running
    assert world.condition("Ready") == ("True", "PodReady", "as its pod says")
    assert status["conditions"][0]["lastTransitionTime"] == format_seconds(T0 + 2_000)


def test_nothing_of_it_moves_by_itself_and_nothing_is_on_the_object_but_the_status(world: SharePodWorld) -> None:
    world.apply(SHARE, spec())
    world.look()
    version = world.store.version
    for _ in range(3):
        world.clock.advance(3_600_000)
        world.look()
    assert world.store.version == version
    assert set(world.sharepod()["metadata"]) == {
        "name",
        "namespace",
        "uid",
        "creationTimestamp",
        "resourceVersion",
        "generation",
        "annotations",
    }


def test_without_a_list_or_the_lease_nothing_is_done(world: SharePodWorld) -> None:
    world.apply(SHARE, spec())
    with pytest.raises(Unavailable, match="listed"):
        SharePodKeeper(world.kube, Resources(), world.clock, lambda: True).keep()
    world.keeper(acts=lambda: False).keep()
    assert (pods(world), world.status()) == ([], {})


@pytest.mark.parametrize("restart", ["Always", "OnFailure", "Never"])
def test_a_pod_that_is_deleted_or_evicted_is_made_again(world: SharePodWorld, restart: str) -> None:
    world.apply(SHARE, spec(restartPolicy=restart))
    world.look()
    first = uid(world)
    world.cluster.bind("one", TEAM, {"target": {"name": "node01"}})
    world.kubelet(phase="Running")
    world.cluster.evict("one", TEAM, {})
    world.clock.advance(5_000)
    world.ended("Failed")  # its program was told to stop
    world.look()
    assert uid(world) == first, "kubelet has not let it go yet"
    assert world.condition("Ended") == ("", "", "")
    world.remove_pod()
    world.look()
    assert uid(world) != first


@pytest.mark.parametrize(
    ("restart", "phase", "again"),
    [
        ("OnFailure", "Succeeded", False), ("Never", "Succeeded", False), ("Never", "Failed", False),
        ("OnFailure", "Failed", True), ("Always", "Failed", True), ("Always", "Succeeded", True),
    ],
)  # fmt: skip
@pytest.mark.parametrize("seen", ["when it ended", "when it was deleted"])
def test_one_that_has_ended_for_good_is_not_made_again(
    world: SharePodWorld, restart: str, phase: str, again: bool, seen: str
) -> None:
    world.apply(SHARE, spec(restartPolicy=restart))
    world.look()
    first = uid(world)
    world.cluster.bind("one", TEAM, {"target": {"name": "node01"}})
    world.store.update(PODS, "one", TEAM, lambda p: {**p, "metadata": {**p["metadata"], "finalizers": ["a/b"]}})
    world.ended(phase)
    if seen == "when it ended":
        world.look()
        assert uid(world) == first, "it is too young"
    world.clock.advance(40_000)
    world.store.delete(PODS, "one", TEAM)
    world.look()
    assert world.condition("Ended")[:2] == (("", "") if again else ("True", phase))
    world.store.update(PODS, "one", TEAM, lambda p: {**p, "metadata": {**p["metadata"], "finalizers": []}})
    for _ in range(2):
        world.look()
    assert bool(pods(world)) == again
    if not again:
        assert world.status()["PodStatus"]["phase"] == phase
        world.apply(SHARE, spec(restartPolicy=restart, hostname="h"))
        world.look()
        assert pods(world) == []


def test_one_that_no_kubelet_took_has_ended_too_and_stays_so(world: SharePodWorld) -> None:
    world.apply(SHARE, spec(restartPolicy="Never"))
    world.look()
    world.kubelet(phase="Failed", reason="OutOfcpu", message="Node didn't have enough")
    world.look()
    assert world.condition("Ready") == ("False", "PodFailed", "Node didn't have enough")
    world.store.delete(PODS, "one", TEAM)
    world.look()
    assert (pods(world), world.condition("Ended")[0]) == ([], "True")


def test_a_pod_that_failed_and_stays_is_replaced_when_it_is_old_enough(world: SharePodWorld) -> None:
    world.apply(SHARE, spec())
    world.look()
    first = uid(world)
    world.kubelet(phase="Failed", reason="Evicted")
    world.clock.advance(29_000)
    world.look()
    assert uid(world) == first
    world.clock.advance(1_000)
    world.look()
    assert pods(world) == []
    world.look()
    assert uid(world) != first


def test_a_deadline_that_has_passed_has_passed(world: SharePodWorld) -> None:
    world.apply(SHARE, spec(activeDeadlineSeconds=10))
    world.look()
    world.kubelet(phase="Failed", reason="DeadlineExceeded")
    world.clock.advance(60_000)
    world.look()
    assert (pods(world), world.condition("Ended")[:2]) == (["one"], ("True", "Failed"))


@pytest.mark.parametrize(
    ("annotations", "pod"),
    [({**SHARE, "kubeshare/gpu_limit": "0.8"}, spec()), (SHARE, spec(hostname="h"))],
    ids=["annotations", "spec"],
)
def test_a_change_is_for_the_next_pod_and_the_status_says_so(
    world: SharePodWorld, annotations: dict[str, str], pod: Object
) -> None:
    world.apply(SHARE, spec())
    world.look()
    first = uid(world)
    world.apply(annotations, pod)
    world.look()
    assert uid(world) == first
    status, reason, message = world.condition("UpToDate")
    assert (status, reason) == ("False", "SpecChanged")
    assert "delete the pod" in message
    world.remove_pod()
    world.look()
    assert world.condition("UpToDate")[0] == "True"
    made = world.pod()
    assert made is not None
    assert made["spec"].get("hostname") == pod.get("hostname")


def test_a_mistake_is_told_and_makes_no_pod_nor_takes_one_away(world: SharePodWorld) -> None:
    wrong = {**SHARE, "kubeshare/gpu_request": "1.5"}
    world.apply(wrong, spec())
    world.look()
    status, reason, message = world.condition("Ready")
    assert (pods(world), status, reason) == ([], "False", "SpecInvalid")
    assert message.startswith(
        "container 'cuda': metadata.annotations[kubeshare/gpu_request] is \"1.5\": it must be a part of one GPU, "
        'from 0 to 1.0; for example kubeshare/gpu_request: "0.5"'
    )
    world.apply(SHARE, spec())
    world.look()
    assert pods(world) == ["one"]
    assert world.condition("Ready")[1] == "PodPending"
    world.apply(wrong, spec())
    world.look()
    assert pods(world) == ["one"]
    assert world.condition("UpToDate")[:2] == ("False", "SpecInvalid")


def test_what_was_rounded_is_told(world: SharePodWorld) -> None:
    world.apply({**SHARE, "kubeshare/gpu_mem": "3145728000"}, spec())
    world.look()
    assert "3000 MiB are rounded up to 12 blocks" in world.condition("UpToDate")[2]


class _Refusing:
    """An API server that refuses what is wanted of it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        self.error: Exception | None = error
        self.tries = 0
        create = KubeClient.create

        def refused(client: KubeClient, resource: Resource, body: Object, namespace: str = "", **more: Any) -> Object:
            self.tries += 1
            if self.error is not None and body["metadata"]["name"] == "one":
                raise self.error
            return create(client, resource, body, namespace, **more)

        monkeypatch.setattr(KubeClient, "create", refused)


@pytest.mark.parametrize(
    "error",
    [Forbidden("POST /api: exceeded quota", 403), Unavailable("POST /api: exceeded quota", 500)],
    ids=["quota", "a webhook that is away"],
)
def test_a_pod_that_is_refused_is_tried_again_ever_more_seldom_and_holds_up_nobody(
    world: SharePodWorld, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    server = _Refusing(monkeypatch, error)
    world.apply(SHARE, spec())
    world.apply(SHARE, spec(), "two")
    keeper = world.keeper()
    keeper.keep()
    assert pods(world) == ["two"]
    assert world.condition("Ready") == ("False", "PodRefused", "exceeded quota")
    made = server.tries
    for _ in range(600):
        world.clock.advance(1_000)
        keeper.keep()
    assert server.tries - made - 600 <= 11  # "two" is not in the keeper's list of pods, and is tried at each look
    server.error = None
    world.clock.advance(80_000)
    world.clock.ms -= 3_600_000  # the node's clock was ahead, and was set right
    keeper.keep()
    assert sorted(pods(world)) == ["one", "two"]


def test_another_spec_is_tried_at_once(world: SharePodWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    server = _Refusing(monkeypatch, Forbidden("POST /api: no", 403))
    world.apply(SHARE, spec())
    keeper = world.keeper()
    keeper.keep()
    server.error = None
    keeper.keep()
    assert pods(world) == []
    world.apply(SHARE, spec(hostname="h"))
    keeper._watches[0]._list()
    keeper.keep()
    assert pods(world) == ["one"]


def test_no_answer_ends_the_look(world: SharePodWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    server = _Refusing(monkeypatch, Unavailable("no answer", 0))
    world.apply(SHARE, spec())
    world.apply(SHARE, spec(), "two")
    keeper = world.keeper()
    with pytest.raises(Unavailable):
        keeper.keep()
    assert (server.tries, pods(world), world.status()) == (1, [], {})


def test_a_pod_of_somebody_elses_is_left_alone(world: SharePodWorld) -> None:
    world.make_pod()
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
    world.make_pod("two", ownerReferences=[owner], labels={SHAREPOD_LABEL: "true"})
    before = [world.pod(name) for name in ("one", "two")]
    for name in ("one", "two"):
        world.apply(SHARE, spec(), name)
    world.look()
    assert [world.pod(name) for name in ("one", "two")] == before
    assert world.condition("Ready")[1] == "PodNameTaken"
    assert "is not a SharePod's: delete it" in world.condition("Ready")[2]
    assert "ReplicaSet r's" in world.condition("Ready", "two")[2]
    world.remove_pod()
    world.remove_pod("two")
    world.look()
    assert world.condition("Ready")[1] == "PodPending"


def test_the_pod_of_a_former_sharepod_goes_first(world: SharePodWorld) -> None:
    world.apply(SHARE, spec())
    world.look()
    first = uid(world)
    world.delete()
    world.apply(SHARE, spec())
    keeper = world.keeper()
    keeper.keep()
    assert (uid(world), world.condition("Ready")[1]) == (first, "PodNameTaken")
    world.collect_garbage()
    keeper._watches[1]._list()
    keeper.keep()
    assert uid(world) != first


def test_an_orphan_is_adopted_as_a_replica_set_does(world: SharePodWorld) -> None:
    world.apply(SHARE, spec())
    world.look()
    first = uid(world)
    world.delete()  # with --cascade=orphan
    world.store.update(PODS, "one", TEAM, lambda p: {**p, "metadata": {**p["metadata"], "ownerReferences": []}})
    world.apply(SHARE, spec())
    world.look()
    assert uid(world) == first
    pod = world.pod()
    assert pod is not None
    assert pod["metadata"]["ownerReferences"][0]["uid"] == world.sharepod()["metadata"]["uid"]
    assert world.condition("UpToDate")[0] == "True"


def test_a_label_that_was_taken_away_makes_no_second_pod(world: SharePodWorld) -> None:
    world.apply(SHARE, spec())
    world.look()
    first = uid(world)
    world.store.update(PODS, "one", TEAM, lambda p: {**p, "metadata": {**p["metadata"], "labels": {}}})
    world.look()
    assert uid(world) == first
    assert world.condition("Ready")[1] == "PodPending"
    world.apply({**SHARE, "kubeshare/gpu_request": "1.5"}, spec())
    world.look()
    assert world.condition("Ready")[1] == "PodPending"
    assert world.condition("UpToDate")[1] == "SpecInvalid"


def test_a_sharepod_that_is_going_makes_no_pod(world: SharePodWorld) -> None:
    world.apply(SHARE, spec())
    metadata = {"deletionTimestamp": format_seconds(T0), "finalizers": ["foregroundDeletion"]}
    with world.store.changed:
        world.store._objects[SHAREPODS, TEAM, "one"]["metadata"].update(metadata)
    world.look()
    assert pods(world) == []


def test_what_the_watches_brought_long_ago_makes_no_pod(world: SharePodWorld) -> None:
    world.apply(SHARE, spec(restartPolicy="Never"))
    late = world.keeper()
    world.look()
    world.ended("Succeeded")
    world.look()
    world.remove_pod()
    late.keep()
    assert pods(world) == [], "its pod has ended meanwhile"
    world.delete()
    late.keep()
    assert pods(world) == [], "it is gone"
    world.apply(SHARE, spec(restartPolicy="Never"))
    late.keep()
    assert pods(world) == [], "it is another one"


def test_two_operators_at_once_make_one_pod(world: SharePodWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    world.apply(SHARE, spec())
    create, told = KubeClient.create, []

    def both(client: KubeClient, resource: Resource, body: Object, namespace: str = "", **more: Any) -> Object:
        create(client, resource, body, namespace, **more)
        try:
            return create(client, resource, body, namespace, **more)
        except Conflict as error:
            told.append(error.reason)
            raise

    monkeypatch.setattr(KubeClient, "create", both)
    keeper = world.keeper()
    keeper.keep()
    assert (told, pods(world), world.status()) == (["AlreadyExists"], ["one"], {})
    keeper.keep()
    assert world.condition("Ready")[1] == "PodPending"


def test_a_status_that_changed_meanwhile_is_written_by_the_next_look(world: SharePodWorld) -> None:
    world.apply(SHARE, spec())
    late = world.keeper()
    world.look()
    world.kubelet(phase="Running", conditions=READY)
    world.look()
    late.keep()
    assert world.condition("Ready")[0] == "True"


def test_it_follows_what_happens(world: SharePodWorld) -> None:
    changed = threading.Event()
    keeper = SharePodKeeper(world.kube, Resources(), world.clock, lambda: True)

    def kept() -> bool:
        changed.wait(1)
        changed.clear()
        try:
            keeper.keep()
        except Unavailable:
            return False
        return True

    keeper.start(changed.set)
    try:
        wait_for(kept, "both lists")
        world.apply(SHARE, spec())
        wait_for(lambda: kept() and world.pod() is not None, "the pod")
        world.kubelet(phase="Running", conditions=READY)
        wait_for(lambda: kept() and world.condition("Ready")[0] == "True", "the status")
        world.delete()
        world.collect_garbage()
        wait_for(lambda: kept() and not keeper._sharepods.all() and not keeper._pods.all(), "the end")
        assert pods(world) == []
    finally:
        keeper.stop()


def test_the_hash_is_in_an_annotation_of_the_pod_alone(world: SharePodWorld) -> None:
    world.apply(SHARE, spec())
    world.look()
    pod = world.pod()
    assert pod is not None
    assert DIGEST_ANNOTATION in pod["metadata"]["annotations"]
    assert DIGEST_ANNOTATION not in world.sharepod()["metadata"]["annotations"]
