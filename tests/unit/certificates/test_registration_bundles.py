# SPDX-License-Identifier: Apache-2.0
"""CAs that the API server trusts: our own or another program's, and earlier ones until they expire."""

from __future__ import annotations

import threading
from base64 import b64encode
from collections.abc import Iterator
from copy import deepcopy
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.small_cluster import NAMESPACE, SmallCluster, small_cluster

from certificates.authority import make_ca
from certificates.external_issuer import Follower
from certificates.namespace_bundles import BundlePublisher
from certificates.registration_bundles import configurations, trust, trusted
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import CertificateSettings
from slicekeeper.errors import NotFound, Unavailable
from slicekeeper.kube.client import CONFIG_MAPS, KubeClient, Object, Resource

NAME = "slicekeeper"


class Client(KubeClient):
    """A client of an API server that has webhook configurations, which the simulator's has not."""

    def __init__(self, *hooks: int) -> None:
        kinds = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
        self.found: dict[str, dict[str, Any]] = {
            kind: {"metadata": {"name": NAME}, "webhooks": [{"clientConfig": {}} for _ in range(count)]}
            for kind, count in zip(kinds, hooks, strict=False)
        }
        if len(hooks) == len(kinds):
            self.found["apiservices"] = {"metadata": {"name": names.API_SERVICE}, "spec": {"version": "v1"}}
        self.patches = 0

    def get(self, resource: Resource, name: str, namespace: str = "") -> Object:
        if resource.plural not in self.found or name != self.found[resource.plural]["metadata"]["name"]:
            raise NotFound(f"{resource.plural} {name}")
        return deepcopy(self.found[resource.plural])

    def patch(self, resource: Resource, name: str, patch: Any, *_: Any, **__: Any) -> Object:
        self.patches += 1
        for operation in patch:
            *places, last = operation["path"].split("/")[1:]
            found: Any = self.found[resource.plural]
            for place in places:
                found = found[int(place) if place.isdecimal() else place]
            found[last] = operation["value"]
        return {}

    def bundles(self) -> list[str]:
        places = [p for found in self.found.values() for p in found.get("webhooks") or [found["spec"]]]
        return [place.get("clientConfig", place)["caBundle"] for place in places]


@pytest.fixture
def small() -> Iterator[SmallCluster]:
    with small_cluster() as small:
        yield small


def ca(days: float = 1) -> bytes:
    return make_ca(datetime.now(UTC), timedelta(days=days)).certificate


def test_every_webhook_and_our_api_get_the_bundle_once() -> None:
    client, first, second = Client(1, 2), ca(), ca()
    assert trusted(configurations(client, NAME)) == []
    for _ in range(2):
        trust(client, configurations(client, NAME), first + second)
    assert client.bundles() == [b64encode(first + second).decode()] * 4
    assert client.patches == 3
    assert trusted(configurations(client, NAME)) == [first, second]


def test_a_configuration_that_is_not_there_keeps_no_other_from_it() -> None:
    client, bundle = Client(1), ca()
    trust(client, configurations(client, NAME), bundle)
    assert client.bundles() == [b64encode(bundle).decode()]


def test_who_follows_trusts_all_that_is_named_and_what_was_before_until_it_expires(
    small: SmallCluster, tmp_path: Path
) -> None:
    files = tmp_path / "ca.crt", tmp_path / "webhook.crt"
    client, before, expired, first, second = Client(1, 1), ca(), ca(-1), ca(), ca()
    trust(client, configurations(client, NAME), expired + before)
    publisher = BundlePublisher(small.client, "slicekeeper-system", threading.Event())
    settings = CertificateSettings(ca_files=tuple(map(str, files)))
    follower = Follower(client, Clock(), settings, publisher)
    publisher.start()
    try:
        files[0].write_bytes(second)
        with pytest.raises(Unavailable, match="webhook"):
            follower.keep()
        files[1].write_bytes(first)
        follower.keep()
    finally:
        publisher.stop()
    wanted = second + first + before
    assert client.bundles() == [b64encode(wanted).decode()] * 3
    assert small.client.get(CONFIG_MAPS, names.CA_CONFIG_MAP, NAMESPACE)["data"] == {names.CA_KEY: wanted.decode()}
