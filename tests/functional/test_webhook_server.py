# SPDX-License-Identifier: Apache-2.0
"""The webhook as it is deployed: its own process, gunicorn over TLS, a timekeeper beside it that can be killed."""

import contextlib
import http.client
import json
import os
import signal
import socket
import threading
from base64 import b64decode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.custom_objects import apply_policy, policies_served
from support.json_patch import apply
from support.waiting import wait_for
from support.webhook_process import Authority, FakeTimekeeper, Webhook, patch, pod, replace, review

from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from slicekeeper.clock import Clock
from slicekeeper.kube.policy_watch import GPU_POLICIES


@pytest.fixture
def timekeeper() -> Iterator[FakeTimekeeper]:
    server = FakeTimekeeper()
    server.start()
    yield server
    server.stop()


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    issuer = Authority(tmp_path)
    issuer.issue()
    return issuer


@pytest.fixture
def webhook(
    tmp_path: Path, timekeeper: FakeTimekeeper, authority: Authority, request: pytest.FixtureRequest
) -> Iterator[Webhook]:
    """Run one, with the settings that a test may give as this fixture's parameter."""
    (tmp_path / "policy.yaml").write_text("default: {}\n", "utf-8")
    server = Webhook(tmp_path, timekeeper.client, **getattr(request, "param", {}))
    try:
        server.wait_until_ready()
        yield server
    finally:
        if server.process.poll() is None:
            assert server.stop() == 0
            ends = [line for line in server.log() if line["message"].startswith("Worker exiting")]  # and all is JSON
            assert len(ends) == len({line["message"] for line in ends})


def test_a_pod_is_mutated_and_then_validated_by_any_worker(webhook: Webhook) -> None:
    for _ in range(8):
        response = webhook.review("/mutate", pod())
        assert response["allowed"]
        assert patch(response)["/spec/priorityClassName"] == "gpu-default-priority"
        assert not webhook.review("/mutate", pod(150))["allowed"]


def test_certificates_rotate_under_load_without_a_failed_review(webhook: Webhook, authority: Authority) -> None:
    stop = threading.Event()
    answered: list[int] = []
    failed: list[BaseException] = []

    def work(keep: bool) -> None:
        count = 0
        connection = webhook.connect()
        try:
            while not stop.is_set():
                assert webhook.review("/mutate", pod(), connection if keep else None)["allowed"]
                count += 1
        except BaseException as error:  # reported by the main thread
            failed.append(error)
        finally:
            connection.close()
            answered.append(count)

    threads = [threading.Thread(target=work, args=(keep,)) for keep in (True, True, False, False)]
    for thread in threads:
        thread.start()
    serials = set()
    for _ in range(6):
        serial = authority.issue()
        webhook.settled(lambda wanted=serial: webhook.serial() == wanted)  # type: ignore[misc]
        serials.add(serial)
    stop.set()
    for thread in threads:
        thread.join()
    assert not failed
    assert len(serials) == 6
    assert min(answered) > 0


def test_a_certificate_that_does_not_fit_its_key_leaves_the_old_one(webhook: Webhook, authority: Authority) -> None:
    before = webhook.serial()
    replace(authority.folder / "tls.crt", b"no certificate")
    assert webhook.serial() == before
    assert webhook.review("/mutate", pod())["allowed"]
    after = authority.issue()
    webhook.settled(lambda: webhook.serial() == after)


def test_a_policy_change_takes_effect_and_a_broken_one_does_not(webhook: Webhook) -> None:
    file = webhook.folder / "policy.yaml"

    def ceiling() -> str:
        return str(patch(webhook.review("/mutate", pod()))["/metadata/annotations"]["tencent.com/vcuda-core-limit"])

    replace(file, b"default: {ceiling: 70}\n")
    webhook.settled(lambda: ceiling() == "70")
    replace(file, b"default: {ceilling: 60}\n")
    wait_for(lambda: "did you mean ceiling?" in webhook.get("/readyz"), "what is wrong with the policy")
    wait_for(lambda: "slicekeeper_webhook_policy_file_refused 1.0" in webhook.metrics(), "its metric")
    assert ceiling() == "70"
    assert any("old policy stays in force" in line["message"] for line in webhook.log())
    replace(file, b"default: {ceiling: 60}\n")
    webhook.settled(lambda: ceiling() == "60")
    wait_for(lambda: "slicekeeper_webhook_policy_file_refused 0.0" in webhook.metrics(), "its metric")


