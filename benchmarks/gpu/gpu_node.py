# SPDX-License-Identifier: Apache-2.0
"""A machine with a GPU as a node of a cluster, without Kubernetes: for agent_checks.py.

`slicekeeper nodeagent agent` and `slicekeeper nodeagent arbiter` run as on a node, with what `make -C vcuda` built, and
need not be installed. kubelet is played by this process, over the device plugin's and PodResources' sockets, and so are
the API server, over HTTP, and the container runtime: it reads each CDI specification, and starts the container's
program as a process of the machine that has what the specification gives. container_node.py has a real runtime.
"""

from __future__ import annotations

import http.client
import importlib.util
import json
import os
import queue
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

sys.path.extend(str(Path(__file__).resolve().parents[2] / part) for part in ("", "tests", "tests/unit/nodeagent"))

import pynvml
from fake_kubelet import FakeKubelet
from support.ports import free_port
from support.small_cluster import NAMESPACE, SmallCluster

from nodeagent import fake_driver, plain_driver
from nodeagent.arbiter_client import Arbiter, ArbiterAway, ArbiterSeat, Telemetry
from nodeagent.host_cdi import own_files
from nodeagent.seat_files import IN_CONTAINER
from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.gpu import inventory
from slicekeeper.gpu.inventory import Gpu
from slicekeeper.kube.client import NODES, PODS
from slicekeeper.units import format_instant

ROOT: Final = Path(__file__).resolve().parents[2]
BUILD: Final = Path(os.environ.get("VCUDA_BUILD") or ROOT / "vcuda" / "build")
PROGRAM: Final = Path(__file__).resolve().with_name("tenant.py")
NODE: Final = "node-1"
TRAIN: Final = "train"
SEAT: Final = "slicekeeper.io/seat"
FAKE: Final = "1:H100-SXM5-80GB"
ASKED: Final = {"small": (30, 32), "large": (60, 64)}
"""Percent of the GPU, and blocks of 256 MiB."""

SLICEKEEPER: Final = (
    "from nodeagent.commands import nodeagent; from slicekeeper.cli.main import cli, main; "
    "cli.add_command(nodeagent); main()"
)
"""The command `slicekeeper`, also where it is not installed and does not find its parts."""


class Skip(Exception):
    """A step cannot be tried here, and why."""


class TooLong(Exception):
    """A step has used up its time."""


