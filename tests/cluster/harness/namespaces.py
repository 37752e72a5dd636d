# SPDX-License-Identifier: Apache-2.0
"""What the cluster's own mount, network and process namespaces look like, seen from inside.

Everything that a node leaves behind (mounts, interfaces, iptables rules, shims, containers) lies in these
namespaces and is gone when their first process ends, however it ends. Nothing of the host's is changed.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

NODE_IP = "10.0.0.1"
SERVICE_CIDR = "10.96.0.0/16"
API_SERVICE_IP = "10.96.0.1"
POD_CIDR = "10.244.0.0/16"

_SYSCTLS = {
    "vm/overcommit_memory": "1",
    "vm/panic_on_oom": "0",
    "kernel/panic": "10",
    "kernel/panic_on_oops": "1",
    "kernel/keys/root_maxkeys": "1000000",
    "kernel/keys/root_maxbytes": "25000000",
}
"""What kubelet would set for the whole machine. It finds these values and leaves the machine alone."""


def prepare(folder: Path) -> None:
    """Make this process's namespaces fit for a node whose files lie in `folder`."""
    _run("mount", "--make-rshared", "/")
    _mounts(folder)
    _network()


def lose_memory() -> None:
    """Take away what lies in a node's memory and not on its disk: volumes of pods, and all of /run."""
    _run("umount", "--lazy", "/run")  # and all that is mounted in it
    _run_folder()
    lines = Path("/proc/self/mountinfo").read_text().splitlines()
    places = [line.split()[4].encode().decode("unicode_escape") for line in lines]
    for place in reversed(places):
        if place.startswith("/var/lib/kubelet/pods/"):
            _run("umount", "--lazy", place)


def _mounts(folder: Path) -> None:
    for place in ("/var/lib", "/var/log"):
        name = place.strip("/").replace("/", "-")
        upper, work = folder / f"{name}.upper", folder / f"{name}.work"
        upper.mkdir()
        work.mkdir()
        _run("mount", "-t", "overlay", "overlay", "-o", f"lowerdir={place},upperdir={upper},workdir={work}", place)
    _run_folder()
    for target in ("/var/lib/kubelet", "/var/lib/slicekeeper", "/var/log/pods"):
        source = folder / target.strip("/").replace("/", "-")
        source.mkdir()
        Path(target).mkdir(exist_ok=True)
        _run("mount", "--bind", str(source), target)
        _run("mount", "--make-shared", target)
    for name, value in _SYSCTLS.items():
        real = Path("/proc/sys") / name
        if real.exists():
            stand_in = folder / f"sysctl-{name.replace('/', '-')}"
            stand_in.write_text(f"{value}\n")
            _run("mount", "--bind", str(stand_in), str(real))


def _run_folder() -> None:
    _run("mount", "-t", "tmpfs", "-o", "mode=755", "tmpfs", "/run")
    _run("mount", "--make-rshared", "/run")


def _network() -> None:
    _run("ip", "link", "set", "lo", "up")
    _run("ip", "link", "add", "node0", "type", "veth", "peer", "name", "nowhere")
    _run("ip", "link", "set", "nowhere", "up")
    _run("ip", "address", "add", f"{NODE_IP}/24", "dev", "node0")
    _run("ip", "link", "set", "node0", "up")
    _run("ip", "route", "add", "default", "dev", "node0")  # service addresses need a route before they are rewritten
    Path("/proc/sys/net/ipv4/ip_forward").write_text("1")


def _run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=30)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.stderr.strip() or done.returncode}")
