# SPDX-License-Identifier: Apache-2.0
"""Assemble the agent: the publisher, the seats, the plugin, the probes."""

from __future__ import annotations

import threading
import time
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from nodeagent.arbiter_client import Arbiter
from nodeagent.device_plugin import SeatPlugin
from nodeagent.gpu_health_events import GpuHealthWatch
from nodeagent.gpu_publisher import GpuPublisher
from nodeagent.gpu_source import GpuSource
from nodeagent.live_seats import LiveSeats
from nodeagent.mounted_programs import limiter
from nodeagent.node_pods import NodePods
from nodeagent.other_plugin_gpus import OfferedGpus
from nodeagent.pod_resources import PodResources
from nodeagent.process_audit import AUDIT_SECONDS, Audit
from nodeagent.run_folder import check_run_folder
from nodeagent.seat_files import SeatFiles
from nodeagent.seat_refused import SeatRefused
from nodeagent.seat_store import SeatStore
from nodeagent.seats import Seats, seat_ids
from nodeagent.shares import Shares
from nodeagent.usage_files import WRITE_SECONDS, UsageFiles
from nodeagent.whole_gpu_usage import WholeGpus
from slicekeeper import threads
from slicekeeper.clock import Clock
from slicekeeper.config.policy import NamespacePolicy, PolicyBook
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import Settings
from slicekeeper.gpu.node_setup import NodeSetup
from slicekeeper.kube import agent_address, events
from slicekeeper.kube.client import KubeClient, Object
from slicekeeper.kube.policy_watch import PolicyObjects
from slicekeeper.net.serving.wsgi import WsgiApp
from slicekeeper.wire import live_seats as wire

REPORTER: Final = "slicekeeper-nodeagent"

TIDY_SECONDS: Final = 30.0
"""Interval of cleaning up: everything at once, because container runtimes react to each change."""

LOOK_SECONDS: Final = 1.0
"""Interval of checks whether the folder of the seats was removed."""

LINGER_SECONDS: Final = 2.0
"""How long an agent continues to serve after SIGTERM: a binding in progress reaches kubelet within this time."""
LONGEST_LINGER_SECONDS: Final = 15.0
"""The maximum time that it continues while kubelet has not admitted the pods bound to the node."""


