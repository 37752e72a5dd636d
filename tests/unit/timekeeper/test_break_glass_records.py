# SPDX-License-Identifier: Apache-2.0
"""Pods let go while the timekeeper is broken are charged later, exactly as if it had worked all the time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from support import controller_stage
from support.controller_stage import GPU, T0
from support.manual_clock import ManualClock
from support.small_cluster import api_served

from simulator.api import Api
from simulator.cluster import Cluster
from slicekeeper import names
from slicekeeper.cli import break_glass_release
from slicekeeper.clock import CLOCK_SKEW_MS
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings, Settings
from slicekeeper.errors import Unavailable
from slicekeeper.gpu import inventory
from slicekeeper.kube import break_glass_record
from slicekeeper.kube.client import CONFIG_MAPS, NAMESPACES, NODES, PODS, KubeClient, Object
from slicekeeper.units import format_instant
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.ledger.books import Books
from timekeeper.store import workloads
from timekeeper.store.db.models import WorkloadRow

MINUTE = 60_000
HOME = "slicekeeper-system"


class Stage(controller_stage.Stage):
    def create(self, name: str, *, bound: bool = True, core: str = "50", device: str = "", node: str = "n") -> Object:
        limits = {device: "1"} if device else {"tencent.com/vcuda-core": core, "tencent.com/vcuda-memory": "16"}
        annotations = {names.gpu_annotation("main"): GPU.uuid, names.BOUND_AT: format_instant(self.clock.now_ms())}
        secret = [{"name": "PASSWORD", "value": "hunter2"}]
        pod: Object = {
            "metadata": {
                "name": name,
                "namespace": "team",
                "finalizers": [names.FINALIZER],
                "labels": {names.MANAGED_LABEL: "true"},
                "annotations": annotations if bound else {},
            },
            "spec": {
                "restartPolicy": "Never",
                "containers": [{"name": "main", "env": secret, "resources": {"limits": limits}}],
            },
            "status": {"phase": "Running" if bound else "Pending"},
        }
        if bound:
            pod["spec"]["nodeName"] = node
        return self.cluster.store.create(PODS, pod, "team")

    def delete(self, name: str) -> None:
        self.cluster.store.delete(PODS, name, "team", grace=0)

    def restart(self) -> None:
        """Have another timekeeper begin, which knows nothing but the database."""
        super().restart()
        self.look()

    def look(self) -> None:
        self.controller.namespaces.on_list(self.kube.list(NAMESPACES)[0])
        self.controller.pods.on_list(self.kube.list(PODS)[0])
        self.controller.look()
        self.controller.look()

    def let_go(self) -> list[tuple[str, str]]:
        return list(break_glass_release.release_held(self.kube, HOME, self.clock.now_ms()))

    def records(self) -> list[Object]:
        return self.kube.list(CONFIG_MAPS, namespace=HOME)[0]

    def charges(self) -> dict[str, tuple[Any, ...]]:
        with self.books.database.reading() as session:
            rows = list(session.scalars(select(WorkloadRow)))
            return {row.pod_name: (row.started_at, row.ended_at, row.flags, row.gpus, row.holders) for row in rows} | {
                "charged": {p.account.name: p.at(self.clock.now_ms()).balance for p in self.books.standings()}
            }


@pytest.fixture
def stage(tmp_path: Path, books: Books) -> Iterator[Stage]:
    clock = ManualClock(T0)
    cluster = Cluster(clock)
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: {budget: {amount: 100h, period: none}}")
    with api_served(Api(cluster)) as (reached, kube):
        settings = Settings(kubernetes=reached, policy=PolicySettings(file=str(policy), exempt_namespaces=()))
        for name in ("team", HOME):
            kube.create(NAMESPACES, {"metadata": {"name": name}})
        kube.create(NODES, {"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode([GPU])}}})
        file = PolicyFile(settings.policy)
        made = Stage(clock, kube, cluster, books, Controller(settings, clock, kube, books, file), settings, file)
        made.look()
        yield made
        made.controller.stop()


def history(stage: Stage, *, broken: bool) -> None:
    """One pod that the timekeeper knew, one that it never saw, one that was never bound, one that nobody deletes."""
    stage.create("known")
    stage.clock.advance(MINUTE)
    stage.look()
    stage.create("unseen", core="25")
    stage.create("waiting", bound=False)
    stage.create("stays")
    stage.clock.advance(10 * MINUTE)
    for name in ("known", "unseen", "stays"):
        stage.end(name, stage.clock.now_ms() - 1000)
    for name in ("known", "unseen", "waiting"):
        stage.delete(name)
    if broken:
        assert {p["metadata"]["name"] for p in stage.kube.list(PODS)[0]} == {"known", "unseen", "waiting", "stays"}
        assert stage.let_go() == []
        assert [p["metadata"]["name"] for p in stage.kube.list(PODS)[0]] == ["stays"]
        assert len(stage.records()) == 1
        stage.clock.advance(60 * MINUTE)
        stage.restart()
        assert stage.records() == []
    else:
        stage.look()
        stage.clock.advance(60 * MINUTE)
        stage.restart()


def test_what_was_let_go_is_charged_as_if_nothing_had_happened(stage: Stage) -> None:
    history(stage, broken=True)
    found = stage.charges()
    assert set(found) == {"known", "unseen", "stays", "charged"}
    assert found["known"][:2] == (T0, T0 + 11 * MINUTE - 1000)
    assert found["unseen"][:2] == (T0 + MINUTE, T0 + 11 * MINUTE - 1000)
    assert {flags for _, _, flags, *_ in (found[name] for name in ("known", "unseen"))} == {found["stays"][2]}
    exact = 100 * 3_600_000 - ((11 * MINUTE - 1000) // 2 + (10 * MINUTE - 1000) // 4 + (10 * MINUTE - 1000) // 2)
    assert found["charged"] == {"team": exact}


def test_the_history_with_a_timekeeper_that_works_is_the_same(stage: Stage) -> None:
    history(stage, broken=False)
    found = stage.charges()
    exact = 100 * 3_600_000 - ((11 * MINUTE - 1000) // 2 + (10 * MINUTE - 1000) // 4 + (10 * MINUTE - 1000) // 2)
    assert found["charged"] == {"team": exact}
    assert found["known"][:2] == (T0, T0 + 11 * MINUTE - 1000)


def test_nothing_secret_is_recorded(stage: Stage) -> None:
    history_pod = stage.create("a")
    stage.end("a", T0 + MINUTE)
    stage.delete("a")
    stage.let_go()
    [record] = stage.records()
    assert "hunter2" not in str(record)
    assert history_pod["metadata"]["uid"] in str(record)
    assert record["immutable"] is True


def test_a_namespace_and_a_node_that_are_gone_are_charged_all_the_same(stage: Stage) -> None:
    stage.cluster.store.create(NODES, {"metadata": {"name": "mig", "labels": {"nvidia.com/gpu.memory": "81559"}}})
    pod = stage.create("a", device="nvidia.com/mig-3g.40gb", node="mig")
    uid = stage.controller.namespaces.uid("team")
    stage.clock.advance(10 * MINUTE)
    stage.end("a", stage.clock.now_ms())
    stage.delete("a")
    assert stage.let_go() == []
    stage.cluster.store.delete(NODES, "mig", grace=0)
    stage.cluster.store.delete(NAMESPACES, "team", grace=0)
    stage.kube.create(NAMESPACES, {"metadata": {"name": "team"}})  # a name used again is another account
    stage.restart()
    with stage.books.database.reading() as session:
        row = workloads.by_uid(session, [pod["metadata"]["uid"]])[pod["metadata"]["uid"]]
    assert stage.controller.namespaces.uid("team") != uid
    assert "gpu-unknown" not in row.flags
    [standing] = [p for p in stage.books.standings() if p.account.uid == uid]
    assert standing.at(stage.clock.now_ms()).balance == 100 * 3_600_000 - 5 * MINUTE
    assert stage.records() == []


def test_a_run_that_was_killed_between_record_and_finalizer_is_made_good(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b"):
        stage.create(name)
        stage.end(name, T0 + MINUTE)
        stage.delete(name)
    stage.clock.advance(2 * MINUTE)
    with monkeypatch.context() as patch:
        patch.setattr(break_glass_release, "_release", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            stage.let_go()
    assert len(stage.kube.list(PODS)[0]) == 2
    assert len(stage.records()) == 1
    assert stage.let_go() == []
    assert len(stage.records()) == 1, "the same record is not written twice"
    stage.restart()
    stage.restart()
    found = stage.charges()
    assert found["a"][:2] == found["b"][:2] == (T0, T0 + MINUTE)
    assert found["charged"] == {"team": 100 * 3_600_000 - MINUTE}


def test_a_pod_that_was_recorded_and_not_let_go_is_charged_once_by_what_it_became(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create("a")
    stage.end("a", T0 + MINUTE)
    stage.delete("a")
    with monkeypatch.context() as patch:
        patch.setattr(break_glass_release, "_release", lambda *_: "was not released")
        assert len(stage.let_go()) == 1
    stage.end("a", T0 + 2 * MINUTE)
    stage.clock.advance(5 * MINUTE)
    stage.restart()
    assert stage.charges()["a"][:2] == (T0, T0 + 2 * MINUTE)
    assert stage.kube.list(PODS)[0] == []
    assert stage.records() == []


def test_a_pod_that_changes_after_it_was_recorded_stays(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
    stage.create("a")
    stage.end("a", T0 + MINUTE)
    stage.delete("a")
    create = KubeClient.create

    def meanwhile(self: KubeClient, *args: Any, **more: Any) -> Object:
        made = create(self, *args, **more)
        stage.end("a", T0 + 2 * MINUTE)
        return made

    with monkeypatch.context() as patch:
        patch.setattr(KubeClient, "create", meanwhile)
        [(told, remedy)] = stage.let_go()
    assert told == "pod team/a changed meanwhile, and stays"
    assert remedy == "slicekeeper check --break-glass"
    assert stage.let_go() == []
    assert len(stage.records()) == 2
    stage.clock.advance(5 * MINUTE)
    stage.restart()
    assert stage.charges()["a"][:2] == (T0, T0 + 2 * MINUTE), "the newest record is the one that it was let go by"
    assert stage.records() == []


def test_kubelet_has_its_time_to_tell_how_a_pod_ended(stage: Stage) -> None:
    stage.create("lost")
    stage.clock.advance(MINUTE)
    stage.delete("lost")
    [(told, _)] = stage.let_go()
    assert told == f"kubelet may still report how pod team/lost ended, until {format_instant(T0 + 6 * MINUTE)}"
    stage.clock.advance(6 * MINUTE)
    assert stage.let_go() == []
    stage.restart()
    assert stage.charges()["lost"][:2] == (T0, T0 + MINUTE)


@pytest.mark.parametrize("later", [0, 600 * MINUTE])
def test_an_end_ahead_of_every_clock_is_believed_as_far_as_when_it_was_recorded(stage: Stage, later: int) -> None:
    stage.create("a")
    stage.clock.advance(10 * MINUTE)
    stage.end("a", stage.clock.now_ms() + 300 * MINUTE)
    stage.delete("a")
    assert stage.let_go() == []
    stage.clock.advance(later)
    stage.restart()
    if not later:
        stage.clock.advance(2 * MINUTE)
        stage.restart()
    _, ended, flags, *_ = stage.charges()["a"]
    assert ended == T0 + 10 * MINUTE + CLOCK_SKEW_MS
    assert "clock-skew" in flags


def test_who_runs_and_whom_nobody_deletes_keeps_its_finalizer(stage: Stage) -> None:
    stage.create("runs")
    stage.create("ended")
    stage.end("ended", T0 + MINUTE)
    assert stage.let_go() == []
    assert all(p["metadata"]["finalizers"] == [names.FINALIZER] for p in stage.kube.list(PODS)[0])
    assert stage.records() == []


def test_nothing_is_closed_by_guess_while_the_record_cannot_be_read(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage.create("a")
    stage.look()
    stage.clock.advance(10 * MINUTE)
    stage.end("a", T0 + 9 * MINUTE)
    stage.delete("a")
    stage.let_go()
    listing = KubeClient.list

    def fails(self: KubeClient, resource: Any, **more: Any) -> Any:
        if resource == CONFIG_MAPS:
            raise Unavailable("away")
        return listing(self, resource, **more)

    with monkeypatch.context() as patch:
        patch.setattr(KubeClient, "list", fails)
        for _ in range(2):
            with pytest.raises(Unavailable):
                stage.restart()
    assert stage.charges()["a"][1] is None
    stage.restart()
    assert stage.charges()["a"][:2] == (T0, T0 + 9 * MINUTE)


def test_a_record_that_cannot_be_read_is_left_and_hinders_nothing(stage: Stage) -> None:
    broken = {"metadata": {"name": "slicekeeper-released-x", "labels": {break_glass_record.LABEL: "true"}}, "data": {}}
    stage.kube.create(CONFIG_MAPS, broken, HOME)
    stage.create("a")
    stage.end("a", T0 + MINUTE)
    stage.delete("a")
    stage.let_go()
    stage.clock.advance(2 * MINUTE)
    stage.restart()
    assert stage.charges()["a"][:2] == (T0, T0 + MINUTE)
    assert [one["metadata"]["name"] for one in stage.records()] == ["slicekeeper-released-x"]


def test_thousands_of_pods_make_several_records_below_what_a_config_map_may_hold() -> None:
    pods = [
        {
            "metadata": {"name": f"p-{n}", "namespace": "team", "uid": f"u-{n}", "resourceVersion": str(n)},
            "spec": {"nodeName": f"n-{n % 50}", "containers": [{"name": "c" * 60, "image": "i" * 200}] * 4},
            "status": {"phase": "Succeeded"},
        }
        for n in range(3000)
    ]
    nodes = {f"n-{n}": {"metadata": {"name": f"n-{n}", "labels": {"nvidia.com/gpu.memory": "1"}}} for n in range(50)}
    made = list(break_glass_record.records(pods, {"team": "uid"}, nodes))
    assert len(made) > 3
    assert max(len(str(config_map)) for config_map, _ in made) < 1 << 20
    assert [pod for _, recorded in made for pod in recorded] == pods
    back = [pod["metadata"]["uid"] for config_map, _ in made for pod in break_glass_record.read(config_map).pods]
    assert back == [pod["metadata"]["uid"] for pod in pods]
