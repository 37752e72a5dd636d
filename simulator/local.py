# SPDX-License-Identifier: Apache-2.0
"""Local mode: the simulated cluster in this process, and the real parts around it as child processes.

All state is in one home folder, which this process owns by a file lock. Every start begins afresh: the cluster is in
memory, so a ledger of an earlier one would be about pods that no longer exist.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol, Self

import yaml

from simulator import certificates, initial_objects
from simulator.api import Api, ApiServer
from simulator.cluster import Cluster
from simulator.controllers import Controllers
from simulator.kubelet import Kubelet
from simulator.kubescheduler import KubeScheduler
from simulator.part_processes import Part, Parts
from simulator.processes import Spawner
from slicekeeper import clock as clocks
from slicekeeper.cli import local_home
from slicekeeper.config.load import keys, load
from slicekeeper.config.settings import ClockSettings, Settings, TimekeeperSettings
from slicekeeper.errors import SettingsError
from slicekeeper.kube.client import KubeClient
from slicekeeper.net.json_client import JsonClient
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.units import format_instant

LEDGER: Final = ("timekeeper.sqlite", "timekeeper.sqlite-wal", "timekeeper.sqlite-shm")
STATE: Final = (local_home.SETTINGS, "policy.yaml", "operator.token", "certificates", "logs", "pods", *LEDGER)
"""The files that local mode keeps in its home, and removes when it starts."""
LOCK_SECONDS: Final = 1.0


@dataclass(frozen=True)
class Options:
    """The shape of the cluster, and how fast its time runs."""

    nodes: int = 2
    gpus: int = 2
    model: str = "A100"
    mig: str = ""
    speed: float = 60.0
    policy: Path | None = None


class Component(Protocol):
    """A component that runs until it is stopped."""

    def start(self) -> None:
        """Start; returns when it is ready."""

    def stop(self) -> None:
        """Stop; harmless if `start` failed."""


class Interrupted(Exception):
    """Local mode is to end."""


class LocalCluster:
    """A whole cluster on one machine, from `start` to `stop`. `tell` gets lines for people.

    Code that waits calls `go_on` meanwhile, which raises Interrupted once `interrupted` is set. If a signal handler
    raised instead, it could do so inside `threading`, between two lines that belong together.
    """

    def __init__(
        self, home: Path, options: Options, tell: Callable[[str], None], interrupted: threading.Event | None = None
    ) -> None:
        self.home = home
        self.options = options
        self._tell = tell
        self.interrupted = interrupted or threading.Event()
        self._spawner = Spawner()
        self._lock: int | None = None
        self._webhook: JsonClient | None = None
        self._started: list[Component] = []

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def start(self) -> None:
        """Start everything and return when all parts are ready.

        Raises SlicekeeperError; what was started is stopped again.
        """
        try:
            self._take_home()
            self._start()
        except BaseException:
            self.stop()
            raise

    def go_on(self) -> None:
        """Raise Interrupted if local mode is to end."""
        if self.interrupted.is_set():
            raise Interrupted

    def stop(self) -> None:
        """Stop everything that was started, the last first, and release the home."""
        if self._webhook is not None:
            self._webhook.close()  # a webhook that is to stop waits seconds for requests on idle connections
        while self._started:
            self._started.pop().stop()
        self._spawner.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _start(self) -> None:
        origin_ms = clocks.Clock().now_ms()
        files = certificates.make(self.home / "certificates", origin_ms)
        listeners = {"timekeeper": listen(TimekeeperSettings().bind), "scheduler": listen(), "webhook": listen()}
        addresses = {part: "{}:{}".format(*listener.getsockname()) for part, listener in listeners.items()}
        settings = Settings(clock=ClockSettings(origin=format_instant(origin_ms), speed=self.options.speed))
        self._webhook = JsonClient(f"https://{addresses['webhook']}", ca_file=str(files.ca))
        self.cluster = Cluster(clocks.from_settings(settings.clock), self._webhook)
        wanted = self.options
        initial_objects.fill(self.cluster.store, settings, wanted.nodes, wanted.gpus, wanted.model, wanted.mig)
        server = ApiServer(Api(self.cluster), extra={"/simulator/processes": self.processes})
        self.config = self._write_config(settings, server.url, addresses, files)
        environ = _without_ours(os.environ, self.config)
        self.settings = load(self.config, environ).settings
        logs = self.home / "logs"
        self.kubelet = Kubelet(self.cluster, self.settings, self._spawner, self.home / "pods", logs)
        self.parts = Parts(
            [
                Part("timekeeper", f"http://{addresses['timekeeper']}", listeners["timekeeper"]),
                Part("scheduler", f"http://{addresses['scheduler']}", listeners["scheduler"]),
                Part("webhook", f"https://{addresses['webhook']}", listeners["webhook"], str(files.ca)),
            ],
            self.config,
            environ,
            logs,
            self._spawner,
            self._tell,
            self.go_on,
        )
        extender = JsonClient(f"http://{addresses['scheduler']}", timeout=30.0)
        self._tell(
            f"cluster of {self.options.nodes} nodes with {self.options.gpus} {self.options.model} each ready at "
            f"{server.url}; its time runs {self.options.speed:g} times as fast"
        )
        for component in (
            server,
            self.parts,
            self.kubelet,
            KubeScheduler(self.cluster, extender, self.settings.webhook.scheduler_name),
            Controllers(self.cluster),
        ):
            self.go_on()
            self._started.append(component)
            component.start()

    def kube_client(self) -> KubeClient:
        """Return a client of the cluster's API."""
        return KubeClient(self.settings.kubernetes)

    def timekeeper_client(self) -> TimekeeperClient:
        """Return a client of the timekeeper, with the operator's token."""
        return TimekeeperClient(self.settings.timekeeper_client)

    def processes(self) -> dict[str, Any]:
        """Return the process ids of all parts and of the sidecars, the latter by pod UID."""
        return {"parts": self.parts.pids(), "sidecars": self.kubelet.sidecar_pids()}

    def _take_home(self) -> None:
        """Lock the home, and remove what an earlier local mode has left in it.

        Raises SettingsError if another one runs there, or if it is no folder for this.
        """
        try:
            self.home = self.home.absolute()
            self.home.mkdir(parents=True, exist_ok=True)
            self._check_no_others_files()
            self._lock = os.open(self.home / local_home.LOCK, os.O_RDWR | os.O_CREAT, 0o644)
            self._take_lock(self._lock)
            self._remove_state()
        except OSError as error:
            why = "it is not a folder" if isinstance(error, (FileExistsError, NotADirectoryError)) else error.strerror
            raise SettingsError(
                f"local mode cannot keep its state in {self.home}: {why}; "
                "name a folder that you may write to: SLICEKEEPER_HOME=DIR"
            ) from error

    def _check_no_others_files(self) -> None:
        """Raise SettingsError if starting would remove files that no local mode has written."""
        found = [name for name in STATE if os.path.lexists(self.home / name)]
        if found and not os.path.lexists(self.home / local_home.LOCK):
            raise SettingsError(
                f"SLICEKEEPER_HOME is {str(self.home)!r}, which has its own {', '.join(found)}: local mode would "
                "remove that; name an empty folder or a new one"
            )

    def _take_lock(self, lock: int) -> None:
        # Commands that look whether local mode runs hold it for an instant.
        deadline = time.monotonic() + LOCK_SECONDS
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                if time.monotonic() < deadline:
                    time.sleep(0.02)
                    continue
                owner = os.pread(lock, 20, 0).decode().strip() or "unknown"
                raise SettingsError(
                    f"local mode already runs in {self.home} (process {owner}); end it with Ctrl-C there, "
                    "or name another home for this one: SLICEKEEPER_HOME=DIR"
                ) from error
            break
        os.truncate(lock, 0)
        os.pwrite(lock, f"{os.getpid()}\n".encode(), 0)

    def _remove_state(self) -> None:
        for name in STATE:
            path = self.home / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink(missing_ok=True)
        for folder in ("logs", "pods"):
            (self.home / folder).mkdir()

    def _write_config(
        self, settings: Settings, api: str, addresses: Mapping[str, str], files: certificates.Certificates
    ) -> Path:
        token = self.home / "operator.token"
        token.touch(0o600)
        token.write_text(secrets.token_urlsafe(32), "ascii")
        policy = self.home / "policy.yaml"
        policy.write_text(self.options.policy.read_text("utf-8") if self.options.policy else "default: {}\n", "utf-8")
        tree = _settings_tree(settings, paced=self.options.speed)
        tree["kubernetes"] = {"server": api}
        tree["policy"] |= {"file": str(policy)}
        tree["timekeeperClient"] = {"url": f"http://{addresses['timekeeper']}", "tokenFile": str(token)}
        tree["timekeeper"] |= {
            "bind": addresses["timekeeper"],
            "database": f"sqlite:///{self.home / 'timekeeper.sqlite'}",
            "operatorTokenFile": str(token),
        }
        tree["webhook"] |= {
            "bind": addresses["webhook"],
            "tls": {"certificateFile": str(files.certificate), "keyFile": str(files.key)},
        }
        tree["scheduler"] |= {"bind": addresses["scheduler"]}
        config = self.home / local_home.SETTINGS
        config.write_text("# Written by `slicekeeper local` for all parts.\n" + yaml.safe_dump(tree), "utf-8")
        return config


