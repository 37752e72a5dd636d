#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The node agent on a real NVIDIA GPU: inventory, seats, shares, caps, budgets, usage, audit, kills.

    agent_checks.py [--seconds N] [--out FOLDER]          on this machine's first GPU; as root; a minute
    agent_checks.py [--seconds N] [--out FOLDER] --fake   the same on the fake GPU, in real time

Agent and arbiter are the real ones; gpu_node.py beside this file replaces the rest of a node. The
containers' programs are tenant.py, with PyTorch where it is installed. On the fake GPU bounds are wide, and a step is
tried three times, for the machine's other work shows there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import stat
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pynvml
from gpu_node import ASKED, NODE, TRAIN, Node, Pod, Skip, TooLong, child_of, milliseconds, until
from verdicts import need, total, verdict

from nodeagent.seat_files import IN_CONTAINER
from slicekeeper import names
from slicekeeper.gpu import inventory, node_setup
from slicekeeper.kube.client import NODES
from slicekeeper.wire.usage_file import FILE as USAGE_FILE

BLOCK: Final = 256 << 20
LOOKS: Final = ("/usr/bin/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")

FIGURES: dict[str, str] = {}
"""What was measured, for the table."""


def text(values: Sequence[float], digits: int = 1) -> str:
    return "/".join(f"{value:.{digits}f}" for value in values)


def parts_of(rates: Sequence[float]) -> list[float]:
    """Return what each has of all, in per cent."""
    return [100 * rate / sum(rates) for rate in rates] if sum(rates) else [0.0 for _ in rates]


def close_to(got: Sequence[float], wanted: Sequence[float], slack: float) -> bool:
    return all(abs(g - w) <= slack for g, w in zip(got, wanted, strict=True))


def agent_is_ready(node: Node) -> str:
    began = time.monotonic()
    node.begin()
    until(lambda: node.get("/readyz")[0] == 200, f"ready: {node.get('/readyz')}", 25)
    return f"{milliseconds(began) / 1e3:.1f} s after its start"


def inventory_published(node: Node) -> str:
    shown = node.small.client.get(NODES, NODE)
    gpus, found = inventory.of_node(shown), node_setup.of_node(shown)
    need(gpus and found, "the node shows no GPUs")
    assert found is not None
    gpu = gpus[0]
    need(gpu.healthy, f"the GPU is withdrawn: {gpu.trouble}")
    need(not found.device_trouble, found.device_trouble)
    capacity = {key: value for key, value in shown["status"]["capacity"].items() if key.startswith("tencent.com/")}
    wanted = inventory.amounts(gpus)
    need(tuple(map(int, capacity.values())) == wanted, f"capacity {capacity}, not {wanted}")
    FIGURES["GPUs published"] = str(len(gpus))
    kept = pynvml.nvmlDeviceGetMemoryInfo(node.handle, pynvml.nvmlMemory_v2).reserved >> 20
    FIGURES["Memory that is published, and that the driver keeps, MiB"] = f"{gpu.memory_mib}/{kept}"
    about = f"{gpu.model}, {gpu.memory_mib} MiB, NUMA node {gpu.numa_node}, {sum(gpu.links.values())} direct links"
    smi = shutil.which("nvidia-smi") or next((path for path in LOOKS if Path(path).exists()), None)
    if node.fake or smi is None:
        return f"{about}; driver {found.driver}; no nvidia-smi to compare"
    query = "uuid,name,memory.total,driver_version,pci.bus_id"
    asked = [smi, f"--query-gpu={query}", "--format=csv,noheader,nounits"]
    lines = subprocess.run(asked, check=True, capture_output=True, text=True, timeout=15).stdout.splitlines()
    told = [[word.strip() for word in line.split(",")] for line in lines if line.strip()]
    ours = [[one.uuid, one.model, found.driver] for one in gpus]
    need([[row[0], row[1], row[3]] for row in told] == ours, f"nvidia-smi says {told}, the node {ours}")
    total = int(told[0][2])
    need(
        abs(gpu.memory_mib + kept - total) <= 1, f"{total} MiB, of which the driver keeps {kept}, not {gpu.memory_mib}"
    )
    domain, bus, rest = told[0][4].lower().split(":")
    with suppress(OSError):
        there = int(Path(f"/sys/bus/pci/devices/{domain[-4:]}:{bus}:{rest}/numa_node").read_text())
        need(there == gpu.numa_node, f"NUMA node {there}, the node says {gpu.numa_node}")
    return f"as nvidia-smi says: {about}"


