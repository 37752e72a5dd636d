# SPDX-License-Identifier: Apache-2.0
"""Whether one container's start waits for another's: the agent's answers to 1, 50 and 200 calls at once.

    .venv/bin/python benchmarks/nodeagent/starts.py

kubelet is played by a second process, which speaks the device plugin's protocol and PodResources over real sockets,
lists 200 pods of two containers each, answers 10 questions at once and 100 a second as kubelet does, and opens each new
CDI specification as a container runtime does. The agent's
seats, files and plugin are the real ones; pods come from memory, so no API server is measured. In the last rows
20, then 100 more containers start whose pods the API server does not show. Prints a Markdown table.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import grpc

from nodeagent.arbiter_client import Arbiter
from nodeagent.device_plugin import SeatPlugin
from nodeagent.host_cdi import Edits
from nodeagent.kubelet_protocol import DEVICE_PLUGIN_SERVICE, plugin, pod_resources
from nodeagent.pod_resources import PodResources
from nodeagent.seat_files import SeatFiles
from nodeagent.seat_store import SeatStore
from nodeagent.seats import Seats
from nodeagent.shares import Shares
from slicekeeper import names
from slicekeeper.config.settings import Resources
from slicekeeper.gpu.inventory import Gpu

RESOURCE: Final = "slicekeeper.io/seat"
PODS: Final = 200
STUCK: Final = 100
SEATS: Final = 512
ROUNDS: Final = 3
SEEN: Final = "seen"
UNSEEN: Final = "unseen"


class Node:
    """The node's GPUs and pods, as driver and API server would show them."""

    def __init__(self) -> None:
        self._gpus = [Gpu(f"GPU-{index}", "A100-SXM4-80GB", 81920) for index in range(8)]
        self._pods = {(SEEN, f"pod-{index}"): self._pod(index) for index in range(PODS)}

    def gpus(self) -> list[Gpu]:
        """Return the GPUs."""
        return self._gpus

    def edits(self, uuids: Sequence[str]) -> Edits:
        """Return what makes GPUs usable."""
        return Edits({"deviceNodes": [{"path": f"/dev/{uuid}"} for uuid in uuids]})

    def all(self) -> list[dict[str, Any]]:
        """Return every pod."""
        return list(self._pods.values())

    def find(self, namespace: str, name: str, seconds: float) -> dict[str, Any] | None:
        """Return a pod; wait `seconds` for one that is not shown."""
        pod = self._pods.get((namespace, name))
        if pod is None:
            time.sleep(seconds)
        return pod

    def ask(self, namespace: str, name: str) -> dict[str, Any] | None:
        """Return a pod as the API server has it."""
        return self._pods.get((namespace, name))

    def _pod(self, index: int) -> dict[str, Any]:
        annotations = {names.BOUND_AT: "2026-01-01T10:00:00.000Z", names.gpu_annotation("train"): f"GPU-{index % 8}"}
        limits = {"tencent.com/vcuda-core": "4", "tencent.com/vcuda-memory": "4"}
        identity = {"namespace": SEEN, "name": f"pod-{index}", "uid": f"uid-{index:04}"}
        return {
            "metadata": {**identity, "annotations": annotations},
            "spec": {"containers": [{"name": "train", "resources": {"limits": limits}}]},
            "status": {"phase": "Pending"},
        }


@contextmanager
def agent(folder: Path) -> Iterator[None]:
    """Serve the device plugin over `folder`; no arbiter runs."""
    node: Any = Node()
    store = SeatStore(folder / "state")
    files = SeatFiles(folder / "cdi", folder / "run", RESOURCE, node)
    shares = Shares(Arbiter(folder / "run"), store, limits=False)
    owners = PodResources(folder / "plugins/pods.sock", RESOURCE).owners
    seats = Seats(store, files, node, node, Resources(), owners, lambda _pod, _why: None, shares)
    served = SeatPlugin(folder / "plugins", RESOURCE, [f"seat-{number:04}" for number in range(SEATS)], seats)
    served.start()
    if not served.registered.wait(30):
        raise SystemExit("the plugin did not register")
    yield
    served.stop()


