# SPDX-License-Identifier: Apache-2.0
"""A throwaway Kubernetes of this machine, seen from outside: start it, speak to it, hurt it, be rid of it."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict
from pathlib import Path
from typing import IO, Any

import yaml
from cluster.harness import control_groups
from cluster.harness.binaries import CONTAINERD, NEWEST, Binaries, Missing, cache, ensure, say
from support.leftovers import all_locked, make_locked
from support.leftovers import lock as locked

START_SECONDS = 180.0
TESTS = Path(__file__).resolve().parents[2]
STAYS = "stays"
"""A file in the folder of a cluster that is left up."""


_NAMESPACES = ("--mount", "--net", "--pid", "--ipc")
_UNSHARE = ("unshare", *_NAMESPACES, "--fork", "--kill-child", "--mount-proc", "--propagation=private", "--")

_PROBE = """
mkdir "$0/base"
mount --make-rshared /
mount -t tmpfs tmpfs "$0/base"
mkdir "$0/base/upper" "$0/base/work"
mount -t overlay overlay -o "lowerdir=/var/lib,upperdir=$0/base/upper,workdir=$0/base/work" /var/lib
mount -t tmpfs tmpfs /run
"""
"""What `namespaces.prepare` will do, tried in namespaces that end with it."""

_COMPACT = """
import json, urllib.request
def ask(path, body):
    request = urllib.request.Request("http://127.0.0.1:2379/v3/kv/" + path, json.dumps(body).encode())
    return json.load(urllib.request.urlopen(request, timeout=10))
newest = ask("range", {"key": "AA=="})["header"]["revision"]
ask("compaction", {"revision": newest})
"""


class Cluster:
    """One running cluster. Its files, logs among them, lie in `folder` until `stop`."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes] | None = None) -> None:
        self.folder = folder
        self._process = process
        self.kubectl = NEWEST.bin / "kubectl"
        self.kubeconfig = folder / "kubeconfig"

    @property
    def logs(self) -> Path:
        """One file per program."""
        return self.folder / "logs"

    @property
    def stays(self) -> bool:
        """Whether it outlives the process that started it."""
        return (self.folder / STAYS).exists()

    def kill(self, name: str, number: int = signal.SIGKILL) -> None:
        """Send a signal to a program and, where it ends it, wait for the end."""
        self._control({"op": "kill", "name": name, "signal": int(number)})

    def start(self, name: str) -> None:
        """Start a program again and wait until it is up."""
        self._control({"op": "start", "name": name})
        self._control({"op": "wait", "name": name})

    def reboot(self) -> None:
        """Reboot the node, but not the control plane, and wait until its programs are up again."""
        self._control({"op": "reboot"}, timeout=300)

    def run(self, *command: str, timeout: float = 120.0) -> str:
        """Run a command on the node; return what it printed."""
        done = self._control({"op": "run", "command": list(command), "timeout": timeout}, timeout + 30)
        if done["code"] != 0:
            raise RuntimeError(f"{' '.join(command)}: exit {done['code']}\n{done['err'] or done['out']}")
        return str(done["out"])

    def first_process(self) -> int:
        """Return the process that holds the cluster's namespaces: what enters its network reaches pods and nodes."""
        unshare = (self.folder / "pid").read_text()
        return int(Path(f"/proc/{unshare}/task/{unshare}/children").read_text().split()[0])

    def kill_container(self, container_id: str) -> None:
        """End every process of a container, as `kill -9` does; `container_id` is as a pod's status has it."""
        ctr = str(CONTAINERD.bin / "ctr")
        name = container_id.removeprefix("containerd://")
        self.run(ctr, "--namespace", "k8s.io", "tasks", "kill", "--signal", "SIGKILL", "--all", name)

    def forget_history(self) -> None:
        """Have etcd forget all versions but the newest, as it does after some minutes: old watches get 410 Gone."""
        self.run(sys.executable, "-c", _COMPACT)

    def load(self, archive: Path) -> None:
        """Give the node an image."""
        ctr = str(CONTAINERD.bin / "ctr")
        self.run(ctr, "--namespace", "k8s.io", "images", "import", "--local", str(archive), timeout=300)

    def stop(self) -> None:
        """End it and remove everything but what the host had before."""
        with contextlib.suppress(ProcessLookupError):
            # unshare ends its child, the namespaces' first process, and with it all others
            os.kill(int((self.folder / "pid").read_text()), signal.SIGKILL)
        if self._process is not None:
            self._process.wait(30)
            for pipe in (self._process.stdin, self._process.stdout):
                if pipe is not None:
                    pipe.close()
        for _ in range(100):
            lock = locked(self.folder)
            if lock is not None:
                lock.close()
                break
            time.sleep(0.1)
        remove(self.folder)

    def _control(self, asked: dict[str, Any], timeout: float = 150.0) -> dict[str, Any]:
        with socket.socket(socket.AF_UNIX) as channel:
            channel.settimeout(timeout)
            channel.connect(str(self.folder / "control"))
            channel.sendall(json.dumps(asked).encode() + b"\n")
            with channel.makefile("rb") as answers:
                answer: dict[str, Any] = json.loads(answers.readline())
        if "error" in answer:
            raise RuntimeError(f"{asked}: {answer['error']}")
        return answer