@pytest.mark.usefixtures("authority")
def test_gpu_policies_come_before_the_file_in_every_worker(tmp_path: Path, timekeeper: FakeTimekeeper) -> None:
    (tmp_path / "policy.yaml").write_text("namespaces: [{match: research, ceiling: 70}]\n", "utf-8")
    cluster = Cluster(Clock())
    api = ApiServer(Api(cluster))
    with policies_served():
        apply_policy(cluster.store, "research", "research", ceiling=60)
        api.start()
        webhook = Webhook(tmp_path, timekeeper.client, policies=api.url)

        def ceiling() -> str:
            return str(patch(webhook.review("/mutate", pod()))["/metadata/annotations"]["tencent.com/vcuda-core-limit"])

        try:
            webhook.wait_until_ready()
            webhook.settled(lambda: ceiling() == "60")
            apply_policy(cluster.store, "research", "research", ceiling=55)
            webhook.settled(lambda: ceiling() == "55")
            cluster.store.delete(GPU_POLICIES, "research")
            webhook.settled(lambda: ceiling() == "70")
            apply_policy(cluster.store, "research", "resear*", ceiling=50)
            apply_policy(cluster.store, "other", "other", ceiling=10)
            webhook.settled(lambda: "known" in webhook.get("/readyz") and ceiling() == "70")
            replace(tmp_path / "policy.yaml", b"default: {ceiling: 80}\n")
            webhook.settled(lambda: ceiling() == "50")
        finally:
            webhook.stop()
            api.stop()


def admitted(webhook: Webhook) -> dict[str, Any]:
    """Return a pod as it has been mutated."""
    return apply(pod(), json.loads(b64decode(webhook.review("/mutate", pod())["patch"])))


@pytest.mark.parametrize("webhook", [{"flipGraceSeconds": 600}], indirect=True)
def test_a_flip_changes_the_class_and_validate_takes_either(webhook: Webhook, timekeeper: FakeTimekeeper) -> None:
    before = admitted(webhook)
    timekeeper.exhausted = ("research",)
    webhook.settled(lambda: admitted(webhook)["spec"]["priorityClassName"] == "gpu-lower-priority")
    for manifest in (before, admitted(webhook)):
        assert all(webhook.review("/validate", manifest)["allowed"] for _ in range(6))


def test_after_the_grace_the_class_that_a_namespace_no_longer_has_is_refused(
    webhook: Webhook, timekeeper: FakeTimekeeper
) -> None:
    before = admitted(webhook)
    timekeeper.exhausted = ("research",)
    webhook.settled(lambda: admitted(webhook)["spec"]["priorityClassName"] == "gpu-lower-priority")
    webhook.settled(lambda: not webhook.review("/validate", before)["allowed"])
    assert webhook.review("/validate", admitted(webhook))["allowed"]
    timekeeper.exhausted = ()
    webhook.settled(lambda: admitted(webhook)["spec"]["priority"] == 0)
    assert timekeeper.not_modified > 0