class Kubelet:
    """kubelet's side, and that of the container runtime, in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._listed = pod_resources.ListPodResourcesResponse()
        for index in range(PODS):
            self._list(SEEN, f"pod-{index}", f"seat-{index:04}")
        for index in range(STUCK):
            self._list(UNSEEN, f"pod-{index}", f"seat-{PODS + index:04}")
        self._servers = [
            self._serve("pods.sock", "v1.PodResourcesLister", "List", self._list_all),
            self._serve("kubelet.sock", "v1beta1.Registration", "Register", self._register),
        ]
        self._target = ""
        self._allowed, self._counted = 10.0, time.monotonic()
        self._counting = threading.Lock()

    def _list_all(self, _request: Any, context: Any) -> Any:
        with self._counting:
            before, self._counted = self._counted, time.monotonic()
            self._allowed = min(10.0, self._allowed + (self._counted - before) * 100)
            if allowed := self._allowed >= 1:
                self._allowed -= 1
        if not allowed:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, "rejected by rate limit")
        return self._listed

    def _list(self, namespace: str, name: str, seat: str) -> None:
        pod = self._listed.pod_resources.add(namespace=namespace, name=name)
        pod.containers.add(name="train").devices.add(resource_name=RESOURCE, device_ids=[seat])
        pod.containers.add(name="beside")

    def _serve(self, name: str, service: str, method: str, answer: Any) -> grpc.Server:
        asked = {"List": pod_resources.ListPodResourcesRequest, "Register": plugin.RegisterRequest}[method]
        handler: Any = grpc.unary_unary_rpc_method_handler(answer, asked.FromString, lambda m: m.SerializeToString())
        server = grpc.server(ThreadPoolExecutor(8))
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, {method: handler}),))
        server.add_insecure_port(f"unix://{self._folder}/plugins/{name}")
        server.start()
        return server

    def _register(self, request: Any, _context: Any) -> Any:
        self._target = f"unix://{self._folder}/plugins/{request.endpoint}"
        self._channel = grpc.insecure_channel(self._target)
        threading.Thread(target=self._follow, daemon=True).start()
        return plugin.Empty()

    def _follow(self) -> None:
        stub: Any = self._channel.unary_stream(
            f"/{DEVICE_PLUGIN_SERVICE}/ListAndWatch", lambda m: m.SerializeToString()
        )
        for _ in stub(plugin.Empty()):
            pass

    def run(self) -> None:
        """Read orders from standard input, one a line; answer each with a line of what the calls took, in seconds."""
        threading.Thread(target=self._read_specs, daemon=True).start()
        for line in sys.stdin:
            count, stuck = map(int, line.split())
            print(json.dumps(self._round(count, stuck)), flush=True)

    def _round(self, count: int, stuck: int) -> list[float]:
        """Allocate seats in turn, as kubelet does, and start their containers at once, behind those that are stuck."""
        for index in [*range(count), *range(PODS, PODS + stuck)]:
            container = plugin.ContainerAllocateRequest(devices_ids=[f"seat-{index:04}"])
            self._call("Allocate", plugin.AllocateRequest(container_requests=[container])).result()
        behind = [self._start(PODS + index) for index in range(stuck)]
        time.sleep(0.5 if stuck else 0.0)
        took: dict[int, float] = {}
        done = threading.Semaphore(0)
        began: dict[int, float] = {}

        def end(index: int) -> None:
            took[index] = time.monotonic() - began[index]
            done.release()

        calls = []
        for index in range(count):
            began[index] = time.monotonic()
            calls.append(self._start(index))
            calls[-1].add_done_callback(lambda _call, index=index: end(index))
        for _ in calls:
            done.acquire()
        for call in calls:
            call.result()
        for call in behind:
            call.exception()
        return list(took.values())

    def _start(self, index: int) -> Any:
        return self._call("PreStartContainer", plugin.PreStartContainerRequest(devices_ids=[f"seat-{index:04}"]))

    def _call(self, method: str, request: Any) -> Any:
        stub: Any = self._channel.unary_unary(f"/{DEVICE_PLUGIN_SERVICE}/{method}", lambda m: m.SerializeToString())
        return stub.future(request, timeout=120)

    def _read_specs(self) -> None:
        read: set[str] = set()
        while True:
            with os.scandir(self._folder / "cdi") as entries:
                new = {entry.name for entry in entries if entry.name.endswith(".json")} - read
            for name in new:
                (self._folder / "cdi" / name).read_bytes()
            read |= new
            time.sleep(0.005)


def main() -> None:
    """Measure, and print what came out."""
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for name in ("plugins", "cdi", "run", "state"):
            (folder / name).mkdir()
        command = [sys.executable, __file__, "--kubelet", made]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as kubelet:
            assert kubelet.stdin is not None
            assert kubelet.stdout is not None
            with agent(folder):
                print("| containers at once | beside starts that hang | median, ms | p99, ms | all, ms | all ÷ count |")
                print("|--:|--:|--:|--:|--:|--:|")
                for count, stuck in ((1, 0), (50, 0), (200, 0), (1, 20), (1, 100)):
                    took = []
                    for _ in range(ROUNDS if not stuck else 1):
                        kubelet.stdin.write(f"{count} {stuck}\n")
                        kubelet.stdin.flush()
                        took.append([seconds * 1000 for seconds in json.loads(kubelet.stdout.readline())])
                    every = sorted(value for one in took for value in one)
                    longest = statistics.median(max(one) for one in took)
                    p99 = every[min(len(every) - 1, len(every) * 99 // 100)]
                    print(
                        f"| {count} | {stuck} | {statistics.median(every):.0f} | {p99:.0f} | {longest:.0f} "
                        f"| {longest / count:.1f} |",
                        flush=True,
                    )
            kubelet.stdin.close()


if __name__ == "__main__":
    if sys.argv[1:2] == ["--kubelet"]:
        Kubelet(Path(sys.argv[2])).run()
    else:
        main()