def start(*, stay: bool = False) -> Cluster:
    """Start a cluster. It ends with this process, unless `stay`: then with `stop` or the machine.

    Raises Missing where the machine cannot carry one, or a program does not come up.
    """
    reason = unfit()
    if reason:
        raise Missing(reason)
    binaries = ensure()
    sweep()
    began = time.monotonic()
    folder, lock = make_locked(runs())
    with lock:
        (folder / "logs").mkdir()
        control_groups.make(folder)
        process, port = _spawn(folder, lock, binaries, stay=stay)
    if stay:
        (folder / STAYS).touch()
    (folder / "pid").write_text(str(process.pid))
    cluster = Cluster(folder, process)
    answer = _answer(process)
    if answer:
        told = _last_words(cluster.logs)
        cluster.stop()
        raise Missing(f"the cluster did not start: {answer}\n{told}")
    admin = yaml.safe_load((folder / "admin.kubeconfig").read_text())
    admin["clusters"][0]["cluster"]["server"] = f"https://127.0.0.1:{port}"
    cluster.kubeconfig.touch(mode=0o600)
    cluster.kubeconfig.write_text(yaml.safe_dump(admin))
    say(f"up after {time.monotonic() - began:.1f} s, logs in {cluster.logs}")
    return cluster


def unfit() -> str:
    """Return why this machine cannot run a cluster, empty if it can; checked before anything is built."""
    if os.geteuid() != 0:
        return "a cluster of our own needs root; or name one by SLICEKEEPER_CLUSTER_KUBECONFIG"
    with tempfile.TemporaryDirectory() as folder:
        command = [*_UNSHARE, "sh", "-ec", _PROBE, folder]
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        except FileNotFoundError:
            return "no `unshare` here: install util-linux"
        except subprocess.TimeoutExpired:
            return "new namespaces gave no answer for 60 s"
    if done.returncode != 0:
        told = (done.stderr.strip().splitlines() or [f"exit {done.returncode}"])[-1]
        return f"this machine lets even root make no namespaces and mounts ({told}); a privileged container would do"
    trial = Path(secrets.token_hex(3))
    try:
        control_groups.make(trial)
    except OSError as error:
        return f"control groups cannot be made here ({error}); containers need them"
    finally:
        control_groups.remove(trial, tries=1)
    return ""


def _spawn(folder: Path, lock: IO[bytes], binaries: Binaries, *, stay: bool) -> tuple[subprocess.Popen[bytes], int]:
    """Start the first process, which takes the lock over; return it and the port of the API server."""
    paths = json.dumps({name: str(path) for name, path in asdict(binaries).items()})
    with socket.create_server(("127.0.0.1", 0), backlog=256) as listener:
        inside = [sys.executable, "-m", "cluster.harness.inside", str(folder), str(listener.fileno()), paths]
        command = [*_UNSHARE, *inside]
        with (folder / "logs" / "inside.log").open("wb") as log:
            process = subprocess.Popen(
                [*command, "stay"] if stay else command,
                stdin=subprocess.DEVNULL if stay else subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONPATH": str(TESTS)},
                pass_fds=(listener.fileno(), lock.fileno()),
                start_new_session=True,
            )
        return process, int(listener.getsockname()[1])


def _answer(process: subprocess.Popen[bytes]) -> str:
    """Return why the cluster did not start, empty if it did."""
    assert process.stdout is not None
    ready, _, _ = select.select([process.stdout], [], [], START_SECONDS)
    if not ready:
        return f"no answer after {START_SECONDS:.0f} s"
    line = process.stdout.readline()
    return str(json.loads(line).get("error", "")) if line else "its first process ended; see inside.log"


def _last_words(logs: Path) -> str:
    """Return how each program's log ends: the logs go with the cluster."""
    ends = {file.name: file.read_text("utf-8", "replace").splitlines()[-20:] for file in sorted(logs.glob("*.log"))}
    return "\n".join(f"--- {name}\n" + "\n".join(lines) for name, lines in ends.items())


def runs() -> Path:
    """Return the folder of all clusters of this machine."""
    return cache() / "run"


def living() -> list[Cluster]:
    """Return the clusters of this machine whose programs run, or are being started."""
    found = []
    for folder in _folders():
        lock = locked(folder)
        if lock is None:
            found += [Cluster(folder)] if (folder / "pid").exists() else []
        else:
            lock.close()
    return found


def sweep() -> None:
    """Remove what clusters that were killed have left."""
    if not runs().is_dir():
        return
    with all_locked(runs()):
        for folder in _folders():
            lock = locked(folder)
            if lock is not None:
                with lock:
                    remove(folder)


def _folders() -> list[Path]:
    """Return the folders of all clusters; a cluster holds the lock of its folder to its end."""
    return sorted(path for path in runs().iterdir() if path.is_dir()) if runs().is_dir() else []


def remove(folder: Path) -> None:
    """Remove a dead cluster's files and control groups; mounts and networks went with its namespaces."""
    if control_groups.remove(folder):  # only the folder tells their name
        shutil.rmtree(folder, ignore_errors=True)
    if folder.exists():
        say(f"not all of {folder} could be removed; the next start tries again")
