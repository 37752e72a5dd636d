# SPDX-License-Identifier: Apache-2.0
"""How long kube-scheduler waits for the extender: `place`, or filter and prioritize, beside a bare view.

    .venv/bin/python benchmarks/scheduler/run.py [--rounds 300] [--nodes 1000,5000]

Both run as `slicekeeper.net.serving` runs a server, with one worker. The scheduler lists and watches a simulated API
server with N nodes of 8 GPUs, 70 % of them given out, and 16 pods that wait for more than is free anywhere. Pods of
four shapes come one after the other over one keep-alive connection, as kube-scheduler calls: `place` and bind, or
filter, prioritize and bind. A pod that has the shape of the two before it is counted as alike. The bare view echoes all
bodies but those of bind. The API server is a process of its own, as a real one is. Prints a Markdown table, and what
memory the scheduler takes.
"""

from __future__ import annotations

import argparse
import http.client
import multiprocessing
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import orjson

from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.settings import KubernetesSettings
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NAMESPACES, NODES, PODS, KubeClient

GPUS = 8
GPU_MIB = 81_920
SHAPES = (70, 30, 100, 10)
WAITING = 16
WARM = 20
"""Rounds that are not counted."""
BARE = """
import orjson, sys
from flask import Flask, Response, request
from slicekeeper.net.serving.process import (serve)
from slicekeeper.net.serving.wsgi import (WsgiBridge)
from slicekeeper.config.settings import (ServingSettings)

def make():
    app = Flask("bare")

    @app.post("/echo")
    def echo():
        return Response(orjson.dumps(orjson.loads(request.get_data())), mimetype="application/json")

    return app

serve(
    lambda: WsgiBridge(make(), threads=8, max_body_bytes=32 << 20), bind=sys.argv[1], limits=ServingSettings()
)
"""


def node(n: int) -> dict[str, Any]:
    """Return a node of 8 GPUs."""
    gpus = [inventory.Gpu(f"GPU-{n:05}-{g}", "NVIDIA A100-SXM4-80GB", GPU_MIB) for g in range(GPUS)]
    return {"metadata": {"name": f"node-{n:05}", "annotations": {names.NODE_GPUS: inventory.encode(gpus)}}}


