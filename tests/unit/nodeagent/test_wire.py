# SPDX-License-Identifier: Apache-2.0
"""What goes over the sockets to kubelet and to the arbiter, against bytes that were recorded once.

`tests/golden/wire` has them, and how they were made: the other side of each is kubelet's own generated code, with gRPC
for Go, and the real arbiter. Here its frames are played back, so neither is needed, nor root.
"""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from support.waiting import wait_for

from nodeagent.arbiter_client import Arbiter, ArbiterRefused, SeatPolicy
from nodeagent.device_plugin import SOCKET
from nodeagent.kubelet_protocol import REGISTER, VERSION, call, plugin
from nodeagent.pod_resources import PodResources

WIRE = Path(__file__).parents[2] / "golden" / "wire"
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
DATA, HEADERS, SETTINGS = 0, 1, 4
END = 1
"""The flag of a stream's last frame; of SETTINGS: acknowledged."""


class Frame(NamedTuple):
    """One frame of HTTP/2."""

    kind: int
    flags: int
    stream: int
    payload: bytes
    raw: bytes


def frames(data: bytes) -> Iterator[Frame]:
    """Yield the whole frames at the beginning of `data`."""
    data = data.removeprefix(PREFACE)
    while len(data) >= 9 and len(data) >= (size := 9 + int.from_bytes(data[:3])):
        yield Frame(data[3], data[4], int.from_bytes(data[5:9]), data[9:size], data[:size])
        data = data[size:]


def messages(data: bytes) -> list[bytes]:
    """Return the gRPC messages of all streams, none of them compressed."""
    joined, found = b"".join(frame.payload for frame in frames(data) if frame.kind == DATA), []
    while joined:
        size = int.from_bytes(joined[1:5])
        assert joined[0] == 0
        found.append(joined[5 : 5 + size])
        joined = joined[5 + size :]
    return found


def recorded(name: str) -> dict[str, bytes]:
    lines = (WIRE / f"{name}.txt").read_text().splitlines()
    return {who: bytes.fromhex(text) for who, _, text in (line.partition(": ") for line in lines)}


def asked_as_kubelet_does(at: Path, name: str) -> list[bytes]:
    """Play kubelet's side of a call; return the messages of the answer."""
    said = list(frames(recorded(name)["client"]))
    heard = b""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(20)
        connection.connect(str(at))
        first = [frame.raw for frame in said if frame.kind == SETTINGS and not frame.flags & END]
        call = [frame.raw for frame in said if frame.stream and frame.kind in (DATA, HEADERS)]
        connection.sendall(PREFACE + b"".join([*first, *call]))
        while not any(frame.kind == DATA or (frame.stream and frame.flags & END) for frame in frames(heard)):
            part = connection.recv(65536)
            assert part, "it hangs up"
            heard += part
    return messages(heard)


@contextmanager
def answering_as_kubelet_does(at: Path, name: str) -> Iterator[bytearray]:
    """Play kubelet's side of one connection: each stream is answered when it was asked. Yields what was heard."""
    said = list(frames(recorded(name)["server"]))
    heard = bytearray()
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(at))
    listener.listen(1)

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.sendall(b"".join(f.raw for f in said if f.kind == SETTINGS and not f.flags & END))
            answered = {0}
            while part := connection.recv(65536):
                heard.extend(part)
                for asked in {f.stream for f in frames(bytes(heard)) if f.kind == DATA and f.flags & END} - answered:
                    answered.add(asked)
                    connection.sendall(b"".join(f.raw for f in said if f.stream == asked))

    threading.Thread(target=serve, daemon=True).start()
    yield heard
    listener.close()


@pytest.fixture
def socket_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("w") / "kubelet.sock"


@pytest.mark.parametrize("name", ["GetDevicePluginOptions", "ListAndWatch", "Allocate", "PreStartContainer"])
def test_the_plugin_answers_kubelets_bytes(bench: Any, name: str) -> None:
    bench.pods.add("train-x7k2p", gpu=0)
    bench.kubelet.owners = {"seat-0003": [("team", "train-x7k2p", "train")]}
    if name == "PreStartContainer":
        bench.kubelet.allocate("seat-0003")
    answer = asked_as_kubelet_does(bench.folder / "plugins" / SOCKET, name)
    expected = messages(recorded(name)["server"])
    if name == "Allocate":  # its name is never used twice
        [device] = plugin.AllocateResponse.FromString(answer[0]).container_responses[0].cdi_devices
        [before] = plugin.AllocateResponse.FromString(expected[0]).container_responses[0].cdi_devices
        assert device.name.rpartition("-")[0] == before.name.rpartition("-")[0]
        assert len(answer[0]) == len(expected[0])
    else:
        assert answer == expected
    assert (bench.store.get("seat-0003") is not None) == (name in ("Allocate", "PreStartContainer"))


