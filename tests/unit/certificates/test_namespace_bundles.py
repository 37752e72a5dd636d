# SPDX-License-Identifier: Apache-2.0
"""The trusted CAs are in every namespace, whatever happens to the namespace or the ConfigMap."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from support.small_cluster import NAMESPACE, FailingApi, SmallCluster

from certificates.namespace_bundles import BundlePublisher
from simulator.api import Call
from simulator.api_errors import ApiError
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.errors import NotFound, ServiceError
from slicekeeper.kube.client import CONFIG_MAPS, NAMESPACES, Object

HOME = "slicekeeper-system"


class World(SmallCluster):
    """A cluster with a publisher that works as its command has it work: again whenever something changed."""

    def __init__(self) -> None:
        super().__init__(Clock())
        self._wake, self._stop = threading.Event(), threading.Event()
        self.publisher = BundlePublisher(self.client, HOME, self._wake)
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self.publisher.start()
        self._thread.start()

    def _follow(self) -> None:
        while not self._stop.is_set():
            self._wake.wait()
            self._wake.clear()
            with contextlib.suppress(ServiceError):
                self.publisher.repeat()

    def stop(self) -> None:
        self._stop.set()
        self._wake.set()
        self._thread.join()
        self.publisher.stop()
        self.server.stop()

    def published(self, namespace: str) -> Object:
        return self.client.get(CONFIG_MAPS, names.CA_CONFIG_MAP, namespace)

    def wait(self, namespace: str, bundle: str) -> Object:
        pause = threading.Event()
        for _ in range(1500):
            try:
                found = self.published(namespace)
            except NotFound:
                found = {}
            if found.get("data") == {"ca.crt": bundle}:
                return found
            pause.wait(0.02)
        raise AssertionError(f"{namespace} has not got {bundle!r}")


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.stop()


def test_every_namespace_gets_it_and_a_new_one_at_once(world: World) -> None:
    world.publisher.publish(b"one")
    for namespace in (NAMESPACE, HOME):
        world.wait(namespace, "one")
    world.client.create(NAMESPACES, {"metadata": {"name": "later"}})
    world.wait("later", "one")


def test_a_rotation_replaces_it_everywhere(world: World) -> None:
    world.publisher.publish(b"one")
    world.wait(NAMESPACE, "one")
    world.publisher.publish(b"twoone")
    for namespace in (NAMESPACE, HOME):
        world.wait(namespace, "twoone")


@pytest.mark.parametrize("damage", [{"data": {"ca.crt": "mine"}}, {"metadata": {"ownerReferences": []}}])
def test_what_somebody_changed_or_deleted_is_put_right(world: World, damage: dict[str, Any]) -> None:
    world.publisher.publish(b"one")
    owners = world.wait(NAMESPACE, "one")["metadata"]["ownerReferences"]
    world.client.patch(CONFIG_MAPS, names.CA_CONFIG_MAP, damage, NAMESPACE)
    pause = threading.Event()
    while world.wait(NAMESPACE, "one")["metadata"].get("ownerReferences") != owners:
        pause.wait(0.02)
    world.client.delete(CONFIG_MAPS, names.CA_CONFIG_MAP, NAMESPACE)
    world.wait(NAMESPACE, "one")


def test_it_belongs_to_the_installations_namespace_and_goes_with_it(world: World) -> None:
    world.publisher.publish(b"one")
    [owner] = world.wait(NAMESPACE, "one")["metadata"]["ownerReferences"]
    home = world.client.get(NAMESPACES, HOME)
    assert owner == {"apiVersion": "v1", "kind": "Namespace", "name": HOME, "uid": home["metadata"]["uid"]}


@pytest.mark.parametrize(
    ("status", "reason"), [(400, "BadRequest"), (403, "Forbidden"), (422, "Invalid"), (500, "InternalError")]
)
def test_a_namespace_that_takes_none_keeps_no_other_from_it(world: World, status: int, reason: str) -> None:
    """A quota, a policy, a ConfigMap of that name that a tenant made immutable, another webhook that is down."""

    def refuse(_api: FailingApi, call: Call) -> None:
        if call.namespace == NAMESPACE:
            raise ApiError(status, reason, "field is immutable when `immutable` is set")

    world.api.faults[""] = refuse
    world.publisher.publish(b"one")
    world.wait(HOME, "one")
    with pytest.raises(NotFound):
        world.published(NAMESPACE)
    world.api.faults.clear()
    world.publisher.repeat()
    world.wait(NAMESPACE, "one")
