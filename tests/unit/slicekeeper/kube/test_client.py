# SPDX-License-Identifier: Apache-2.0
"""The API client and the watch against a real HTTP server whose answers a test scripts."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.quiet_handler import QuietHandler

from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.errors import Conflict, Forbidden, Gone, NotFound, ServiceError, SettingsError, Unavailable
from slicekeeper.kube.client import PODS, KubeClient, Object, in_cluster
from slicekeeper.kube.watch import Watch


class Script:
    """Answers by path: a list of (status, body) taken in turn, the last one again and again."""

    def __init__(self) -> None:
        self.answers: dict[str, list[tuple[int, Any]]] = {}
        self.seen: list[tuple[str, str, dict[str, str], bytes]] = []
        script = self

        class Handler(QuietHandler):
            protocol_version = "HTTP/1.1"

            def handle_any(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                script.seen.append((self.command, self.path, dict(self.headers), body))
                kind = "watch" if "watch=1" in self.path else self.path.partition("?")[0]
                queue = script.answers.get(kind, [(404, {"message": "no such path", "reason": "NotFound"})])
                status, answer = queue.pop(0) if len(queue) > 1 else queue[0]
                if callable(answer):
                    answer(self)
                    return
                self.send(answer if isinstance(answer, bytes) else json.dumps(answer).encode(), status)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = handle_any

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture
def script() -> Iterator[Script]:
    made = Script()
    yield made
    made.server.shutdown()
    made.server.server_close()


@pytest.fixture
def client(script: Script) -> Iterator[KubeClient]:
    made = KubeClient(KubernetesSettings(server=script.url, timeout_seconds=60))
    yield made
    made.close()


def stream(*events: tuple[str, Object], then_break: bool = False) -> Any:
    """Return an answer that sends watch events in chunks."""

    def send(handler: BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        for kind, obj in events:
            line = json.dumps({"type": kind, "object": obj}).encode() + b"\n"
            for part in (line[:7], line[7:]):
                handler.wfile.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
                handler.wfile.flush()
        if then_break:
            handler.close_connection = True
            return
        handler.wfile.write(b"0\r\n\r\n")

    return send


def pod(name: str, version: str) -> Object:
    return {"metadata": {"name": name, "resourceVersion": version}}


def test_find_returns_the_object_of_a_uid_and_none_if_there_is_none(script: Script, client: KubeClient) -> None:
    script.answers["/api/v1/namespaces/team/pods/a"] = [(200, {"metadata": {"uid": "one"}})]
    assert client.find(PODS, "a", "team") == client.find(PODS, "a", "team", uid="one") == {"metadata": {"uid": "one"}}
    assert client.find(PODS, "a", "team", uid="other") is None
    assert client.find(PODS, "b", "team") is None
    script.answers["/api/v1/namespaces/team/pods/b"] = [(403, {"message": "no"})]
    with pytest.raises(Forbidden):
        client.find(PODS, "b", "team")


def test_list_follows_pages(script: Script, client: KubeClient) -> None:
    script.answers["/api/v1/pods"] = [
        (200, {"items": [pod("a", "1")], "metadata": {"resourceVersion": "5", "continue": "x"}}),
        (200, {"items": [pod("b", "2")], "metadata": {"resourceVersion": "5"}}),
    ]
    objects, version = client.list(PODS, label_selector="a=b")
    assert [o["metadata"]["name"] for o in objects] == ["a", "b"]
    assert version == "5"
    assert "labelSelector=a%3Db" in script.seen[0][1]
    assert "continue=x" in script.seen[1][1]


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (404, NotFound),
        (409, Conflict),
        (410, Gone),
        (403, Forbidden),
        (401, Forbidden),
        (503, Unavailable),
        (429, Unavailable),
        (422, ServiceError),
    ],
)
def test_errors_have_types_and_say_what_the_server_said(
    script: Script, client: KubeClient, status: int, kind: type[ServiceError]
) -> None:
    script.answers["/api/v1/namespaces/n/pods/p"] = [(status, {"message": "because", "reason": "Why"})]
    with pytest.raises(kind, match="because") as caught:
        client.get(PODS, "p", "n")
    assert (caught.value.status, caught.value.reason) == (status, "Why")


def test_names_are_escaped_in_paths(script: Script, client: KubeClient) -> None:
    with pytest.raises(NotFound):
        client.get(PODS, "../secrets/x", "n")
    assert script.seen[0][1] == "/api/v1/namespaces/n/pods/..%2Fsecrets%2Fx"


def test_answer_that_is_not_json_is_unavailable(script: Script, client: KubeClient) -> None:
    script.answers["/api/v1/namespaces/n/pods/p"] = [(200, b"<html>")]
    with pytest.raises(Unavailable, match="not JSON"):
        client.get(PODS, "p", "n")


def test_no_server_is_unavailable() -> None:
    client = KubeClient(KubernetesSettings(server="http://127.0.0.1:9"))
    with pytest.raises(Unavailable, match="no answer"):
        client.get(PODS, "p", "n")


def test_rotated_token_is_read_again(script: Script, tmp_path: Path) -> None:
    token = tmp_path / "token"
    client = KubeClient(KubernetesSettings(server=script.url, token_file=str(token)))
    script.answers["/api/v1/namespaces/n/pods/p"] = [(200, pod("p", "1"))]
    for text in ("one", "two"):
        token.write_text(text + "\n")
        client.get(PODS, "p", "n")
    client.close()
    assert [seen[2].get("Authorization") for seen in script.seen] == ["Bearer one", "Bearer two"]


def test_delete_only_if_it_is_still_that_one(script: Script, client: KubeClient) -> None:
    script.answers["/api/v1/namespaces/n/pods/p"] = [(200, {})]
    client.delete(PODS, "p", "n", uid="u-1")
    assert json.loads(script.seen[0][3]) == {"preconditions": {"uid": "u-1"}}


def test_in_cluster_settings_and_their_absence() -> None:
    assert in_cluster({"KUBERNETES_SERVICE_HOST": "fd00::1"}).server == "https://[fd00::1]:443"
    with pytest.raises(SettingsError, match="kubernetes.server is empty"):
        in_cluster({})


class Recorder:
    """A handler that keeps the names it knows and can be told to fail once."""

    def __init__(self) -> None:
        self.names: set[str] = set()
        self.lists = 0
        self.fail_once = False
        self.done = threading.Event()
        self.until = "last"

    def on_list(self, objects: list[Object]) -> None:
        self.lists += 1
        self.names = {o["metadata"]["name"] for o in objects}
        self.check()

    def on_event(self, kind: str, obj: Object) -> None:
        if self.fail_once:
            self.fail_once = False
            raise RuntimeError("handler failed")
        name = obj["metadata"]["name"]
        self.names = self.names - {name} if kind == "DELETED" else self.names | {name}
        self.check()

    def check(self) -> None:
        if self.until in self.names:
            self.done.set()


def follow(client: KubeClient, recorder: Recorder, **more: Any) -> Watch:
    watch = Watch(client, PODS, recorder, retry_seconds=0.01, longest_retry_seconds=0.02, **more)
    watch.start()
    assert recorder.done.wait(60)
    watch.stop()
    return watch


def listing(version: str, *names: str) -> tuple[int, Any]:
    return 200, {"items": [pod(name, "1") for name in names], "metadata": {"resourceVersion": version}}


def test_watch_resumes_from_the_last_version_after_a_clean_end(script: Script, client: KubeClient) -> None:
    script.answers["/api/v1/pods"] = [listing("5", "a")]
    script.answers["watch"] = [
        (200, stream(("ADDED", pod("b", "6")), ("BOOKMARK", pod("", "9")))),
        (200, stream(("DELETED", pod("a", "10")), ("ADDED", pod("last", "11")))),
        (200, stream()),
    ]
    recorder = Recorder()
    watch = follow(client, recorder)
    assert recorder.names == {"b", "last"}
    assert recorder.lists == 1
    assert watch.synced.is_set()
    versions = [seen[1] for seen in script.seen if "watch=1" in seen[1]]
    assert "resourceVersion=5" in versions[0]
    assert "resourceVersion=9" in versions[1]


@pytest.mark.parametrize("as_event", [True, False])
def test_watch_lists_again_after_410(script: Script, client: KubeClient, as_event: bool) -> None:
    script.answers["/api/v1/pods"] = [listing("5", "a"), listing("50", "b", "last")]
    gone = {"code": 410, "message": "too old", "metadata": {}}
    script.answers["watch"] = [(200, stream(("ERROR", gone))) if as_event else (410, gone), (200, stream())]
    recorder = Recorder()
    follow(client, recorder)
    assert recorder.names == {"b", "last"}
    assert recorder.lists == 2


def test_watch_lists_again_when_a_handler_failed(script: Script, client: KubeClient) -> None:
    script.answers["/api/v1/pods"] = [listing("5"), listing("7", "b", "last")]
    script.answers["watch"] = [(200, stream(("ADDED", pod("b", "6")))), (200, stream())]
    recorder = Recorder()
    recorder.fail_once = True
    follow(client, recorder)
    assert recorder.names == {"b", "last"}


def test_watch_resumes_after_a_broken_stream_without_listing(script: Script, client: KubeClient) -> None:
    script.answers["/api/v1/pods"] = [listing("5")]
    script.answers["watch"] = [
        (200, stream(("ADDED", pod("a", "6")), then_break=True)),
        (500, {}),
        (200, stream(("ADDED", pod("last", "7")))),
        (200, stream()),
    ]
    recorder = Recorder()
    follow(client, recorder)
    assert recorder.names == {"a", "last"}
    assert recorder.lists == 1
    assert "resourceVersion=6" in [seen[1] for seen in script.seen if "watch=1" in seen[1]][1]


def test_watch_leaves_a_connection_that_has_fallen_silent(script: Script, client: KubeClient) -> None:
    """A server that is frozen, or a connection whose other end is gone, does not end a watch when it should."""
    recorder, ended = Recorder(), threading.Event()

    def freeze_once(handler: BaseHTTPRequestHandler) -> None:
        if "a" in recorder.names:
            stream(("ADDED", pod("last", "7")))(handler)
            return
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        line = json.dumps({"type": "ADDED", "object": pod("a", "6")}).encode() + b"\n"
        handler.wfile.write(f"{len(line):x}\r\n".encode() + line + b"\r\n")
        ended.wait(30)

    script.answers["/api/v1/pods"] = [listing("5")]
    script.answers["watch"] = [(200, freeze_once)]
    try:
        follow(client, recorder, longest_seconds=1, grace_seconds=0.2)
    finally:
        ended.set()
    assert recorder.names == {"a", "last"}
    assert recorder.lists == 1


def test_a_quiet_watch_that_ended_in_order_is_up_again(script: Script, client: KubeClient) -> None:
    """Otherwise one break of a watch on which nothing happens for days would count as long as that."""
    again = threading.Event()

    def end(handler: BaseHTTPRequestHandler) -> None:
        stream()(handler)
        again.set()

    script.answers["/api/v1/pods"] = [listing("5", "last")]
    script.answers["watch"] = [(500, {}), (200, stream()), (200, end)]
    watch = Watch(client, PODS, Recorder(), retry_seconds=0.01, longest_retry_seconds=0.02)
    watch.start()
    assert again.wait(60)
    watch.stop()
    assert watch.failures == 0


def test_watch_waits_out_a_server_that_cannot_list(script: Script, client: KubeClient) -> None:
    script.answers["/api/v1/pods"] = [(500, {}), (503, {}), listing("8", "last")]
    script.answers["watch"] = [(200, stream())]
    recorder = Recorder()
    watch = follow(client, recorder)
    assert watch.failures == 0
