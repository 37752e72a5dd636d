# SPDX-License-Identifier: Apache-2.0
"""The last policy file without errors is kept in the cluster, and only if it changed."""

from __future__ import annotations

from pathlib import Path

import pytest

from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings
from slicekeeper.errors import Unavailable
from slicekeeper.kube.client import CONFIG_MAPS
from timekeeper.cluster.accepted_policy import KEY, NAME, AcceptedPolicy

HOME = "slicekeeper-system"


class Objects:
    """An API server's ConfigMaps, which may be away, and the number of writes."""

    def __init__(self) -> None:
        self.found: dict[str, object] | None = None
        self.writes = 0
        self.away = False

    def find(self, resource: object, name: str, namespace: str) -> dict[str, object] | None:
        assert (resource, name, namespace) == (CONFIG_MAPS, NAME, HOME)
        if self.away:
            raise Unavailable("away")
        return self.found

    def create(self, resource: object, body: dict[str, object], namespace: str) -> None:
        assert (resource, namespace, self.found) == (CONFIG_MAPS, HOME, None)
        self.found, self.writes = body, self.writes + 1

    def replace(self, resource: object, body: dict[str, object]) -> None:
        assert resource == CONFIG_MAPS
        self.found, self.writes = body, self.writes + 1

    @property
    def text(self) -> object:
        assert self.found is not None
        return self.found["data"]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "policy.yaml"
    path.write_text("default: {ceiling: 50}")
    return path


def test_a_file_without_errors_is_kept_and_a_broken_one_is_not(file: Path) -> None:
    policy, objects = PolicyFile(PolicySettings(file=str(file))), Objects()
    accepted = AcceptedPolicy(objects, HOME, policy)  # type: ignore[arg-type]
    accepted.keep()
    accepted.keep()
    assert (objects.text, objects.writes) == ({KEY: "default: {ceiling: 50}"}, 1)
    for text, kept, writes in (("default: {ceiling: 500}", 50, 1), ("default: {ceiling: 60}", 60, 2)):
        _rewrite(file, text)
        policy.refresh()
        accepted.keep()
        assert (objects.text, objects.writes) == ({KEY: f"default: {{ceiling: {kept}}}"}, writes)
    AcceptedPolicy(objects, HOME, policy).keep()  # type: ignore[arg-type]
    assert objects.writes == 2, "another leader finds it"


def test_it_is_written_when_the_api_server_is_back(file: Path) -> None:
    objects = Objects()
    accepted = AcceptedPolicy(objects, HOME, PolicyFile(PolicySettings(file=str(file))))  # type: ignore[arg-type]
    objects.away = True
    accepted.keep()
    objects.away = False
    accepted.keep()
    assert objects.writes == 1


def _rewrite(file: Path, text: str) -> None:
    fresh = file.with_name("new")
    fresh.write_text(text)
    fresh.replace(file)
