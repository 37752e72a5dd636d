# SPDX-License-Identifier: Apache-2.0
"""What the sidecar takes of its pod: memory, CPU at its usual interval, and the time until it ends.

    .venv/bin/python benchmarks/sidecar/run.py [--seconds 60]

Runs the real command against a real HTTPS server on loopback, and reads /proc. Start-up is counted apart: it happens
once in a pod's life. As root and with gcc it also sends SIGTERM at several instants after the start, with 5 % of a CPU
as in a pod, to the image's first process and, as it was without, to Python. Prints Markdown tables.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from signal import SIGTERM

from certificates.authority import make_ca, sign_server
from images.programs import compile_first_process

sys.path.insert(0, str(Path(__file__).parents[2] / "tests"))

from support.control_group import control_group, cpu_limit
from support.waiting import wait_for

SETTLE_SECONDS = 2.0
COMMAND = Path(sys.executable).parent / "slicekeeper"
AWAY = "https://127.0.0.1:9"
INSTANTS = (0.1, 1.0, 2.0, 3.0, 4.0, 6.0, 12.0)
GRACE_SECONDS = 30.0
"""After which kubelet kills."""


class Sink(BaseHTTPRequestHandler):
    """Accepts every report."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """Accept."""
        batch = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        answer = {"outcomes": [{"outcome": "accepted"} for _ in batch["reports"]], "terminate": False}
        data = json.dumps(answer).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Stay quiet."""


def cpu_seconds(pid: int) -> float:
    """Return user and system time of a process so far, from its schedstat (nanoseconds, not ticks)."""
    total = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total += int((task / "schedstat").read_text().split()[0])
    return total / 1e9


def peak_mib(pid: int) -> float:
    """Return the peak resident memory."""
    line = next(x for x in Path(f"/proc/{pid}/status").read_text().splitlines() if x.startswith("VmHWM"))
    return int(line.split()[1]) / 1024


def serve(folder: Path) -> ThreadingHTTPServer:
    """Start the server; clients find the CA in `folder`."""
    now, life = datetime.now(UTC), timedelta(days=1)
    ca = make_ca(now, life)
    pair = sign_server(ca, ("localhost",), now, life)
    for name, data in (("ca.crt", ca.certificate), ("tls.crt", pair.certificate), ("tls.key", pair.key)):
        (folder / name).write_bytes(data)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "tls.crt", folder / "tls.key")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def measure(url: str, ca_file: Path, containers: int, seconds: float, *, away: bool) -> tuple[float, float, float]:
    """Return peak MiB, CPU seconds of the start, and CPU as a share of one core afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        usage = Path(folder) / "usage.json"
        names = [f"c{index}" for index in range(containers)]
        usage.write_text(json.dumps({"source": "node", "containers": {name: {"usedMs": 1} for name in names}}))
        environ = environment(AWAY if away else url, ca_file, Path(folder), names)
        process = subprocess.Popen([COMMAND, "sidecar", "run"], env=environ, stderr=subprocess.DEVNULL)
        try:
            time.sleep(SETTLE_SECONDS)
            started = cpu_seconds(process.pid)
            time.sleep(seconds)
            used = cpu_seconds(process.pid) - started
            return peak_mib(process.pid), started, used / seconds
        finally:
            process.terminate()
            process.wait(10)


def environment(url: str, ca_file: Path, folder: Path, containers: list[str]) -> dict[str, str]:
    """Return what the webhook and kubelet give a sidecar."""
    return {
        "PATH": os.environ["PATH"],
        "SLICEKEEPER_SIDECAR_NAMESPACE": "team-a",
        "SLICEKEEPER_SIDECAR_POD_NAME": "train-0",
        "SLICEKEEPER_SIDECAR_POD_UID": "0f9c6a52",
        "SLICEKEEPER_SIDECAR_CONTAINERS": ",".join(containers),
        "SLICEKEEPER_SIDECAR_USAGE_FILE": str(folder / "usage.json"),
        "SLICEKEEPER_SIDECAR_SPOOL_DIR": str(folder),
        "SLICEKEEPER_SIDECAR_REPORT_SECONDS": "10",
        "SLICEKEEPER_TIMEKEEPER_CLIENT_URL": url,
        "SLICEKEEPER_TIMEKEEPER_CLIENT_CA_FILE": str(ca_file),
    }


def time_to_end(program: Path, environ: dict[str, str], instant: float) -> str:
    """Return the seconds from SIGTERM to the end of a container's first process, and its exit code."""
    with control_group(cpu_limit(5)) as group:
        enter = f"echo $$ > {group.folder}/cgroup.procs; exec unshare --pid --fork --kill-child {program} sidecar run"
        with subprocess.Popen(["sh", "-c", enter], env=environ, stderr=subprocess.DEVNULL) as unshare:
            children = Path(f"/proc/{unshare.pid}/task/{unshare.pid}/children")
            pid = wait_for(lambda: int((children.read_text().split() or ["0"])[0]), "its first process")
            time.sleep(instant)
            began = time.monotonic()
            os.kill(pid, SIGTERM)
            try:
                code = unshare.wait(GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                unshare.kill()
                code = 137
            return f"{time.monotonic() - began:.2f} ({code})"


def show_ends(url: str, ca_file: Path) -> None:
    """Print how long the sidecar takes to end, by the instant of SIGTERM."""
    print("\nFrom SIGTERM to the end, in seconds, with 5 % of a CPU; in brackets the exit code.\n")
    print("| SIGTERM after the start, s | " + " | ".join(f"{instant:g}" for instant in INSTANTS) + " |")
    print("| --- |" + " ---: |" * len(INSTANTS))
    with tempfile.TemporaryDirectory() as folder:
        first = Path(folder) / "first"
        compile_first_process(first, str(COMMAND))
        for away in (False, True):
            environ = environment(AWAY if away else url, ca_file, Path(folder), ["c0"])
            for name, program in (("Python alone", COMMAND), ("the image's first process", first)):
                times = " | ".join(time_to_end(program, environ, instant) for instant in INSTANTS)
                print(f"| {name}{', timekeeper away' if away else ''} | {times} |")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0, help="length of each case")
    seconds = parser.parse_args().seconds
    cases = (("1 container", 1, False), ("8 containers", 8, False), ("timekeeper away", 1, True))
    print(f"Interval 10 s, {seconds:.0f} s per case; bounds: 40 MiB, 0.2 % of a core.\n")
    print("| case | peak memory, MiB | CPU of the start, s | CPU afterwards, % of a core |")
    print("| --- | ---: | ---: | ---: |")
    with tempfile.TemporaryDirectory() as folder:
        server = serve(Path(folder))
        url = f"https://localhost:{server.server_address[1]}"
        for name, containers, away in cases:
            memory, start, share = measure(url, Path(folder) / "ca.crt", containers, seconds, away=away)
            print(f"| {name} | {memory:.1f} | {start:.2f} | {100 * share:.3f} |")
        if os.geteuid() == 0 and shutil.which("gcc"):
            show_ends(url, Path(folder) / "ca.crt")
        server.shutdown()


if __name__ == "__main__":
    main()
