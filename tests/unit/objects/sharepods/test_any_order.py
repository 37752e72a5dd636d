# SPDX-License-Identifier: Apache-2.0
"""SharePods and pods changed in any order, by operators that are killed at any call, late, or two at once."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.budget_objects import Killed
from support.sharepods import SHARE, SharePodWorld, sharepod_world, spec

from objects.sharepods.status import has_outcome
from objects.sharepods.template import DIGEST_ANNOTATION, SHAREPODS
from simulator.store import Change
from slicekeeper.kube.client import PODS, Object
from slicekeeper.kube.pod import controller_of

CALLS = 12
"""More than any operator here makes in one look."""

step = st.one_of(
    st.tuples(st.just("apply"), st.integers(0, 3)),
    st.tuples(st.just("look"), st.just(0)),
    st.tuples(st.just("killed before"), st.integers(0, CALLS)),
    st.tuples(st.just("killed after"), st.integers(0, CALLS)),
    st.tuples(st.just("late"), st.integers(0, CALLS)),
    *(
        st.tuples(st.just(what), st.just(0))
        for what in (
            "delete",
            "orphan",
            "garbage",
            "runs",
            "succeeds",
            "fails",
            "pod removed",
            "foreign pod",
            "label taken",
        )
    ),
)


@pytest.fixture(scope="module")
def shared() -> Iterator[SharePodWorld]:
    """One world for all examples, each in a namespace of its own."""
    with sharepod_world() as made:
        yield made


class Story:
    """One SharePod that is done something to, and what must hold of its pods."""

    def __init__(self, world: SharePodWorld, restart: str) -> None:
        self.world = world
        self.team = world.namespace()
        self.restart = restart
        self.began = world.store.version
        self.says: int | None = None

    def do(self, what: str, value: int) -> None:
        world, team = self.world, self.team
        world.clock.advance(20_000)
        if what == "apply":
            self.says = value
            world.apply(*self.said(value), namespace=team)
        elif what == "delete":
            self.says = None
            world.delete(namespace=team)
        elif what == "orphan":
            self.says = None
            world.delete(namespace=team)
            self._change_pod(lambda metadata: metadata.update(ownerReferences=[]))
        elif what == "garbage":
            world.collect_garbage()
        elif what in ("runs", "succeeds", "fails"):
            self._kubelet(what)
        elif what == "pod removed":
            world.remove_pod(namespace=team)
        elif what == "foreign pod" and world.pod(namespace=team) is None:
            world.make_pod(namespace=team)
        elif what == "label taken":
            self._change_pod(lambda metadata: metadata.update(labels={}))
        elif what == "look":
            world.look()
        elif what == "late":
            world.interrupted(value, self._meanwhile, after=True)
        elif what.startswith("killed"):
            with suppress(Killed):
                world.interrupted(value, _die, after=what == "killed after")

    def said(self, value: int) -> tuple[dict[str, str], Object]:
        """Return annotations and spec of one of four SharePods, the last of them wrong."""
        annotations = {**SHARE, "kubeshare/gpu_request": ("0.4", "0.5", "0.5", "1.5")[value]}
        return annotations, spec(restartPolicy=self.restart, hostname=f"h{value}")

    def _kubelet(self, what: str) -> None:
        pod = self.world.pod(namespace=self.team)
        if pod is None or pod["status"]["phase"] in ("Succeeded", "Failed"):
            return
        if what == "runs":
            self.world.kubelet(namespace=self.team, phase="Running")
        else:
            self.world.ended("Succeeded" if what == "succeeds" else "Failed", namespace=self.team)

    def _change_pod(self, change: object) -> None:
        if self.world.pod(namespace=self.team) is not None:

            def changed(pod: Object) -> Object:
                change(pod["metadata"])  # type: ignore[operator]
                return pod

            self.world.store.update(PODS, "one", self.team, changed)

    def _meanwhile(self) -> None:
        """Another operator looks, and people do not wait."""
        self.do("look", 0)
        self.do("delete", 0)
        self.do("apply", 1)
        self.do("look", 0)

    def changes(self) -> list[Change]:
        """Return what became of this namespace's pods and SharePods."""
        written = self.world.store.since(self.began)
        return [one for one in written if one.obj["metadata"].get("namespace") == self.team]

    def pods(self) -> list[Change]:
        """Return what became of this namespace's pods."""
        return [one for one in self.changes() if one.resource == PODS]

    def end(self) -> None:
        """Let every part act, and run one pass: whatever happened, this must be enough."""
        for _ in range(4):  # a failed orphan is adopted, deleted and created again, and the status says so
            self.do("garbage", 0)
            self.world.clock.advance(60_000)
            self.world.look()
        self.world.clock.advance(60_000)
        version = self.world.store.version
        self.world.look()
        assert self.world.store.version == version, "a look at what is in step writes nothing"
        self._one_pod_each()
        self._foreign_pods_are_as_they_were()
        if self.says is not None:
            self._as_it_says()
        self.do("delete", 0)
        self.world.remove_pod(namespace=self.team)

    def _one_pod_each(self) -> None:
        """No SharePod had a new pod while its last one was there, and none after one that ended for good."""
        there: dict[str, str] = {}
        ended: set[str] = set()
        for one in self.changes():
            owner = controller_of(one.obj)
            if one.resource == SHAREPODS and has_outcome(one.obj):
                ended.add(one.obj["metadata"]["uid"])
            if owner is None:
                continue
            if one.kind == "DELETED":
                there.pop(owner["uid"], None)
            else:
                assert one.kind == "MODIFIED" or owner["uid"] not in ended
                assert there.setdefault(owner["uid"], one.obj["metadata"]["uid"]) == one.obj["metadata"]["uid"]

    def _foreign_pods_are_as_they_were(self) -> None:
        for one in self.pods():
            if one.kind == "MODIFIED" and DIGEST_ANNOTATION not in one.obj["metadata"].get("annotations", {}):
                assert controller_of(one.obj) is None

    def _as_it_says(self) -> None:
        world, team = self.world, self.team
        metadata, pod = world.sharepod(namespace=team)["metadata"], world.pod(namespace=team)
        status, reason, _ = world.condition("Ready", namespace=team)
        mine = pod is not None and (controller_of(pod) or {}).get("uid") == metadata["uid"]
        if world.condition("Ended", namespace=team)[0] == "True":
            assert self.restart != "Always"
            return
        if mine:
            assert pod is not None
            assert world.status(namespace=team)["PodStatus"] == pod["status"]
            assert world.status(namespace=team)["PodObjectMeta"]["uid"] == pod["metadata"]["uid"]
            wrong = self.says == 3
            expected = ("SpecInvalid",) if wrong else ("SpecUnchanged", "SpecChanged")
            assert world.condition("UpToDate", namespace=team)[1] in expected
        else:
            assert (status, reason) == ("False", "SpecInvalid" if self.says == 3 else "PodNameTaken")
        assert world.status(namespace=team)["observedGeneration"] == metadata["generation"]


def _die() -> None:
    raise Killed


@settings(max_examples=40, deadline=None)
@given(steps=st.lists(step, max_size=12), restart=st.sampled_from(["Always", "OnFailure", "Never"]))
def test_each_sharepod_has_one_pod_whatever_happens(
    shared: SharePodWorld, steps: list[tuple[str, int]], restart: str
) -> None:
    story = Story(shared, restart)
    for what, value in steps:
        story.do(what, value)
    story.end()


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("at", range(CALLS))
def test_an_operator_that_is_killed_at_a_call_leaves_the_next_one_to_make_one_pod(
    shared: SharePodWorld, at: int, after: bool
) -> None:
    story = Story(shared, "Never")
    how = "killed after" if after else "killed before"
    steps = ("apply", how, how, "look", "runs", how, "succeeds", how, "look", "pod removed", how)
    for what in steps:
        story.do(what, at if what == how else 0)
    assert shared.condition("Ended", namespace=story.team)[:2] == ("True", "Succeeded")
    story.end()
    made = [one for one in story.pods() if one.kind == "ADDED"]
    assert len(made) == 1