def _without_ours(environ: Mapping[str, str], config: Path) -> dict[str, str]:
    """Return an environment without variables that would lead the parts to other servers, ledgers or files than ours.

    In a shell that is set up for a real cluster they would otherwise act on that.
    """
    written = load(config, {}).origin
    ours = {
        key.variable for key in keys() if key.dotted in written or key.path[0] in ("kubernetes", "timekeeperClient")
    }
    return {name: value for name, value in environ.items() if name not in ours}


def _settings_tree(settings: Settings, paced: float) -> dict[str, Any]:
    """Return what local mode sets beside addresses.

    Intervals are in the clock's seconds, but what they pace is real work between real processes: each is so many
    real seconds times the clock's speed, and none is shorter than in a cluster.
    """

    def real(seconds: float, default: float) -> float:
        return max(default, round(seconds * paced, 3))

    webhook, scheduler, timekeeper = settings.webhook, settings.scheduler, settings.timekeeper
    return {
        "clock": {"origin": settings.clock.origin, "speed": settings.clock.speed},
        "log": {"style": "text"},
        "policy": {"reloadSeconds": 0.5},
        "webhook": {
            "workers": 2,
            "refreshSeconds": real(0.2, webhook.refresh_seconds),
            "staleSeconds": real(10.0, webhook.stale_seconds),
            "flipGraceSeconds": real(3.0, webhook.flip_grace_seconds),
            "reportSeconds": real(1.0, webhook.report_seconds),
        },
        "timekeeper": {
            "controllerSeconds": real(0.1, timekeeper.controller_seconds),
            "reservationMarginSeconds": real(5.0, timekeeper.reservation_margin_seconds),
        },
        "scheduler": {
            "assumeSeconds": real(5.0, scheduler.assume_seconds),
            "reclaimSeconds": real(0.2, scheduler.reclaim_seconds),
            "reclaimAfterSeconds": real(0.5, scheduler.reclaim_after_seconds),
        },
    }


def listen(usual: str = "") -> socket.socket:
    """Listen at the usual address (host:port), or at a free port of 127.0.0.1 if that is taken."""
    host, _, port = usual.rpartition(":")
    with contextlib.suppress(OSError):
        return socket.create_server((host or "127.0.0.1", int(port or 0)))
    return socket.create_server(("127.0.0.1", 0))
