# SPDX-License-Identifier: Apache-2.0
"""Whether a pod is metered is decided once, when it is first seen holding GPUs: examples, and random histories."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.controller_stage import GPU, T0, Stage, staged
from support.databases import Databases

from slicekeeper import names
from slicekeeper.kube.client import PODS
from slicekeeper.units import format_instant
from timekeeper.ledger.verify import verify
from timekeeper.store import bookings, workloads

NVIDIA = {"nvidia.com/gpu": "1"}
POLICIES: dict[str, dict[str, str]] = {"enforce": {}, "off": {"mode": "off"}, "ignored": {"nvidiaGpu": "ignored"}}


def meters(policy: str, limits: dict[str, str] | None) -> bool:
    return policy == "enforce" or (policy == "ignored" and limits is None)


def charged(stage: Stage, uid: str) -> int | None:
    """Return what a pod is charged; None if the ledger does not know it."""
    with stage.books.database.reading() as session:
        if uid not in workloads.by_uid(session, [uid]):
            return None
        return sum(bookings.booked_by_pod(session, [uid])[uid])


@pytest.mark.parametrize("ended", [False, True])
@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize(("policy", "limits"), [("off", None), ("off", NVIDIA), ("ignored", NVIDIA)])
def test_a_pod_first_seen_unmetered_is_never_charged(
    stage: Stage, policy: str, limits: dict[str, str] | None, restarted: bool, ended: bool
) -> None:
    stage.set_policy(**POLICIES[policy])
    pod = stage.create(limits=limits)
    if ended:
        stage.end("a", T0 + 1_000)
    stage.clock.advance(2_000)
    stage.look()
    if restarted:
        stage.restart()
    stage.set_policy()
    stage.clock.advance(2_000)
    stage.look()
    if not ended:
        stage.end("a", T0 + 3_000)
    stage.look()
    assert charged(stage, pod["metadata"]["uid"]) is None
    assert stage.finalizers() == [], "it may be deleted"


def test_a_pod_first_seen_metered_stays_metered_while_its_namespace_is_off(stage: Stage) -> None:
    pod = stage.create()
    stage.look()
    stage.set_policy(mode="off")
    stage.clock.advance(9_000)
    stage.look()
    stage.end("a", T0 + 8_000)
    stage.look()
    assert charged(stage, pod["metadata"]["uid"]) == 4_000


def test_a_pod_that_is_bound_after_its_namespace_was_off_is_charged(stage: Stage) -> None:
    stage.set_policy(mode="off")
    pod = stage.create(bound=False)
    stage.look()
    stage.set_policy()
    bind(stage, "a", T0 + 1_000)
    stage.end("a", T0 + 3_000)
    stage.clock.advance(4_000)
    stage.look()
    assert charged(stage, pod["metadata"]["uid"]) == 1_000


def bind(stage: Stage, name: str, at: int) -> None:
    def change(pod: dict[str, Any]) -> dict[str, Any]:
        pod["spec"]["nodeName"] = "n"
        pod["metadata"]["annotations"] |= {names.gpu_annotation("main"): GPU.uuid, names.BOUND_AT: format_instant(at)}
        return pod

    stage.cluster.store.update(PODS, name, "team", change, subresource="binding")
    stage.write(name, phase="Running")


UNSEEN = -1
"""The end of a pod that vanished without an event."""

WHAT = ["create", "create", "bind", "end", "look", "look", "vanish", "restart", *POLICIES]
EVENTS = st.lists(st.tuples(st.sampled_from(WHAT), st.integers(0, 3)), min_size=4, max_size=16)


class History:
    """A stage, and what is to be charged: each pod by its share, if the policy had it metered at the first look."""

    def __init__(self, stage: Stage) -> None:
        self.stage = stage
        self.policy = "enforce"
        self.pods: dict[str, dict[str, Any]] = {}
        self.decided: dict[str, bool] = {}

    def do(self, what: str, which: int) -> None:
        stage, now = self.stage, self.stage.clock.now_ms()
        stage.clock.advance(1_000)
        name = f"pod-{which % len(self.pods)}" if self.pods else ""
        pod = self.pods.get(name, {})
        if what == "create":
            name, limits = f"pod-{len(self.pods)}", NVIDIA if which % 2 else None
            made = stage.create(name, bound=which < 2, limits=limits)
            begun = now + 1_000 if which < 2 else None
            self.pods[name] = {"uid": made["metadata"]["uid"], "limits": limits, "start": begun, "end": None}
        elif what == "look":
            self.look()
        elif what == "restart":
            stage.restart()
        elif what in POLICIES:
            self.policy = what
            stage.set_policy(**POLICIES[what])
        elif what == "bind" and pod and pod["start"] is None and pod["end"] is None:
            pod["start"] = now + 1_000
            bind(stage, name, now + 1_000)
        elif what == "vanish" and pod and pod["end"] is None:
            pod["end"] = UNSEEN
            stage.kube.patch(PODS, name, {"metadata": {"finalizers": None}}, "team")
            stage.cluster.store.delete(PODS, name, "team", grace=0)
        elif what == "end" and pod and pod["end"] is None:
            pod["end"] = now + 1_000
            stage.end(name, now + 1_000)

    def look(self) -> None:
        for name, pod in self.pods.items():
            if pod["start"] is not None and pod["end"] != UNSEEN:
                self.decided.setdefault(name, meters(self.policy, pod["limits"]))
        self.stage.look()

    def finish(self) -> None:
        """Have all pods end under a policy that meters all, and compare what they are charged."""
        self.do("look", 0)
        self.do("enforce", 0)
        for number in range(len(self.pods)):
            self.do("end", number)
        self.do("look", 0)
        for name, pod in self.pods.items():
            found = charged(self.stage, pod["uid"])
            assert (name, found is not None) == (name, self.decided.get(name, False))
            if pod["end"] != UNSEEN:
                assert self.stage.finalizers(name) == []
            if found is not None and pod["end"] != UNSEEN:
                assert found == (pod["end"] - pod["start"]) // (1 if pod["limits"] else 2)
        assert verify(self.stage.books.database.engine, carry=False).differences == []


def test_any_history_of_policies_charges_the_pods_that_were_metered_when_first_seen(databases: Databases) -> None:
    @settings(
        max_examples=25 if databases.kind == "sqlite" else 5,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(EVENTS)
    def run(events: list[tuple[str, int]]) -> None:
        with TemporaryDirectory() as folder, databases.migrated() as url, staged(Path(folder), url) as stage:
            history = History(stage)
            for what, which in events:
                history.do(what, which)
            history.finish()

    run()