def test_stale_modes_while_the_timekeeper_is_away(webhook: Webhook, timekeeper: FakeTimekeeper) -> None:
    timekeeper.exhausted = ("spent",)
    webhook.settled(lambda: not webhook.review("/mutate", pod(), namespace="spent")["allowed"])
    timekeeper.stop()
    webhook.settled(lambda: "currently unknown" in str(webhook.review("/mutate", pod()).get("warnings")))
    wait_for(lambda: "slicekeeper_webhook_decisions_stale 1.0" in webhook.metrics(), "stale decisions")
    assert "stale" in webhook.get("/readyz")
    assert patch(webhook.review("/mutate", pod()))["/spec/priority"] == 0
    for mode, check in {
        "allow-in-budget": lambda answer: patch(answer)["/spec/priority"] == 0,
        "over-budget": lambda answer: patch(answer)["/spec/priority"] == -100,
        "deny": lambda answer: answer.get("status", {}).get("code") == 503,
    }.items():
        replace(webhook.folder / "policy.yaml", f"default: {{stale: {mode}}}\n".encode())
        webhook.settled(lambda wanted=check: wanted(webhook.review("/mutate", pod())))  # type: ignore[misc]
        # A spent budget stays spent, whatever the policy says about unknown budgets.
        refusal = webhook.review("/mutate", pod(), namespace="spent")
        assert not refusal["allowed"]
        assert "when the timekeeper last answered" in refusal["status"]["message"]
    for worker in webhook.workers():
        os.kill(worker, signal.SIGKILL)
    webhook.settled(lambda: _refused(webhook, "spent"))
    timekeeper.exhausted = ()
    timekeeper.start()
    webhook.settled(lambda: webhook.review("/mutate", pod(), namespace="spent")["allowed"])
    wait_for(lambda: "slicekeeper_webhook_decisions_stale 0.0" in webhook.metrics(), "fresh decisions")


def _refused(webhook: Webhook, namespace: str) -> bool:
    with contextlib.suppress(OSError, http.client.HTTPException):
        return "no GPU budget left" in str(webhook.review("/mutate", pod(), namespace=namespace))
    return False


def test_metrics_sum_up_both_workers(webhook: Webhook) -> None:
    for _ in range(20):
        webhook.review("/mutate", pod())
    for _ in range(5):
        webhook.review("/mutate", pod(150))
    for text in (webhook.metrics(), webhook.metrics()):
        assert 'slicekeeper_webhook_reviews_total{endpoint="mutate",outcome="mutated"} 20.0' in text
        assert 'slicekeeper_webhook_reviews_total{endpoint="mutate",outcome="refused"} 5.0' in text
        assert 'slicekeeper_webhook_refusals_total{code="core-not-whole"} 5.0' in text
        assert 'slicekeeper_webhook_review_seconds_count{endpoint="mutate"} 25.0' in text


def test_a_worker_that_dies_comes_back_though_the_policy_is_broken_meanwhile(webhook: Webhook) -> None:
    replace(webhook.folder / "policy.yaml", b"default: {ceilling: 60}\n")
    workers = webhook.workers()
    assert not webhook.review("/mutate", pod(150))["allowed"]
    for worker, how in zip(workers, (signal.SIGKILL, signal.SIGTERM), strict=True):
        os.kill(worker, how)

    def answers() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return bool(webhook.review("/mutate", pod())["allowed"])
        return False

    webhook.settled(answers)
    assert webhook.process.poll() is None

    def counted() -> bool:
        with contextlib.suppress(OSError, http.client.HTTPException):
            return 'slicekeeper_webhook_refusals_total{code="core-not-whole"} 1.0' in webhook.metrics()
        return False

    wait_for(counted, "the count")  # what the first workers counted is still there


