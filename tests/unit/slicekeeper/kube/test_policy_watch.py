# SPDX-License-Identifier: Apache-2.0
"""A part follows GpuPolicies: changes, an API server that goes away, a restart, a kind that is not served."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from support.custom_objects import apply_policy, policies_served
from support.waiting import wait_for

from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from slicekeeper.clock import Clock
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import KubernetesSettings, PolicySettings
from slicekeeper.errors import Unavailable
from slicekeeper.kube.client import KubeClient, Object
from slicekeeper.kube.policy_watch import GPU_POLICIES, PolicyObjects


class Client(KubeClient):
    """A client whose API server can go away and come back: what happens there meanwhile does not reach it."""

    def __init__(self, url: str) -> None:
        super().__init__(KubernetesSettings(server=url))
        self.away = threading.Event()

    def _answered(self) -> None:
        if self.away.is_set():
            raise Unavailable("no answer")

    def pages(self, *args: Any, **asked: Any) -> Iterator[tuple[list[Object], str]]:
        self._answered()
        return super().pages(*args, **asked)

    @contextmanager
    def watch(self, *args: Any, **asked: Any) -> Iterator[Iterator[tuple[str, Object]]]:
        self._answered()
        with super().watch(*args, **asked) as events:
            yield self._while_there(events)

    def _while_there(self, events: Iterator[tuple[str, Object]]) -> Iterator[tuple[str, Object]]:
        for event in events:
            self._answered()
            yield event


@dataclass
class World:
    """An API server and a policy file, and parts that go by both."""

    cluster: Cluster
    settings: PolicySettings
    client: Client

    @contextmanager
    def part(self) -> Iterator[PolicyFile]:
        """Follow as a part does that was just started."""
        policy = PolicyFile(self.settings)
        followed = PolicyObjects(self.client, policy)
        followed.start()
        try:
            yield policy
        finally:
            followed.stop()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    file = tmp_path / "policy.yaml"
    file.write_text("default: {ceiling: 1}\nnamespaces: [{match: team, ceiling: 2}]\n")
    cluster = Cluster(Clock())
    server = ApiServer(Api(cluster))
    server.start()
    client = Client(server.url)
    try:
        yield World(cluster, PolicySettings(file=str(file), objects=True), client)
    finally:
        client.close()
        server.stop()


def ceiling(policy: PolicyFile, namespace: str = "team") -> int:
    return policy.of(namespace).ceiling


def rewrite(settings: PolicySettings, text: str) -> None:
    new = Path(settings.file).with_suffix(".new")
    new.write_text(text)
    new.replace(settings.file)


def test_objects_are_followed_and_a_status_makes_no_new_book(world: World) -> None:
    store = world.cluster.store
    with policies_served():
        apply_policy(store, "first", "team", ceiling=10)
        with world.part() as policy:
            wait_for(lambda: ceiling(policy) == 10, "the one that was there")
            apply_policy(store, "second", "guest-*", ceiling=20)
            wait_for(lambda: ceiling(policy, "guest-a") == 20, "a new one")
            book = policy.book
            store.update(GPU_POLICIES, "second", "", lambda o: {**o, "status": {"namespaces": 1}}, subresource="status")
            apply_policy(store, "third", "marker", ceiling=30)
            wait_for(lambda: ceiling(policy, "marker") == 30, "one after the status")
            assert [name for name in policy.book.exact if name not in book.exact] == ["marker"]
            apply_policy(store, "first", "team", ceiling=11)
            wait_for(lambda: ceiling(policy) == 11, "a changed one")
            apply_policy(store, "first", "team", ceiling=101)
            wait_for(lambda: ceiling(policy) == 2, "one that is not valid any more")
            store.delete(GPU_POLICIES, "second")
            wait_for(lambda: ceiling(policy, "guest-a") == 1, "one that was deleted")


def test_a_written_status_is_no_change() -> None:
    policy = PolicyFile(PolicySettings(objects=True))
    followed = PolicyObjects(KubeClient(KubernetesSettings(server="http://127.0.0.1:9")), policy)
    metadata = {"name": "p", "uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z", "generation": 1}
    followed.on_list([{"metadata": {**metadata, "resourceVersion": "1"}, "spec": {"match": ["team"], "ceiling": 9}}])
    book = policy.book
    written = {"metadata": {**metadata, "resourceVersion": "2"}, "spec": {"match": ["team"], "ceiling": 9}}
    followed.on_event("MODIFIED", {**written, "status": {"namespaces": 1}})
    followed.on_list([written])
    assert policy.book is book
    followed.on_event("DELETED", written)
    assert (policy.book is book, ceiling(policy)) == (False, 100)


def test_while_the_api_server_is_away_the_last_policy_holds_and_what_was_missed_is_made_up_for(world: World) -> None:
    store = world.cluster.store
    with policies_served():
        apply_policy(store, "first", "team", ceiling=10)
        apply_policy(store, "gone", "guest", ceiling=20)
        with world.part() as policy:
            wait_for(lambda: (ceiling(policy), ceiling(policy, "guest")) == (10, 20), "both")
            world.client.away.set()
            apply_policy(store, "first", "team", ceiling=12)
            store.delete(GPU_POLICIES, "gone")
            rewrite(world.settings, "default: {ceiling: 3, stale: deny}\n")
            assert policy.refresh()
            assert (ceiling(policy), ceiling(policy, "guest"), policy.of("team").stale) == (10, 20, "deny")
            world.client.away.clear()
            wait_for(lambda: (ceiling(policy), ceiling(policy, "guest")) == (12, 3), "what changed meanwhile")


def test_a_part_that_starts_while_the_api_server_is_away_knows_that_it_does_not_know(world: World) -> None:
    with policies_served():
        apply_policy(world.cluster.store, "first", "team", ceiling=10)
        world.client.away.set()
        with world.part() as policy:
            assert (policy.complete.is_set(), ceiling(policy)) == (False, 2)
            world.client.away.clear()
            assert policy.complete.wait(60)
            assert ceiling(policy) == 10


def test_two_parts_and_one_that_was_started_again_come_to_the_same(world: World) -> None:
    store = world.cluster.store
    with policies_served():
        with world.part() as one, world.part() as two:
            for number in range(5):
                apply_policy(store, f"p{number}", "team", f"t{number}-*", ceiling=10 + number)
            apply_policy(store, "p4", "team", "done", ceiling=101)
            apply_policy(store, "p3", "team", "done", ceiling=50)
            wait_for(lambda: ceiling(one, "done") == ceiling(two, "done") == 50, "the last change")
            books = [one.book, two.book]
        with world.part() as three:
            assert three.complete.wait(60)
            books.append(three.book)
    assert len({(tuple(sorted(book.exact.items(), key=str)), book.patterns) for book in books}) == 1


def test_where_the_kind_is_not_served_there_is_none_until_it_is(world: World) -> None:
    with world.part() as policy:
        assert policy.complete.wait(60)
        assert ceiling(policy) == 2
        with policies_served():
            apply_policy(world.cluster.store, "first", "team", ceiling=10)
            wait_for(lambda: ceiling(policy) == 10, "the kind, once it is served")


def test_a_kind_that_is_not_served_any_more_takes_its_objects_along_after_a_while(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    with world.part() as policy:
        with policies_served():
            apply_policy(world.cluster.store, "first", "team", ceiling=10)
            wait_for(lambda: ceiling(policy) == 10, "the object")
            assert policy.objects_trouble() == ""
            world.client.away.set()
            wait_for(lambda: "no answer" in policy.objects_trouble(), "word that it is not followed", seconds=150)
        world.client.away.clear()
        wait_for(lambda: "could not find" in policy.objects_trouble(), "word that there is no such kind")
        assert ceiling(policy) == 10, "an API server that has just started may not know it yet"
        monkeypatch.setattr("slicekeeper.kube.policy_watch.GONE_SECONDS", 0.1)
        wait_for(lambda: ceiling(policy) == 2, "the file alone")