def seats_given(node: Node) -> str:
    node.clear()
    took = []
    for name, (core, blocks) in ASKED.items():
        began = time.monotonic()
        pod = node.bind(name, core, blocks)
        took.append(milliseconds(began))
        edits = pod.edits
        missing = [one["hostPath"] for one in edits["mounts"] if not Path(one["hostPath"]).exists()]
        for device in edits.get("deviceNodes", []):
            path = Path(device.get("hostPath") or device["path"])
            if not (path.exists() and stat.S_ISCHR(path.stat().st_mode)):
                missing.append(str(path))
        need(not missing, f"the specification names what is not there: {missing}")
        targets = {one["containerPath"] for one in edits["mounts"]}
        need({names.LIBRARY_PATH, IN_CONTAINER, "/etc/ld.so.preload"} <= targets, f"mounts {sorted(targets)}")
        cuda = [target for target in targets if re.fullmatch(r".*/libcuda\.so(\.[0-9.]+)?", target)]
        need(cuda, "no libcuda.so is mounted")
        need(node.fake or edits.get("deviceNodes"), "no device files")
        held = node.seat_of(name)
        need((held.core, held.memory_limit) == (core, blocks * BLOCK), f"the arbiter holds {held}")
    devices = ", ".join(Path(one["path"]).name for one in edits.get("deviceNodes", [])) or "no device files"
    library = next(one["hostPath"] for one in edits["mounts"] if one["containerPath"] == cuda[0])
    FIGURES["A pod's two seats (sidecar and container), ms"] = text(took, 0)
    return f"{len(edits['mounts'])} mounts, such as {library}; {devices}; two seats in {text(took, 0)} ms"


def programs_started(node: Node) -> str:
    if any(name not in node.pods for name in ASKED):
        raise Skip("no seats were given")
    began = time.monotonic()
    for name in ASKED:
        node.pods[name].tenant = node.run(node.pods[name])
    for tenant in node.pair():
        need(tenant.wait(40) == "ready", "a tenant did not begin with 'ready'")
    for name in ASKED:
        until(lambda name=name: node.seat_of(name).processes, f"the process of {name} is in its seat", 5)
    return f"{'PyTorch' if node.torch else 'the driver API'}, {milliseconds(began) / 1e3:.1f} s until both are ready"


def shares_as_asked(node: Node) -> str:
    small, large = node.pair()
    large.say("go")
    time.sleep(1.5)
    begin = time.monotonic_ns()
    time.sleep(max(1.0, node.seconds / 2))
    alone = large.rate(begin, time.monotonic_ns())
    if node.fake and alone < 800:
        raise Skip(f"one alone does {alone:.0f} kernels of 1 ms in a second: this machine is too busy for a fake GPU")
    asked = [core for core, _ in ASKED.values()]
    node.ceilings(*asked)
    small.say("go")
    time.sleep(1.5)
    held, rates = node.shares(node.seconds)
    of_alone = [100 * rate / alone for rate in rates]
    FIGURES[f"Shares, {text(asked, 0)} % asked, as the arbiter counts, %"] = text(held)
    FIGURES["Shares: kernels per second, of those that one does alone, %"] = text(of_alone)
    FIGURES["Shares: kernels per second, of both together, %"] = text(parts_of(rates))
    said = f"{text(held)} %; kernels {text(of_alone)} % of {alone:.0f}/s alone, {text(parts_of(rates))} % of both"
    need(close_to(held, asked, node.slack), said)
    need(close_to(parts_of(rates), parts_of(asked), node.slack), said)
    node.ceilings(100, 100)
    time.sleep(3)  # until what they were owed within the arbiter's window is paid
    free, rates = node.shares(node.seconds)
    FIGURES["Shares without ceilings, as the arbiter counts, %"] = text(free)
    need(
        close_to(parts_of(rates), parts_of(asked), node.slack),
        f"{said}; without ceilings {text(parts_of(rates))} % of both",
    )
    return f"{said}; without ceilings {text(free)} %"