class Agent:
    """The agent of one node."""

    def __init__(self, settings: Settings, clock: Clock, source: GpuSource) -> None:
        mine = settings.node_agent
        self._bind, self._limits, self._node = mine.metrics_bind, settings.serving, mine.node_name
        self._clock = clock
        self._client = KubeClient(settings.kubernetes)
        kubelet = PodResources(Path(mine.pod_resources_socket), settings.resources.seat)
        devices = settings.resources.devices
        offered = OfferedGpus(source, mine.gpus, devices, partial(kubelet.devices, devices))
        self._source, self._offered = source, offered
        self._run_dir = Path(mine.run_dir)
        self._store = SeatStore(Path(mine.state_dir) / "seats")
        mounts = limiter(Path(mine.programs_dir), Path(mine.state_dir) / "lib")
        files = SeatFiles(Path(mine.cdi_dir), Path(mine.run_dir), settings.resources.seat, source, mounts)
        self._files = files
        limits = settings.webhook.injection == "limiter"
        self._arbiter = arbiter = Arbiter(Path(mine.run_dir))
        self._live = LiveSeats(self._store)
        self._usage = UsageFiles(arbiter, WholeGpus(source, files), self._store, files, self._live)
        self._shares = Shares(arbiter, self._store, limits=limits, rule=mine.rule, ceiling_of=self._ceiling_of)
        self._pods = NodePods(self._client, mine.node_name, self._free_seats, self._shares.changed)
        refused = partial(self._tell, "SeatRefused", "Start")
        self._seats = Seats(
            self._store, files, self._pods, offered, settings.resources, kubelet.owners, refused, self._shares
        )
        self._plugin = SeatPlugin(Path(mine.plugin_dir), settings.resources.seat, seat_ids(mine.seats), self._seats)
        port = int(mine.metrics_bind.rpartition(":")[2] or 0)
        address = agent_address.encode(mine.pod_ip, port) if mine.pod_ip and port else ""
        self._publisher = GpuPublisher(
            self._client,
            mine.node_name,
            offered,
            settings.resources,
            mine.reconcile_seconds,
            address,
            self._on_node,
            self._node_setup,
        )
        ill = partial(self._tell, "GpuUnhealthy", "Withdraw")
        self._health = GpuHealthWatch(
            source, offered, self._pods, settings.resources, mine.reconcile_seconds, self._publisher.changed, ill
        )
        # A broken file does not keep a node from its seats.
        self._policy = PolicyFile(settings.policy, PolicyBook(exempt=settings.policy.exempt_namespaces))
        self._policy.on_change = self._shares.changed
        self._policy_objects = PolicyObjects(self._client, self._policy) if settings.policy.objects else None
        self._audit = Audit(
            self._client,
            mine.node_name,
            arbiter,
            self._pods,
            offered,
            settings.resources,
            self._audit_policy,
            self._tell,
        )
        self._stopping = False
        self._ended = threading.Event()

    def run(self, stop: threading.Event) -> None:
        """Run until `stop`. Raises RunFolderRemoved if the folder of the seats was removed."""
        self._seats.restore()
        self._files.probe.start()
        self._plugin.start()  # before the rest: kubelet fails pods that arrive before
        self._publisher.start()
        self._pods.start()
        threads.repeat("gpu-health", self._health.look, self._ended)
        self._shares.start(self._pods)
        threads.repeat("usage", self._usage.write, self._ended, WRITE_SECONDS)
        self._policy.start()
        if self._policy_objects is not None:
            self._policy_objects.start()
        threads.repeat("audit", self._audit.look, self._ended, AUDIT_SECONDS)
        self._serve()
        try:
            while not self._pause(stop):
                self._seats.tidy()
                if self._pods.synced:
                    self._seats.free()  # the seat of a pod that was deleted while its container was being started
                self._files.probe.look(started=self._files.has_started_one())
            self._linger()
        finally:  # a thread that serves kubelet's stream would keep the process alive
            self._files.probe.stop()
            self._ended.set()
            self._policy.stop()
            if self._policy_objects is not None:
                self._policy_objects.stop()
            self._shares.stop()
            self._plugin.stop()
            self._pods.stop()

    def _pause(self, stop: threading.Event) -> bool:
        """Wait until it is time to tidy up, or until `stop`; return which."""
        end = time.monotonic() + TIDY_SECONDS
        while not stop.wait(LOOK_SECONDS) and time.monotonic() < end:
            check_run_folder(self._run_dir)
        return stop.is_set()

    def _serve(self) -> None:
        """Answer probes and scrapes.

        The imports for that are made only now: they are a quarter of all, and until the rest of the agent runs, no
        change of a budget reaches the slices of the node.
        """
        from prometheus_client import REGISTRY, make_wsgi_app  # noqa: PLC0415

        from nodeagent.metrics import SeatMetrics, ShareMetrics, StrayMetrics  # noqa: PLC0415
        from slicekeeper.net import probes  # noqa: PLC0415

        REGISTRY.register(SeatMetrics(self._store))
        REGISTRY.register(ShareMetrics(self._arbiter, self._store, self._source, self._live, self._node))
        REGISTRY.register(StrayMetrics(self._audit, self._offered, self._node))
        if self._bind:
            more: dict[str, WsgiApp] = {"/metrics": make_wsgi_app(), wire.PATH: self._live}
            probes.serve(self._bind, self._limits, ready=self._not_ready, more=more)

    def _linger(self) -> None:
        """Accept no more pods, and let kubelet admit those that were bound before."""
        self._stopping = True
        began = time.monotonic()
        self._publisher.stop()
        time.sleep(LINGER_SECONDS)
        while self._pods.arriving() and time.monotonic() - began < LONGEST_LINGER_SECONDS:
            time.sleep(0.1)

    def _not_ready(self) -> str:
        unsaved = self._store.trouble()  # kubelet fails each pod whose seat cannot be saved
        parts = {
            "it is about to stop": not self._stopping,
            "GPUs not published": self._publisher.published.is_set(),
            "pods of the node not listed": self._pods.synced,
            "seats not registered with kubelet": self._plugin.registered.is_set(),
            "the arbiter does not answer": self._shares.ready,
            f"no seat can be saved: {unsaved}": not unsaved,
        }
        return ", ".join(text for text, ready in parts.items() if not ready)

    def _node_setup(self) -> NodeSetup:
        driver, why = self._source.driver()
        unusable = ""
        try:
            self._source.edits([part.uuid for gpu in self._offered.gpus() for part in gpu.parts if part.healthy])
        except (SeatRefused, OSError) as error:
            unusable = str(error)
        return NodeSetup(driver=driver, driver_trouble=why, device_trouble=unusable, cdi_read=self._files.probe.read)

    def _on_node(self, node: Object) -> None:
        self._offered.look_at(node)
        self._shares.look_at(node)

    def _ceiling_of(self, namespace: str) -> int | None:
        return self._policy.of(namespace).ceiling if self._policy_is_known else None

    @property
    def _policy_is_known(self) -> bool:
        return self._policy.complete.is_set() and not self._policy.unread

    def _audit_policy(self, namespace: str) -> NamespacePolicy:
        """Return the policy for the audit, which evicts nothing before the whole policy is known."""
        policy = self._policy.of(namespace)
        return policy if self._policy_is_known else msgspec.structs.replace(policy, audit="tell")

    def _free_seats(self) -> None:
        self._seats.free()

    def _tell(self, reason: str, action: str, pod: Object, note: str) -> None:
        events.write(
            self._client, self._clock, pod, kind="Warning", reason=reason, action=action, note=note, reporter=REPORTER
        )
