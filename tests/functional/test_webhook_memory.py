# SPDX-License-Identifier: Apache-2.0
"""The webhook under attack within a limit of memory: its workers live, and reviews are answered meanwhile."""

import contextlib
import http.client
import resource
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.control_group import ControlGroup, control_group, memory_limit
from support.webhook_process import Authority, FakeTimekeeper, Webhook, pod

MEMORY_BYTES = 384 << 20
CONNECTIONS = 1200
HEAD = b'{"apiVersion":"admission.k8s.io/v1","kind":"AdmissionReview","request":{"uid":"u","x":['
BODIES = {
    "lists": (b"[],", 1_400_000),
    "maps": (b'{"a":0},', 1_400_000),
    "as complex as may be": (b'{"name":"VARIABLE","value":"xxxxxxxxxxxxxxxxxxxxxxxx"},', 9 << 20),
    "too complex": (b"[],", 3 << 20),
    "wide text": (('"' + "\N{GRINNING FACE}" * 1000 + '",').encode(), 15 << 20),
}


@pytest.fixture(scope="module")
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 256
    if hard != resource.RLIM_INFINITY and hard < wanted:
        pytest.skip(f"this process may open {hard} files, and {wanted} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def group() -> Iterator[ControlGroup]:
    with control_group(memory_limit(MEMORY_BYTES)) as group:
        yield group


@pytest.fixture
def webhook(tmp_path: Path, group: ControlGroup, many_files: None) -> Iterator[Webhook]:
    timekeeper = FakeTimekeeper()
    timekeeper.start()
    Authority(tmp_path).issue()
    (tmp_path / "policy.yaml").write_text("default: {}\n", "utf-8")
    server = Webhook(tmp_path, timekeeper.client)
    group.add(server.process.pid)  # at once: what it starts belongs to the group, too, and ends with it
    try:
        server.wait_until_ready()
        yield server
    finally:
        server.stop()
        timekeeper.stop()


def test_crowds_of_connections_end_no_worker(webhook: Webhook, group: ControlGroup) -> None:
    workers = sorted(webhook.workers())
    with contextlib.ExitStack() as stack:
        crowd = []
        for number in range(CONNECTIONS):
            with contextlib.suppress(OSError):
                raw = stack.enter_context(socket.socket())
                raw.settimeout(20)
                raw.bind((f"127.0.1.{1 + number % 8}", 0))
                raw.connect(("127.0.0.1", webhook.port))
                crowd.append(stack.enter_context(webhook.context.wrap_socket(raw, server_hostname="127.0.0.1")))
            if number % 200 == 0:
                assert webhook.review("/mutate", pod())["allowed"]
        for stream in crowd:
            stream.settimeout(0.2)
            with contextlib.suppress(OSError):
                stream.sendall(b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n" + b"x" * 60_000)
        assert webhook.review("/mutate", pod())["allowed"]
        unread = b"GET /nothing HTTP/1.1\r\nHost: x\r\n\r\n" * 1000
        for stream in crowd:
            with contextlib.suppress(OSError):
                stream.sendall(unread)
        assert webhook.review("/mutate", pod())["allowed"]
    assert (group.kills, sorted(webhook.workers())) == (0, workers), f"{group.peak_bytes >> 20} MiB at most"


@pytest.mark.parametrize("kind", BODIES)
def test_crowds_of_large_reviews_end_no_worker(webhook: Webhook, group: ControlGroup, kind: str) -> None:
    workers = sorted(webhook.workers())
    piece, size = BODIES[kind]
    body = HEAD + piece * (size // len(piece)) + b"0]}}"
    answers: list[int] = []

    def send() -> None:
        with contextlib.suppress(OSError, http.client.HTTPException), contextlib.closing(webhook.connect()) as one:
            one.request("POST", "/mutate", body)
            answers.append(one.getresponse().status)

    senders = [threading.Thread(target=send) for _ in range(20)]
    for sender in senders:
        sender.start()
    while any(sender.is_alive() for sender in senders):
        assert webhook.review("/mutate", pod())["allowed"]
        time.sleep(0.05)
    assert set(answers) <= {200, 408, 413, 503}
    print(f"{kind}: {group.peak_bytes >> 20} MiB at most")
    assert (group.kills, sorted(webhook.workers())) == (0, workers), f"{group.peak_bytes >> 20} MiB at most"
