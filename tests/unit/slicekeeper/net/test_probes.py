# SPDX-License-Identifier: Apache-2.0
"""Probes are answered no matter which other clients are connected."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
import urllib3

from slicekeeper.config.settings import ServingSettings
from slicekeeper.net import probes


class World:
    def __init__(self) -> None:
        self.wrong = {"alive": "", "ready": ""}
        self.server = probes.serve(
            "127.0.0.1:0",
            ServingSettings(),
            ready=lambda: self.wrong["ready"],
            alive=lambda: self.wrong["alive"],
            more={"/metrics": lambda _environ, start: (start("200 OK", []) and [b"1"]) or [b"1"]},
        )
        self.address = ("127.0.0.1", self.server.port)

    def get(self, path: str) -> tuple[int, str]:
        answer = urllib3.request("GET", f"http://127.0.0.1:{self.address[1]}{path}", timeout=60, retries=False)
        return answer.status, answer.data.decode().strip()


@pytest.fixture
def world() -> Iterator[World]:
    world = World()
    yield world
    world.server.close()


def test_what_is_wrong_is_told_with_503(world: World) -> None:
    assert world.get("/healthz") == world.get("/readyz") == (200, "200 OK")
    world.wrong["ready"] = "seats not registered"
    assert world.get("/readyz") == (503, "seats not registered")
    assert world.get("/healthz")[0] == 200
    world.wrong["alive"] = "stuck"
    assert world.get("/healthz") == (503, "stuck")
    assert world.get("/metrics") == (200, "1")
    assert world.get("/other")[0] == 404


def test_a_silent_connection_keeps_no_probe_waiting(world: World) -> None:
    with socket.create_connection(world.address), socket.create_connection(world.address) as half:
        half.sendall(b"GET /healthz HTT")
        assert world.get("/healthz")[0] == 200