def memory_caps(node: Node) -> str:
    said = []
    for tenant, (_, blocks) in zip(node.pair(), ASKED.values(), strict=True):
        tenant.say("memory")
        got = json.loads(tenant.wait(10))
        need(got["total"] == blocks * BLOCK, f"{got['total'] >> 20} MiB are shown of {blocks * BLOCK >> 20}")
        need("memory" in got["above"].lower(), f"512 MiB more than is free: {got['above'] or 'granted'}")
        need(not got["below"], f"512 MiB less than is free: {got['below']}")
        said.append(f"{got['total'] >> 20} MiB, {got['free'] >> 20} free")
    FIGURES["Memory that each sees"] = "; ".join(said)
    return f"{'; '.join(said)}; more is refused by {got['above']}"


def follow(node: Node, winner: str, until_at: float) -> list[tuple[float, int, int]]:
    """Read until an instant how long the GPU was a seat's: instants, and nanoseconds of granted and of all time."""
    seen = []
    while time.monotonic() < until_at:
        seat = node.seat_of(winner)
        seen.append((time.monotonic(), seat.granted_ns, seat.wall_ns))
        time.sleep(0.001)
    return seen


def since_when(seen: list[tuple[float, int, int]], enough: Callable[[float], bool], span: float = 0.1) -> float | None:
    """Return the first instant from which on a seat's part of so many seconds was as it should be."""
    last = 0
    for at, granted, wall in seen:
        while last < len(seen) and seen[last][0] < at + span:
            last += 1
        if last == len(seen):
            return None
        if enough((seen[last][1] - granted) / max(1, seen[last][2] - wall)):
            return at
    return None


def live_policy(node: Node) -> str:
    node.pair()
    node.ceilings(100, 100)
    took: dict[str, list[float]] = {"background": [], "its GPU is the other's": [], "back": [], "shares again": []}
    most = 0.9 if not node.fake else 0.8
    for _ in range(5):
        for state, vclass, known, there in (
            (names.OVER_BUDGET, "background", "background", "its GPU is the other's"),
            (names.IN_BUDGET, "in-budget", "back", "shares again"),
        ):
            began = time.monotonic()
            node.annotate("large", state=state)
            until(lambda vclass=vclass: node.seat_of("large").vclass == vclass, f"large is {vclass}", 3, 0.0005)
            took[known].append(milliseconds(began))
            seen = follow(node, "small", began + 0.8)
            over = vclass == "background"
            when = since_when(seen, (lambda part: part > most) if over else (lambda part: part < 0.5))
            need(when is not None, f"{there} not within 0.8 s")
            assert when is not None
            took[there].append(max(0.0, when - began) * 1e3)
    for name, each in took.items():
        FIGURES[f"Over budget and back: {name}, ms, median and most"] = text([statistics.median(each), max(each)])
    return ", ".join(f"{name} {statistics.median(each):.0f} ms" for name, each in took.items())