def test_it_registers_as_kubelet_understands(socket_path: Path) -> None:
    request = plugin.RegisterRequest(
        version=VERSION,
        endpoint=SOCKET,
        resource_name="slicekeeper.io/seat",
        options=plugin.DevicePluginOptions(pre_start_required=True),
    )
    with answering_as_kubelet_does(socket_path, "Register") as heard:
        with grpc.insecure_channel(f"unix://{socket_path}") as channel:
            call(channel, REGISTER, request, plugin.Empty)
        assert messages(bytes(heard)) == messages(recorded("Register")["client"])


def test_kubelets_lists_are_read(socket_path: Path) -> None:
    client = PodResources(socket_path, "slicekeeper.io/seat")
    with answering_as_kubelet_does(socket_path, "List") as heard:
        assert client.owners("seat-0003") == [("team", "train-x7k2p", "train")]
        assert messages(bytes(heard)) == messages(recorded("List")["client"])


def test_what_kubelet_has_of_other_plugins_is_read(socket_path: Path) -> None:
    client = PodResources(socket_path, "slicekeeper.io/seat")
    with answering_as_kubelet_does(socket_path, "GetAllocatableResources"):
        assert client.devices(("nvidia.com/gpu",)) == {
            "GPU-8f6e1a52-3b0c-4d9e-a1f7-5c2d90e4b6a8",
            "GPU-11111111-3b0c-4d9e-a1f7-5c2d90e4b6a8::0",
            "GPU-11111111-3b0c-4d9e-a1f7-5c2d90e4b6a8::1",
        }


class Played:
    """The arbiter's side of a recorded conversation: each line that is asked must be the next one."""

    def __init__(self, folder: Path) -> None:
        lines = (WIRE / "arbiter.txt").read_text().splitlines()
        self.pairs = [(lines[i][2:], lines[i + 1][2:]) for i in range(0, len(lines), 2)]
        self.heard: list[str] = []
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "control.sock"))
        self._listener.listen(8)
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with self._listener:
            for _, answer in self.pairs:
                connection, _ = self._listener.accept()
                with connection, connection.makefile("rb") as asked:
                    self.heard.append(asked.readline().decode().rstrip("\n"))
                    connection.sendall(answer.encode() + b"\n")


def test_the_arbiter_is_spoken_to_as_it_was_recorded(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("w")
    played, arbiter = Played(folder), Arbiter(folder)
    policy = SeatPolicy(uuid="", core=40, limit=70, memory=2 << 30, background=False, cgroup="0123456789ab")
    arbiter.set("seat-0003-ab", 1, policy)
    arbiter.follow("gemini")
    told = arbiter.read()
    with pytest.raises(ArbiterRefused, match="gpu"):
        arbiter.set("seat-0004-ab", 7, replace(policy, memory=1, background=True))
    arbiter.drop("seat-0003-ab")
    with pytest.raises(ArbiterRefused, match="no such seat"):
        arbiter.drop("seat-0003-ab")
    assert [json.loads(line) for line in played.heard] == [json.loads(asked) for asked, _ in played.pairs]
    [seat] = told.seats
    assert policy.holds(seat)
    assert (seat.seat, seat.gpu, told.rule, [gpu.gpu for gpu in told.gpus]) == ("seat-0003-ab", 1, "gemini", [0, 1])
    assert [(found.gpu, found.memory, found.how) for found in told.audit] == [(0, 64 << 20, "without the limiter")]


def _shape(told: object) -> object:
    """Return what must not change between two talks: the names and kinds of everything, and every text of ours."""
    if isinstance(told, dict):
        return {key: _shape(value) for key, value in told.items()}
    if isinstance(told, list):
        return [_shape(value) for value in told[:1]]
    return told if isinstance(told, bool) or told in OURS else type(told)


OURS: Any = ("in-budget", "background", "gemini", "no such seat", "gpu names no GPU of this machine")


def test_the_real_arbiter_answers_as_it_was_recorded(arbiter: Any) -> None:
    wait_for(arbiter.read, "the arbiter answers")
    lines = (WIRE / "arbiter.txt").read_text().splitlines()
    for asked, answered in zip(lines[::2], lines[1::2], strict=True):
        with socket.socket(socket.AF_UNIX) as connection, connection.makefile("rb") as answer:
            connection.settimeout(60)
            connection.connect(str(arbiter.folder / "control.sock"))
            connection.sendall(asked[2:].encode() + b"\n")
            now, before = json.loads(answer.readline()), json.loads(answered[2:])
        now.pop("audit", None), before.pop("audit", None)  # no process is on the GPU here
        assert _shape(now) == _shape(before), asked