def pod(name: str, core: int, node: str = "", gpu: str = "") -> dict[str, Any]:
    """Return an admitted pod of about the size that real ones have."""
    annotations = {names.BUDGET_STATE: names.IN_BUDGET, **({names.gpu_annotation("main"): gpu} if gpu else {})}
    return {
        "metadata": {
            "name": name,
            "namespace": "team",
            "uid": f"uid-{name}",
            "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
            "annotations": annotations,
        },
        "spec": {
            "containers": [
                {
                    "name": "main",
                    "image": "registry.example/train:1.0",
                    "command": ["python", "train.py"],
                    "env": [{"name": f"OPTION_{i}", "value": "x" * 40} for i in range(20)],
                    "resources": {
                        "limits": {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": "20"},
                        "requests": {"cpu": "4", "memory": "16Gi"},
                    },
                }
            ],
            "schedulerName": "slicekeeper-scheduler",
            **({"nodeName": node} if node else {}),
        },
        "status": {"phase": "Running" if node else "Pending"},
    }


def fill(cluster: Cluster, count: int) -> None:
    """Make `count` nodes of which 70 % are given out: one GPU of each is idle, four shared, three whole."""
    store = cluster.store
    held = [(0, 60), (0, 20), (1, 60), (2, 60), (3, 60), (4, 100), (5, 100), (6, 100)]
    for n in range(count):
        store.create(NODES, {**node(n), "status": {"allocatable": {"cpu": "96", "memory": "384Gi"}}})
        for index, (g, core) in enumerate(held):
            store.create(PODS, pod(f"held-{n}-{index}", core, f"node-{n:05}", f"GPU-{n:05}-{g}"), "team")
    for n in range(WAITING):
        store.create(PODS, pod(f"waits-{n}", 800), "team")


def start(argv: list[str], port: int, path: str) -> subprocess.Popen[bytes]:
    """Start a server and wait until it is ready."""
    process = subprocess.Popen(argv, stderr=subprocess.DEVNULL, start_new_session=True)
    while True:
        try:
            if call(connect(port), "GET", path, b"")[0] < 500:
                return process
        except OSError:
            pass
        time.sleep(0.1)


def connect(port: int) -> http.client.HTTPConnection:
    """Open a connection as Go's client does: without waiting to fill packets."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.connect()
    connection.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def call(connection: http.client.HTTPConnection, method: str, path: str, body: bytes) -> tuple[int, bytes]:
    """Send one request, return status and body."""
    connection.request(method, path, body)
    answer = connection.getresponse()
    return answer.status, answer.read()


def free_port() -> int:
    """Return a port on which no process listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def percentile(values: list[float], part: float) -> float:
    """Return a percentile by the nearest rank."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def serve_api(count: int, outside: Connection) -> None:
    """Be the API server of a cluster that is filled, until something comes."""
    cluster = Cluster(Clock())
    for namespace in ("team", "slicekeeper-system"):
        cluster.store.create(NAMESPACES, {"metadata": {"name": namespace}})
    fill(cluster, count)
    server = ApiServer(Api(cluster))
    server.start()
    outside.send(server.url)
    outside.recv()
    server.stop()


def measure(count: int, rounds: int) -> None:
    """Print the table's rows for one number of nodes."""
    api, inside = multiprocessing.Pipe()
    beside = multiprocessing.get_context("fork").Process(target=serve_api, args=(count, inside))
    beside.start()
    url = api.recv()
    ours, bare = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(
            f"kubernetes: {{server: '{url}'}}\nscheduler: {{bind: '127.0.0.1:{ours}'}}\nlog: {{level: warning}}\n"
        )
        command = [sys.executable, "-c", "from slicekeeper.cli.main import main; main()", "--config", str(config)]
        processes = [
            start([*command, "scheduler", "serve"], ours, "/readyz"),
            start([sys.executable, "-c", BARE, f"127.0.0.1:{bare}"], bare, "/"),
        ]
        try:
            rows = time_calls(count, rounds, url, connect(ours), connect(bare))
            memory = resident(processes[0].pid)
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
            api.send(None)
            beside.join()
    for verb, mine, echo in rows:
        half, most = percentile(mine, 0.5), percentile(mine, 0.99)
        beside = "| | | |"
        if echo:
            base, top = percentile(echo, 0.5), percentile(echo, 0.99)
            beside = f"| {base:.2f} | {top:.2f} | {half / base:.1f} |"
        print(f"| {count:,} | {verb} | {half:.2f} | {most:.2f} {beside}")
    print(f"| {count:,} | memory | {memory} MB | | | | |", flush=True)


def resident(parent: int) -> int:
    """Return the resident memory of the largest process of a server, in MB."""
    found = [0]
    for status in Path("/proc").glob("[0-9]*/status"):
        try:
            fields = dict(line.split(":\t", 1) for line in status.read_text().splitlines() if ":\t" in line)
        except OSError:
            continue
        if int(fields["NSpgid"].split()[0]) == parent and "VmRSS" in fields:
            found.append(int(fields["VmRSS"].split()[0]) // 1024)
    return max(found)


class Caller:
    """Calls ours and the bare view as kube-scheduler does, and keeps how many milliseconds each call took."""

    def __init__(
        self, client: KubeClient, count: int, ours: http.client.HTTPConnection, bare: http.client.HTTPConnection
    ) -> None:
        """`count` is the number of nodes."""
        self._client, self._ours, self._bare = client, ours, bare
        self._every, self._chance, self._made = [f"node-{n:05}" for n in range(count)], random.Random(0), 0
        self.taken: dict[str, tuple[list[float], list[float]]] = {
            row: ([], []) for row in ("place", "place, alike", "filter", "prioritize", "both", "bind")
        }

    def ask(self, core: int, *rows: tuple[str, str]) -> None:
        """Have a new pod placed by calls of some verbs, each counted in a row, and bind it."""
        self._made += 1
        asked = self._client.create(PODS, pod(f"p{self._made}", core), "team")
        # kube-scheduler lists them as its threads are done.
        nodes, spent, best = self._chance.sample(self._every, len(self._every)), [0.0, 0.0], ""
        for row, verb in rows:
            body = orjson.dumps({"Pod": asked, "Nodes": None, "NodeNames": nodes})
            mine, answer = self._timed(self._ours, f"/{verb}", body)
            echo, _ = self._timed(self._bare, "/echo", body)
            self._count(row, mine, echo)
            spent = [spent[0] + mine, spent[1] + echo]
            if verb == "prioritize":
                best = max(answer, key=lambda entry: entry["Score"])["Host"]
            else:
                nodes = answer["NodeNames"]
                best = nodes[0]
        if len(rows) > 1:
            self._count("both", *spent)
        metadata = asked["metadata"]
        binding = {"PodName": metadata["name"], "PodNamespace": "team", "PodUID": metadata["uid"], "Node": best}
        mine, answer = self._timed(self._ours, "/bind", orjson.dumps(binding))
        assert not answer["Error"], answer
        self.taken["bind"][0].append(mine)

    def _count(self, row: str, mine: float, echo: float) -> None:
        self.taken[row][0].append(mine)
        self.taken[row][1].append(echo)

    def _timed(self, connection: http.client.HTTPConnection, path: str, body: bytes) -> tuple[float, Any]:
        begin = time.perf_counter()
        status, answer = call(connection, "POST", path, body)
        spent = (time.perf_counter() - begin) * 1000
        assert status == 200, answer
        return spent, orjson.loads(answer)


def time_calls(
    count: int, rounds: int, url: str, ours: http.client.HTTPConnection, bare: http.client.HTTPConnection
) -> list[tuple[str, list[float], list[float]]]:
    """Return milliseconds per call, ours and the bare view's."""
    caller = Caller(KubeClient(KubernetesSettings(server=url)), count, ours, bare)
    time.sleep(5)  # the policy learns from what is there
    for turn in range(rounds + WARM):
        if turn == WARM:
            for mine, echo in caller.taken.values():
                mine.clear()
                echo.clear()
        core = SHAPES[turn % len(SHAPES)]
        caller.ask(core, ("filter", "filter"), ("prioritize", "prioritize"))
        core = SHAPES[(turn + 1) % len(SHAPES)]
        for row in ("place", "place", "place, alike"):
            caller.ask(core, (row, "place"))
    return [(row, mine, echo) for row, (mine, echo) in caller.taken.items()]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--nodes", default="1000,5000", help="too few are full before the last round")
    options = parser.parse_args()
    print("| nodes | call | p50 ms | p99 ms | bare p50 ms | bare p99 ms | p50 ratio |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for count in map(int, options.nodes.split(",")):
        measure(count, options.rounds)


if __name__ == "__main__":
    main()