def usage_reported(node: Node) -> str:
    node.pair()
    worst, said = 0.0, []
    first: dict[str, tuple[int, int, float]] = {}
    for round_ in range(2):
        for name in ASKED:
            used, at_ns, memory = usage(node, name)
            busy = busy_at(node, name, at_ns)
            if round_ == 0:
                first[name] = used, at_ns, busy
                continue
            told, counted = used - first[name][0], busy - first[name][2]
            need(counted > 0, f"the arbiter counts nothing for {name}")
            off = abs(told - counted) / counted
            worst = max(worst, off)
            seat = node.seat_of(name)
            charged = (seat.memory + seat.memory_overhead) >> 20
            said.append(f"{name} {told} of {counted:.0f} ms, {memory} of {charged} MiB")
            need(off <= 0.02 * (5 if node.fake else 1), said[-1])
            need(memory is not None and abs(memory - charged) <= 0.02 * charged + 1, said[-1])
            before = node.seat_of(name).busy_ns / 1e9
            shown = node.metric("slicekeeper_gpu_busy_seconds_total", name)
            after = node.seat_of(name).busy_ns / 1e9
            need(shown is not None and before * 0.98 <= shown <= after * 1.02, f"metric {shown}, {before} to {after} s")
            used_mib = node.metric("DCGM_FI_DEV_FB_USED", name)
            need(used_mib is not None and abs(used_mib - charged) <= 0.02 * charged + 1, f"metric {used_mib} MiB")
        time.sleep(max(3.0, node.seconds / 2) if round_ == 0 else 0)
    FIGURES["The sidecar's usage beside the arbiter's, most off, %"] = f"{100 * worst:.2f}"
    return "; ".join(said)


def usage(node: Node, pod: str) -> tuple[int, int, int | None]:
    """Return a pod's usage in the next file that its sidecar is given: milliseconds, when, and MiB."""
    file = node.dir / "run/seats" / node.pods[pod].sidecar / USAGE_FILE
    before = json.loads(file.read_text())["atNs"] if file.exists() else 0

    def new() -> dict[str, Any] | None:
        told: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
        return told if told.get("atNs", 0) > before and TRAIN in told["containers"] else None

    told = until(new, f"the usage of {pod} is written", 5, 0.002)
    counter = told["containers"][TRAIN]
    return counter["usedMs"], told["atNs"], counter.get("memoryMib")


def busy_at(node: Node, pod: str, at_ns: int) -> float:
    """Return what the arbiter counts for a pod at an instant just past, in milliseconds."""
    seats = []
    for _ in range(2):
        seats.append((time.monotonic_ns(), node.seat_of(pod).busy_ns))
        time.sleep(0.1)
    (t0, b0), (t1, b1) = seats
    return (b0 - (b1 - b0) * (t0 - at_ns) / (t1 - t0)) / 1e6


def stray_named(node: Node) -> str:
    tenant = node.bare()
    need(tenant.wait(20) == "ready", "the process did not begin")
    began = time.monotonic()
    tenant.say("go")
    pid = tenant.process.pid

    def named() -> bool:
        told = node.read()
        return told is not None and any(one.pid == pid for one in told.audit)

    try:
        until(named, "the arbiter names the process", 6, 0.02)
    except AssertionError:
        listed = [one.pid for one in pynvml.nvmlDeviceGetComputeRunningProcesses(node.handle)]
        if pid not in listed:
            raise Skip(f"the driver lists the processes {listed}, and {pid} is not among them") from None
        raise
    by_arbiter = milliseconds(began) / 1e3
    until(lambda: node.metric("slicekeeper_gpu_stray_processes", ""), "the agent's metric has it", 6, 0.05)
    by_agent = milliseconds(began) / 1e3
    logged = (node.dir / "kept" / "agent.log").read_text()
    need("audit: in no pod" in logged, "the agent's log does not name it")
    need(by_agent <= 5, f"named after {by_agent:.1f} s")
    tenant.end()
    until(lambda: not node.metric("slicekeeper_gpu_stray_processes", ""), "the metric is gone with it", 6, 0.05)
    FIGURES["A process past the limiter: in the arbiter's audit, in the agent's, s"] = text([by_arbiter, by_agent])
    return f"by the arbiter in {by_arbiter:.1f} s, by the agent in {by_agent:.1f} s"


def agent_killed(node: Node) -> str:
    def away_and_back(_pid: int) -> None:
        until(lambda: node.get("/readyz")[0] != 200, "the agent is away", 3, 0.001)
        until(lambda: node.get("/readyz")[0] == 200, "the next agent is ready", 12)

    return killed(node, "agent", away_and_back)