def test_connections_on_which_nothing_comes_keep_nobody_waiting(webhook: Webhook) -> None:
    """As the API server opens them ahead of need: more than there are threads."""
    with contextlib.ExitStack() as stack:
        silent = [stack.enter_context(webhook.stream()) for _ in range(40)]
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", webhook.port), 20))
        for _ in range(8):
            assert webhook.review("/mutate", pod())["allowed"]
        silent[0].sendall(b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n")
        assert silent[0].recv(1024).startswith(b"HTTP/1.1 200")


def test_bodies_cut_off_on_the_wire_harm_nobody(webhook: Webhook) -> None:
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: 1000\r\n\r\n{"
    for _ in range(20):
        with webhook.stream() as stream:
            stream.sendall(head)
    with socket.create_connection(("127.0.0.1", webhook.port), 20) as raw:
        raw.sendall(b"GET / HTTP/1.1\r\n\r\n")  # plain text on a TLS port
    assert webhook.review("/mutate", pod())["allowed"]
    assert not [line for line in webhook.log() if line["level"] == "ERROR"]


def test_a_body_above_the_limit_is_refused_and_not_read(webhook: Webhook) -> None:
    """With a length and in chunks; the client learns of it though it has sent only a part."""
    piece = b"0" * (1 << 20)
    chunk = b"%x\r\n%s\r\n" % (len(piece), piece)
    start = b"POST /mutate HTTP/1.1\r\nHost: x\r\n"
    whole = {
        b"Content-Length: %d\r\n\r\n" % ((16 << 20) + 1): 0,
        b"Transfer-Encoding: chunked\r\n\r\n": 17,
    }
    for head, chunks in whole.items():
        with webhook.stream() as stream:
            stream.sendall(start + head)
            for _ in range(chunks):
                stream.sendall(chunk)
            answer = http.client.HTTPResponse(stream)
            answer.begin()
            assert (answer.status, answer.headers["Content-Type"]) == (413, "application/problem+json")
            assert json.loads(answer.read())["code"] == "request-entity-too-large"
            assert stream.recv(1) == b""  # what else comes is no request
    assert webhook.review("/mutate", pod())["allowed"]


def test_a_large_review_in_chunks_is_judged(webhook: Webhook) -> None:
    manifest = pod()
    manifest["spec"]["containers"][0]["env"] = [{"name": f"V{n}", "value": "x" * 80} for n in range(10_000)]
    body = json.dumps(review(manifest)).encode()
    with contextlib.closing(webhook.connect()) as connection:
        for _ in range(2):  # the connection stays
            pieces = (body[at : at + 100_000] for at in range(0, len(body), 100_000))
            connection.request("POST", "/mutate", pieces, {"Transfer-Encoding": "chunked"}, encode_chunked=True)
            assert json.loads(connection.getresponse().read())["response"]["allowed"]


PATIENT = """
import functools
from slicekeeper.net.serving import process
from webhook import commands
commands.PATIENCE_SECONDS = process.DRAIN_SECONDS = 60
process.serve = functools.partial(process.serve, graceful_timeout=60)
"""
"""The server still waits for its clients when a busy machine keeps them from sending for a while."""


@pytest.mark.parametrize("webhook", [{"first": PATIENT}], indirect=True)
def test_what_has_begun_is_finished_when_the_server_is_to_stop(webhook: Webhook) -> None:
    body = json.dumps(review(pod())).encode()
    head = b"POST /mutate HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n" % len(body)
    idle = webhook.connect()
    assert webhook.review("/mutate", pod(), idle)["allowed"]
    with webhook.stream() as begun, contextlib.closing(idle), socket.socket() as half:
        begun.sendall(head + body[:10])
        half.connect(("127.0.0.1", webhook.port))
        assert webhook.review("/mutate", pod())["allowed"]
        webhook.process.send_signal(signal.SIGTERM)
        wait_for(lambda: not _listens(webhook.port), "the end of its port")
        begun.sendall(body[10:])
        answers = [http.client.HTTPResponse(begun)]
        answers[0].begin()
        idle.request("POST", "/mutate", body)
        answers.append(idle.getresponse())
        with webhook.context.wrap_socket(half, server_hostname="127.0.0.1") as late:
            late.sendall(head + body)
            answers.append(http.client.HTTPResponse(late))
            answers[2].begin()
        for answer in answers:
            assert (answer.status, answer.headers["Connection"]) == (200, "close")
            assert json.loads(answer.read())["response"]["allowed"]
    assert webhook.process.wait(60) == 0


def _listens(port: int) -> bool:
    with contextlib.suppress(ConnectionRefusedError), socket.create_connection(("127.0.0.1", port), 20):
        return True
    return False
