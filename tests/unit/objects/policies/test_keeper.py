# SPDX-License-Identifier: Apache-2.0
"""What a GpuPolicy's status says, when it is written, and that two operators do not fight over it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from support.custom_objects import apply_policy, policies_served
from support.manual_clock import ManualClock
from support.small_cluster import api_served

from objects.policies.keeper import PolicyKeeper
from simulator.api import Api
from simulator.cluster import Cluster
from simulator.store import Store
from slicekeeper.config.policy import PolicyBook
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings
from slicekeeper.errors import Conflict
from slicekeeper.kube.client import NAMESPACES, KubeClient, Object, Resource
from slicekeeper.kube.policy_watch import GPU_POLICIES
from slicekeeper.units import format_seconds

T0 = 1_767_225_600_000


@dataclass
class World:
    """A cluster with namespaces, a policy file, and who keeps the statuses."""

    clock: ManualClock
    cluster: Cluster
    kube: KubeClient
    file: Path
    made: list[str] = field(default_factory=list)

    @property
    def store(self) -> Store:
        return self.cluster.store

    def namespaces(self, *names: str) -> None:
        for name in names:
            self.kube.create(NAMESPACES, {"metadata": {"name": name}})

    def apply(self, name: str, *match: str, **more: object) -> Object:
        self.clock.advance(1_000)  # each is younger than the one before
        return apply_policy(self.store, name, *match, **more)

    def keeper(self, *, acts: Callable[[], bool] = lambda: True, kube: KubeClient | None = None) -> PolicyKeeper:
        settings = PolicySettings(file=str(self.file))
        return PolicyKeeper(kube or self.kube, PolicyFile(settings, PolicyBook()), self.clock, acts)

    def status(self, name: str) -> Object:
        return dict(self.store.get(GPU_POLICIES, name, "").get("status") or {})

    def told(self, name: str) -> tuple[str, str, int]:
        status = self.status(name)
        [ready] = status["conditions"]
        assert ready["type"] == "Ready"
        return ready["status"], ready["reason"], status["namespaces"]

    def message(self, name: str) -> str:
        return str(self.status(name)["conditions"][0]["message"])


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    clock = ManualClock(T0)
    cluster = Cluster(clock)
    file = tmp_path / "policy.yaml"
    file.write_text("namespaces: [{match: team-a, ceiling: 2}, {match: 'infra-*', ceiling: 3}]\n")
    with policies_served(), api_served(Api(cluster)) as (_, kube):
        yield World(clock, cluster, kube, file)


def test_each_object_is_told_whether_it_holds_and_for_how_many(world: World) -> None:
    world.namespaces("team-a", "team-b", "team-c", "guest", "infra-x", "kube-system")
    world.apply("teams", "team-*", "guest", ceiling=10)
    world.apply("team-b", "team-b", ceiling=20)
    world.apply("younger", "team-*", "guest", ceiling=30)
    world.apply("partly", "guest", "infra-*", "kube-system", ceiling=40)
    world.apply("wrong", "team-c", budget={"timeZone": "Mars/Olympus"})
    world.keeper().keep()
    assert world.told("teams") == ("True", "InForce", 2)  # team-a goes by the file's exact name
    assert world.told("team-b") == ("True", "InForce", 1)
    assert world.told("younger") == ("False", "Taken", 0)
    assert world.message("younger") == "GpuPolicy teams has team-*, GpuPolicy teams has guest: the older one applies"
    assert world.told("partly") == ("True", "PartlyTaken", 1)  # and kube-system is exempt
    assert world.told("wrong") == ("False", "SpecInvalid", 0)
    assert "Mars/Olympus" in world.message("wrong")
    ready = world.status("teams")["conditions"][0]
    assert (ready["observedGeneration"], ready["lastTransitionTime"]) == (1, format_seconds(world.clock.now_ms()))
    metadata = world.store.get(GPU_POLICIES, "teams", "")["metadata"]
    assert set(metadata) == {"name", "uid", "creationTimestamp", "resourceVersion", "generation"}


def test_nothing_is_written_while_nothing_changes_and_the_count_alone_twice_a_minute(world: World) -> None:
    world.namespaces("team-a", "team-b")
    world.apply("teams", "team-*")
    one, two = world.keeper(), world.keeper()
    for keeper in (one, two):
        keeper.keep()
    version = world.store.version
    for _ in range(3):
        world.clock.advance(60_000)
        one.keep()
        two.keep()
        world.keeper().keep()  # one that was started again
    assert world.store.version == version
    world.namespaces("team-c")
    one.keep()
    assert world.told("teams") == ("True", "InForce", 2)
    written = world.store.version
    world.namespaces("team-d")
    world.clock.advance(29_000)
    one.keep()
    two.keep()
    assert world.store.version == written + 1  # the namespace alone
    world.clock.advance(1_000)
    two.keep()
    one.keep()
    assert world.told("teams") == ("True", "InForce", 3)
    assert world.store.version == written + 2


def test_a_new_spec_is_told_at_once(world: World) -> None:
    world.namespaces("guest")
    world.apply("p", "guest", budget={"timeZone": "Mars/Olympus"})
    world.keeper().keep()
    began = format_seconds(world.clock.now_ms())
    assert world.told("p") == ("False", "SpecInvalid", 0)
    world.apply("p", "guest", budget={"timeZone": "Mars/Phobos"})
    world.keeper().keep()
    status = world.status("p")
    assert "Phobos" in world.message("p")
    assert (status["observedGeneration"], status["conditions"][0]["lastTransitionTime"]) == (2, began)
    world.apply("p", "guest")
    world.keeper().keep()
    assert world.told("p") == ("True", "InForce", 1)
    assert world.status("p")["conditions"][0]["lastTransitionTime"] == format_seconds(world.clock.now_ms())


def test_the_older_ones_deletion_and_a_change_of_the_file_are_told(world: World) -> None:
    world.namespaces("guest")
    world.apply("older", "guest")
    world.apply("younger", "guest", budget={"anchor": "2026-01-15T00:00:00Z"})
    keeper = world.keeper()
    keeper.keep()
    assert world.told("younger") == ("False", "Taken", 0)
    world.store.delete(GPU_POLICIES, "older")
    keeper.keep()
    assert world.told("younger") == ("True", "InForce", 1)
    world.file.with_suffix(".new").write_text("default: {budget: {period: none}}")
    world.file.with_suffix(".new").replace(world.file)
    keeper.keep()
    assert world.told("younger") == ("False", "SpecInvalid", 0)


def test_who_does_not_hold_the_lease_writes_nothing(world: World) -> None:
    world.namespaces("guest")
    world.apply("p", "guest")
    world.keeper(acts=lambda: False).keep()
    assert world.status("p") == {}


def test_two_operators_that_both_believe_to_lead_write_each_change_once(world: World) -> None:
    world.namespaces("guest")
    world.apply("p", "guest")
    patch, refused = KubeClient.patch, []

    class Late(KubeClient):
        """The other operator looks, and writes, between this one's look and its write."""

        def patch(self, resource: Resource, name: str, body: object, *args: str, **more: str) -> Object:  # type: ignore[override]
            world.keeper().keep()
            try:
                return patch(self, resource, name, body, *args, **more)
            except Conflict as error:
                refused.append(error)
                raise

    late = Late(world.kube._http)
    version = world.store.version
    world.keeper(kube=late).keep()
    assert (len(refused), world.store.version) == (1, version + 1)
    assert world.told("p") == ("True", "InForce", 1)
    world.keeper(kube=late).keep()
    assert world.store.version == version + 1


def test_while_the_file_is_broken_from_the_start_nobody_is_told_anything(world: World) -> None:
    world.namespaces("team-b")
    world.apply("p", "team-b", ceiling=20)
    kept = world.file.read_text()
    world.file.write_text("default: {ceilling: 700}")
    keeper = world.keeper()
    keeper.keep()
    assert world.status("p") == {}
    world.file.with_suffix(".new").write_text(kept)
    world.file.with_suffix(".new").replace(world.file)
    keeper.keep()
    assert world.told("p") == ("True", "InForce", 1)