def arbiter_killed(node: Node) -> str:
    def back(pid: int) -> None:
        until(lambda: (told := node.read()) is not None and told.pid != pid, "the next arbiter answers", 12)

    return killed(node, "arbiter", back)


def killed(node: Node, part: str, wait: Callable[[int], None]) -> str:
    """Kill the agent or the arbiter, and compare what the tenants do before, in the first second, and then."""
    tenants = node.pair()
    node.ceilings(100, 100)
    time.sleep(1.5)
    pid = child_of(node.parts[part].pid)
    at, at_ns = time.monotonic(), time.monotonic_ns()
    os.kill(pid, signal.SIGKILL)
    wait(pid)
    back = milliseconds(at)
    held = {seat.seat for seat in node.arbiter.read().seats}
    need(held == {node.pods[name].seat for name in ASKED}, f"the arbiter holds {held}")
    time.sleep(max(0.0, at + 4 - time.monotonic()))
    spans = ((-1.0, 0.0), (0.0, 1.0), (1.0, 4.0))
    rates = [[t.rate(at_ns + int(a * 1e9), at_ns + int(b * 1e9)) for t in tenants] for a, b in spans]
    shares = [parts_of(each)[1] for each in rates]
    went_on = 100 * sum(rates[1]) / sum(rates[0])
    what = f"{part.capitalize()} killed"
    FIGURES[f"{what}: back, ms"] = f"{back:.0f}"
    FIGURES[f"{what}: part of the larger share before, in the first second, in the next three, %"] = text(shares)
    FIGURES[f"{what}: kernels in the first second, of those before, %"] = f"{went_on:.0f}"
    said = f"back in {back:.0f} ms; the larger share's part {text(shares)} % before, in the first second, and then; "
    said += f"{went_on:.0f} % of the kernels in that second"
    need(went_on > 50, said)
    wanted = parts_of([core for core, _ in ASKED.values()])[1]
    need(abs(shares[2] - wanted) <= node.slack, said)
    return said


def whole_gpu(node: Node) -> str:
    node.clear()
    until(lambda: (told := node.read()) is not None and not told.seats, "the seats of ended pods are dropped", 6)
    pod = node.bind("whole", 100)
    targets = [one["containerPath"] for one in pod.edits["mounts"]]
    need(names.LIBRARY_PATH not in targets, "its seat has a limiter")
    tenant = node.run(pod)
    need(tenant.wait(40) == "ready", "its program did not begin")
    there = pynvml.nvmlDeviceGetMemoryInfo(node.handle).total
    tenant.say("go")
    time.sleep(1)
    tenant.say("memory")
    got = json.loads(tenant.wait(15))
    need(got["total"] > 0.95 * there, f"it sees {got['total'] >> 20} MiB of {there >> 20}")
    try:
        until(lambda: counted(node, pod), "the driver's samples are counted", 5, 0.1)
    except AssertionError:
        file = node.dir / "run/seats" / pod.sidecar / USAGE_FILE
        told = json.loads(file.read_text())
        need(TRAIN not in told["containers"], f"{told}")
        return f"no limiter, {got['total'] >> 20} MiB; the driver tells no utilisation, so its usage is unknown"
    time.sleep(1.5)
    first = counted(node, pod)
    time.sleep(max(3.0, node.seconds))
    last = counted(node, pod)
    assert first is not None
    assert last is not None
    span, busy = last[0] - first[0], (last[1] - first[1]) / 1000
    need(span > 0, "the driver's samples have stopped")
    told, _, memory = usage(node, pod.name)
    mine = pynvml.nvmlDeviceGetMemoryInfo(node.handle, pynvml.nvmlMemory_v2).used >> 20
    said = f"busy for {100 * busy / span:.1f} % of the time by the driver's samples"
    FIGURES["A whole GPU that always has work is busy, by the driver's samples, %"] = f"{100 * busy / span:.1f}"
    need(node.fake or busy > 0.97 * span, said)
    need(told >= last[1] / 1e6 - 1, f"the sidecar is told {told} ms of {last[1] / 1e6:.0f}")
    FIGURES["A whole GPU's memory in use, by the agent and by NVML, MiB"] = f"{memory}/{mine}"
    return f"no limiter, {got['total'] >> 20} MiB; {said}; {memory} MiB in use"