def until(check: Callable[[], Any], what: str, seconds: float, pause: float = 0.005) -> Any:
    """Return what `check` returns once that is true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := check():
            return found
        time.sleep(pause)
    raise AssertionError(f"not within {seconds:g} s: {what}")


def milliseconds(since: float) -> float:
    return (time.monotonic() - since) * 1e3


class Tenant:
    """A container's process, and what it says of itself."""

    def __init__(self, command: Sequence[str], environ: dict[str, str], log: Path) -> None:
        self.counted: list[tuple[int, int]] = []
        """Instants in nanoseconds, and how many kernels were done by then."""
        self._said: queue.Queue[str] = queue.Queue()
        self._log = log
        with log.open("w") as errors:
            self.process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env=environ,
            )
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("k "):
                _, at, count = line.split()
                self.counted.append((int(at), int(count)))
            else:
                self._said.put(line.strip())

    def wait(self, seconds: float) -> str:
        """Return the next line that is no count."""
        end = time.monotonic() + seconds
        while self.process.poll() is None and time.monotonic() < end:
            with suppress(queue.Empty):
                return self._said.get(timeout=0.1)
        why = "ended" if self.process.poll() is not None else f"said nothing for {seconds:g} s"
        raise AssertionError(f"a tenant {why}: {self._log.read_text().strip()[-400:]}")

    def say(self, word: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{word}\n")
        self.process.stdin.flush()

    def done(self, at_ns: int) -> float:
        """Return how many kernels were done at an instant; wait for the program to say so."""
        counted = self.counted
        until(lambda: counted and counted[-1][0] >= at_ns, "a tenant goes on", 3)
        i = bisect_left(counted, (at_ns, 0))
        if i == 0:
            raise AssertionError("a tenant had not begun")
        (t0, n0), (t1, n1) = counted[i - 1], counted[i]
        return n0 + (n1 - n0) * (at_ns - t0) / (t1 - t0)

    def rate(self, begin_ns: int, end_ns: int) -> float:
        """Return its kernels per second in a span of time."""
        return (self.done(end_ns) - self.done(begin_ns)) / (end_ns - begin_ns) * 1e9

    def end(self) -> None:
        self.process.kill()
        self.process.wait()


class Pod:
    """A pod that was bound to the node, once kubelet has started its containers."""

    def __init__(self, name: str, seat: str, sidecar: str, edits: dict[str, Any]) -> None:
        self.name, self.seat, self.sidecar, self.edits = name, seat, sidecar, edits
        self.tenant: Tenant | None = None


class Node:
    """The machine as a node: the agent and its arbiter, and everything around them."""

    def __init__(self, fake: bool, seconds: float) -> None:
        self.fake, self.seconds = fake, seconds
        self.slack = 10.0 if fake else 2.0
        self.environ = {k: v for k, v in os.environ.items() if not k.startswith("SLICEKEEPER_") and k != "LD_PRELOAD"}
        if not fake:
            plain_driver.load(Path("/"))
            pynvml.nvmlInit()
        self.dir = Path(tempfile.mkdtemp(prefix="sk-"))
        for name in ("plugins", "cdi", "run", "state", "tmp", "kept"):
            (self.dir / name).mkdir()
        if fake:
            fake_driver.install(FAKE, NODE, BUILD, self.dir / "run")
            pynvml.nvmlInit()
        self.handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        self.torch = not fake and importlib.util.find_spec("torch") is not None
        self.kubelet = FakeKubelet(self.dir / "plugins")
        self.kubelet.start()
        self.small = SmallCluster(Clock())
        self.small.client.create(NODES, {"metadata": {"name": NODE}, "status": {}})
        self.arbiter = Arbiter(self.dir / "run")
        self.port = free_port()
        self.pods: dict[str, Pod] = {}
        self.tenants: list[Tenant] = []
        self.parts: dict[str, subprocess.Popen[bytes]] = {}
        self._seats = 0
        self._closed = threading.Event()
        threading.Thread(target=self._read_specifications, daemon=True).start()

    def begin(self) -> None:
        """Start the agent and the arbiter."""
        settings = {
            "kubernetes": {"server": self.small.server.url},
            "nodeAgent": {
                "nodeName": NODE,
                "seats": 16,
                "programsDir": str(BUILD),
                "pluginDir": str(self.dir / "plugins"),
                "podResourcesSocket": str(self.dir / "plugins/pods.sock"),
                "cdiDir": str(self.dir / "cdi"),
                "driverRoot": "/",
                "stateDir": str(self.dir / "state"),
                "runDir": str(self.dir / "run"),
                "metricsBind": f"127.0.0.1:{self.port}",
                "podIp": "127.0.0.1",
                "reconcileSeconds": 1,
            },
        }
        (self.dir / "config.yaml").write_text(json.dumps(settings))
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environ = self.environ | {"PYTHONPATH": path, "TMPDIR": str(self.dir / "tmp")}
        settled = ["--config", str(self.dir / "config.yaml")]
        more = ["--fake-gpus", FAKE] if self.fake else []
        for part in ("arbiter", "agent"):
            with (self.dir / "kept" / f"{part}.log").open("a") as log:
                self.parts[part] = subprocess.Popen(
                    [sys.executable, "-c", SLICEKEEPER, *settled, "nodeagent", part, *more],
                    env=environ,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def _read_specifications(self) -> None:
        """Open each new CDI specification, as a container runtime does."""
        read: set[str] = set()
        while not self._closed.wait(0.005):
            there = {file.name for file in (self.dir / "cdi").glob("*.json")}
            for name in there - read:
                with suppress(OSError):
                    (self.dir / "cdi" / name).read_bytes()
            read = there

    def get(self, path: str) -> tuple[int, str]:
        """Ask the agent's server; 0 if there is none."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        except (OSError, http.client.HTTPException):
            return 0, ""
        finally:
            connection.close()

    def metric(self, name: str, pod: str) -> float | None:
        """Return a metric of a pod's container, None if there is none."""
        for line in self.get("/metrics")[1].splitlines():
            labels, _, value = line.rpartition(" ")
            if labels.startswith(f"{name}{{") and f'pod="{pod}"' in labels:
                return float(value)
        return None

    def read(self) -> Telemetry | None:
        """Return the arbiter's telemetry, None if it does not answer."""
        with suppress(ArbiterAway):
            return self.arbiter.read()
        return None

    def seat_of(self, pod: str) -> ArbiterSeat:
        """Return what the arbiter says of a pod's seat."""
        return next(seat for seat in self.arbiter.read().seats if seat.seat == self.pods[pod].seat)

    def annotate(self, pod: str, **annotations: str) -> None:
        """Change a pod's annotations in the API server, `state` and `ceiling`."""
        keys = {"state": names.BUDGET_STATE, "ceiling": names.CORE_LIMIT}
        changed = {keys[key]: value for key, value in annotations.items()}
        self.small.client.patch(PODS, pod, {"metadata": {"annotations": changed}}, NAMESPACE)

    def ceilings(self, small: int, large: int) -> None:
        """Change how far the shares may grow, and wait until the arbiter knows."""
        for name, ceiling in (("small", small), ("large", large)):
            self.annotate(name, ceiling=str(ceiling))
            until(lambda name=name, ceiling=ceiling: self.seat_of(name).limit == ceiling, f"the ceiling of {name}", 5)

    def gpu(self) -> Gpu:
        """Return the first GPU that the agent publishes."""
        return inventory.of_node(self.small.client.get(NODES, NODE))[0]

    def bind(self, name: str, core: int, blocks: int = 0) -> Pod:
        """Create a pod as webhook and scheduler leave it, and start its containers as kubelet does."""
        limits = {"tencent.com/vcuda-core": str(core), SEAT: "1"}
        limits |= {"tencent.com/vcuda-memory": str(blocks)} if blocks else {}
        preload = [{"name": "LD_PRELOAD", "value": names.LIBRARY_PATH}] if core < 100 else []
        annotations = {
            names.BUDGET_STATE: names.IN_BUDGET,
            names.BOUND_AT: format_instant(Clock().now_ms()),
            names.SHARING_MODE: names.SHARED if core < 100 else names.EXCLUSIVE,
            names.gpu_annotation(TRAIN): self.gpu().uuid,
        }
        pod = {
            "metadata": {
                "name": name,
                "labels": {names.MANAGED_LABEL: names.MANAGED_VALUE},
                "annotations": annotations,
            },
            "spec": {
                "nodeName": NODE,
                "initContainers": [{"name": names.SIDECAR, "image": "sidecar", "restartPolicy": "Always"}],
                "containers": [{"name": TRAIN, "image": "cuda", "env": preload, "resources": {"limits": limits}}],
            },
        }
        self.small.client.create(PODS, pod, NAMESPACE)
        sidecar, _ = self._start(name, names.SIDECAR)
        seat, edits = self._start(name, TRAIN)
        self.pods[name] = Pod(name, seat, sidecar, edits)
        return self.pods[name]

    def _start(self, pod: str, container: str) -> tuple[str, dict[str, Any]]:
        """Let a container get its seat; return the seat's name, and what the CDI specification has for it."""
        id_ = f"seat-{self._seats:04}"
        self._seats += 1
        self.kubelet.owners[id_] = [(NAMESPACE, pod, container)]
        [device] = self.kubelet.allocate(id_)
        self.kubelet.pre_start(id_)
        seat = device.rpartition("=")[2]
        spec = (self.dir / "cdi" / f"{own_files(SEAT)}{seat}.json").read_text()
        (self.dir / "kept" / f"{pod}-{container}.json").write_text(spec)
        return seat, json.loads(spec)["devices"][0]["containerEdits"]

    def run(self, pod: Pod, kind: str = "") -> Tenant:
        """Start a container's program, with what its specification gives and no container around it.

        Files that would be mounted have their places on the machine: the limiter in LD_PRELOAD, the seat's socket in
        the variable that the limiter takes outside of containers, the fake GPU's file. The driver's libraries are links
        in a folder that the loader tries last, as it does with a system's own. Other GPUs' device files cannot be left
        out, so the driver is told which GPU there is.
        """
        mounts = {mount["containerPath"]: mount["hostPath"] for mount in pod.edits["mounts"]}
        folder = self.dir / f"lib-{pod.name}"
        folder.mkdir(exist_ok=True)
        for target, source in mounts.items():
            link = folder / Path(target).name
            if ".so" in link.name and target != names.LIBRARY_PATH and not link.is_symlink():
                link.symlink_to(source)
        environ = {key: value for key, value in self.environ.items() if key != "PYTHONPATH"}
        environ["LD_LIBRARY_PATH"] = os.pathsep.join(filter(None, (environ.get("LD_LIBRARY_PATH"), str(folder))))
        environ["CUDA_VISIBLE_DEVICES"] = self.gpu().uuid
        environ |= self._fake_environ()
        for variable in pod.edits["env"]:
            name, _, value = variable.partition("=")
            environ[name] = mounts.get(value, value)
        if names.LIBRARY_PATH in mounts:
            environ["LD_PRELOAD"] = mounts[names.LIBRARY_PATH]
            environ["SLICEKEEPER_SEAT"] = f"{mounts[IN_CONTAINER]}/seat.sock"
        return self._tenant(kind, environ, pod.name)

    def bare(self) -> Tenant:
        """Start a program past everything, with the driver alone."""
        environ = {key: value for key, value in self.environ.items() if key != "PYTHONPATH"}
        if self.fake:
            environ |= self._fake_environ() | {"LD_LIBRARY_PATH": str(BUILD / "fake")}
        return self._tenant("driver", environ, "bare")

    def _fake_environ(self) -> dict[str, str]:
        """Return what kind of GPU the fake driver is to make: a container finds it made."""
        return {k: v for k, v in os.environ.items() if k.startswith("SLICEKEEPER_FAKE_")} if self.fake else {}

    def _tenant(self, kind: str, environ: dict[str, str], name: str) -> Tenant:
        return self._started(
            [sys.executable, str(PROGRAM), kind or ("torch" if self.torch else "driver")], environ, name
        )

    def _started(self, command: Sequence[str], environ: dict[str, str], name: str) -> Tenant:
        tenant = Tenant(command, environ, self.dir / "kept" / f"{name}.log")
        self.tenants.append(tenant)
        return tenant

    def pair(self) -> tuple[Tenant, Tenant]:
        """Return the two tenants with shares."""
        tenants = [pod.tenant for name in ASKED if (pod := self.pods.get(name)) is not None and pod.tenant is not None]
        if len(tenants) < 2 or any(tenant.process.poll() is not None for tenant in tenants):
            raise Skip("there are no two pods with shares that run")
        return tenants[0], tenants[1]

    def shares(self, seconds: float) -> tuple[list[float], list[float]]:
        """Measure for so long, of each tenant: per cent of the GPU by the arbiter, and kernels per second."""
        tenants = self.pair()
        begin, first = time.monotonic_ns(), [self.seat_of(name) for name in ASKED]
        time.sleep(seconds)
        last, end = [self.seat_of(name) for name in ASKED], time.monotonic_ns()
        held = [
            100 * (b.busy_ns - a.busy_ns) / (b.wall_ns - a.wall_ns) if b.wall_ns > a.wall_ns else 0.0
            for a, b in zip(first, last, strict=True)
        ]
        return held, [tenant.rate(begin, end) for tenant in tenants]

    def clear(self) -> None:
        """End all pods and programs."""
        for tenant in self.tenants:
            tenant.end()
        self.tenants.clear()
        for pod in self.small.pods():
            self.small.end(pod["metadata"]["name"])
        self.pods.clear()

    def close(self, out: Path | None) -> None:
        """End everything; the logs and the specifications of CDI go into an archive in `out`."""
        for tenant in self.tenants:
            tenant.end()
        for part in self.parts.values():
            with suppress(ProcessLookupError):
                os.killpg(part.pid, signal.SIGKILL)
            part.wait()
        self._closed.set()
        if out is not None:
            shutil.make_archive(str(out / "node"), "gztar", self.dir / "kept")
        self.kubelet.stop()
        self.small.stop()
        shutil.rmtree(self.dir, ignore_errors=True)

    def logged(self) -> str:
        """Return the last lines of the agent and the arbiter."""
        said = ""
        for part in self.parts:
            lines = (self.dir / "kept" / f"{part}.log").read_text().splitlines()
            said += "".join(f"    {part}: {line[:300]}\n" for line in lines[-6:])
        return said


def child_of(parent: int) -> int:
    """Return a process's child."""
    for entry in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            if entry.read_text().rpartition(")")[2].split()[1] == str(parent):
                return int(entry.parent.name)
    raise AssertionError(f"process {parent} has no child")
