# SPDX-License-Identifier: Apache-2.0
"""How long kube-scheduler waits for the extender: filter and prioritize, beside a bare view that echoes the request.

    .venv/bin/python benchmarks/scheduler/run.py [--rounds 300] [--nodes 100,1000,5000]

Both run as `slicekeeper.serving` runs a server, with one worker. The scheduler lists and watches a
simulated API server with N nodes of 8 GPUs, half of the GPUs shared at 60 %. One keep-alive connection, one call at a
time, as kube-scheduler calls; ours and the bare one in turn. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import orjson

from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from slicekeeper import inventory, names
from slicekeeper.clock import SystemClock
from slicekeeper.kube.client import NAMESPACES, NODES, PODS

GPUS = 8
GPU_MIB = 81_920
BARE = """
import orjson, sys
from flask import Flask, Response, request
from slicekeeper.serving.process import serve
from slicekeeper.serving.wsgi import WsgiBridge
from slicekeeper.settings import ServingSettings

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


def pod(name: str, core: int, node: str = "", gpu: str = "") -> dict[str, Any]:
    """Return an admitted pod of about the size that real ones have."""
    annotations = {names.BUDGET_STATE: names.IN_BUDGET, **({names.gpu_annotation("main"): gpu} if gpu else {})}
    return {
        "metadata": {"name": name, "namespace": "team", "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
                     "annotations": annotations},
        "spec": {
            "containers": [{
                "name": "main", "image": "registry.example/train:1.0", "command": ["python", "train.py"],
                "env": [{"name": f"OPTION_{i}", "value": "x" * 40} for i in range(20)],
                "resources": {"limits": {"tencent.com/vcuda-core": str(core), "tencent.com/vcuda-memory": "40"}},
            }],
            **({"nodeName": node} if node else {}),
        },
    }  # fmt: skip


def fill(cluster: Cluster, count: int) -> None:
    """Make `count` nodes, half of whose GPUs are shared."""
    store = cluster.store
    for n in range(count):
        gpus = [inventory.Gpu(f"GPU-{n:05}-{g}", "NVIDIA A100-SXM4-80GB", GPU_MIB) for g in range(GPUS)]
        annotations = {names.NODE_GPUS: inventory.encode(gpus)}
        store.create(NODES, {"metadata": {"name": f"node-{n:05}", "annotations": annotations}})
        for g in range(0, GPUS, 2):
            store.create(PODS, pod(f"held-{n}-{g}", 60, f"node-{n:05}", f"GPU-{n:05}-{g}"), "team")


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
    """Return a port that nobody listens on."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def percentile(values: list[float], part: float) -> float:
    """Return a percentile by the nearest rank."""
    return sorted(values)[min(int(len(values) * part), len(values) - 1)]


def measure(count: int, rounds: int) -> None:
    """Print the table's rows for one number of nodes."""
    cluster = Cluster(SystemClock())
    for namespace in ("team", "slicekeeper-system"):
        cluster.store.create(NAMESPACES, {"metadata": {"name": namespace}})
    fill(cluster, count)
    api = ApiServer(Api(cluster))
    api.start()
    ours, bare = free_port(), free_port()
    with tempfile.TemporaryDirectory() as folder:
        config = Path(folder) / "config.yaml"
        config.write_text(
            f"kubernetes: {{server: '{api.url}'}}\nscheduler: {{bind: '127.0.0.1:{ours}'}}\nlog: {{level: warning}}\n"
        )
        command = [sys.executable, "-c", "from slicekeeper.cli.main import main; main()", "--config", str(config)]
        processes = [start([*command, "scheduler", "serve"], ours, "/readyz"),
                     start([sys.executable, "-c", BARE, f"127.0.0.1:{bare}"], bare, "/")]  # fmt: skip
        try:
            rows = time_calls(count, rounds, connect(ours), connect(bare))
        finally:
            for process in processes:
                os.killpg(process.pid, signal.SIGTERM)
                process.wait()
            api.stop()
    for verb, mine, echo in rows:
        half, most = percentile(mine, 0.5), percentile(mine, 0.99)
        base, top = percentile(echo, 0.5), percentile(echo, 0.99)
        print(f"| {count:,} | {verb} | {half:.2f} | {most:.2f} | {base:.2f} | {top:.2f} | {half / base:.1f} |")


def time_calls(
    count: int, rounds: int, ours: http.client.HTTPConnection, bare: http.client.HTTPConnection
) -> list[tuple[str, list[float], list[float]]]:
    """Return milliseconds per call, ours and the bare view's."""
    nodes = [f"node-{n:05}" for n in range(count)]
    taken: dict[str, tuple[list[float], list[float]]] = {"filter": ([], []), "prioritize": ([], [])}
    for turn in range(rounds + 20):
        # 70 % fits on idle GPUs alone: every node fits, and nearly all that could be done is done.
        asked = {**pod(f"p{turn}", 70), "status": {"phase": "Pending"}}
        asked["metadata"]["uid"] = f"uid-{turn % 8}"
        body = orjson.dumps({"Pod": asked, "Nodes": None, "NodeNames": nodes})
        for verb, (mine, echo) in taken.items():
            for connection, path, into in ((ours, f"/{verb}", mine), (bare, "/echo", echo)):
                begin = time.perf_counter()
                status, answer = call(connection, "POST", path, body)
                spent = (time.perf_counter() - begin) * 1000
                assert status == 200, answer
                if turn >= 20:
                    into.append(spent)
            if verb == "filter":
                assert len(orjson.loads(answer)["NodeNames"]) == count
    return [(verb, mine, echo) for verb, (mine, echo) in taken.items()]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--nodes", default="100,1000,5000")
    options = parser.parse_args()
    print("| nodes | call | p50 ms | p99 ms | bare p50 ms | bare p99 ms | p50 ratio |")
    print("| ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for count in map(int, options.nodes.split(",")):
        measure(count, options.rounds)


if __name__ == "__main__":
    main()