def counted(node: Node, pod: Pod) -> tuple[int, int] | None:
    """Return until when a whole GPU's usage is counted, in µs, and how many ns it was busy."""
    file = node.dir / "run/seats" / pod.seat / "counted.json"
    if not file.exists():
        return None
    gpus = json.loads(file.read_text())["gpus"]
    return next(((one["until_us"], one["busy_ns"]) for one in gpus.values() if one["busy_ns"]), None)


STEPS: Final[tuple[tuple[Callable[[Node], str], float], ...]] = (
    (agent_is_ready, 30),
    (inventory_published, 20),
    (seats_given, 20),
    (programs_started, 50),
    (shares_as_asked, 40),
    (memory_caps, 25),
    (live_policy, 25),
    (usage_reported, 25),
    (stray_named, 40),
    (agent_killed, 25),
    (arbiter_killed, 25),
    (whole_gpu, 70),
)
"""Each with the seconds that it may take."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def over(_signal: int, _frame: FrameType | None) -> None:
        raise TooLong(f"not done within {seconds:g} s")

    signal.signal(signal.SIGALRM, over)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)


def attempt(node: Node, step: Callable[[Node], str], seconds: float) -> None:
    """Try once; on the fake GPU three times."""
    name, note = step.__name__.replace("_", " "), ""
    for _ in range(3 if node.fake else 1):
        began = time.monotonic()
        try:
            with time_limit(seconds):
                said = step(node)
        except Skip as why:
            verdict("skipped", name, str(why))
            return
        except Exception as error:  # noqa: BLE001 - a step that fails in any way does not stop the next
            note = f"{type(error).__name__}: {error}"[:700]
        else:
            verdict("passed", name, f"{said}; {time.monotonic() - began:.1f} s")
            return
    verdict("failed", name, note)
    print(node.logged(), end="", flush=True)


def about_gpu(node: Node) -> str:
    """Return the line that the figures go with."""
    cuda = pynvml.nvmlSystemGetCudaDriverVersion()
    kind = "fake GPU" if node.fake else "GPU"
    return (
        f"{kind} {pynvml.nvmlDeviceGetName(node.handle)}, driver {pynvml.nvmlSystemGetDriverVersion()}, "
        f"CUDA {cuda // 1000}.{cuda % 1000 // 10}, kernel {os.uname().release}"
    )


def run(
    doc: str | None, steps: Sequence[tuple[Callable[[Node], str], float]], make: Callable[..., Node], what: str
) -> int:
    """Try steps on a node that `make` makes, and print what was measured; return the exit status."""
    parser = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--fake", action="store_true", help="on the fake GPU")
    parser.add_argument("--seconds", type=float, default=4, help="how long shares are measured")
    parser.add_argument("--out", type=Path, help="folder for an archive of the logs")
    options = parser.parse_args()
    try:
        node = make(options.fake, options.seconds)
    except (pynvml.NVMLError, Skip) as error:
        why = str(error) if isinstance(error, Skip) else f"no NVIDIA GPU: {error}"
        for step, _ in steps:
            verdict("skipped", step.__name__.replace("_", " "), why)
    else:
        try:
            for step, seconds in steps:
                attempt(node, step, seconds)
            print("\n| what | figure |\n|---|---:|")
            print("".join(f"| {name} | {value} |\n" for name, value in FIGURES.items()))
            print(about_gpu(node))
        finally:
            node.close(options.out)
    return total(what, options.fake)


if __name__ == "__main__":
    sys.exit(run(__doc__, STEPS, Node, "node"))
