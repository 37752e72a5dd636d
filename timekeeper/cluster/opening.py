# SPDX-License-Identifier: Apache-2.0
"""Convert a pod from the watch to what the books need: whether it is charged, since when, and for what."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import msgspec

from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.settings import Settings
from slicekeeper.errors import NotFound, Unavailable
from slicekeeper.gpu.inventory import Gpu
from slicekeeper.gpu.pod_request import parse_admitted
from slicekeeper.gpu.request import PodRequest
from slicekeeper.kube.break_glass_record import NAMESPACE_UID
from slicekeeper.kube.client import NODES, RESOURCE_QUOTAS, KubeClient, Object
from slicekeeper.kube.objects import Pod, read
from slicekeeper.units import Instant
from timekeeper.cluster.watches import ClusterNodes, Namespaces
from timekeeper.core import charged_fraction, interval, pod_need, quota_weight
from timekeeper.core.rate import RateBook
from timekeeper.ledger.workload import Opening
from timekeeper.store import workloads
from timekeeper.store.db.database import Database

_ALL_CHARGED: Final = NamespacePolicy(mode="enforce", nvidia_gpu="metered")


def namespace_of(pod: Object) -> str:
    """Return the namespace's name."""
    return str(pod["metadata"]["namespace"])


def charged_request(pod: Object, policy: NamespacePolicy, settings: Settings) -> PodRequest:
    """Return the requests that a pod is charged for: none if its namespace is off, or if they are invalid."""
    if policy.mode == "off":
        return PodRequest()
    # Requests that cannot be read are not charged: no charge is guessed.
    request, _ = parse_admitted(read(pod, Pod), settings.resources)
    if policy.nvidia_gpu != "metered" and request.devices:
        request = replace(request, devices={}, held_devices={})
    return request


class Openings:
    """Creates openings. Asks the API server only for what no watch has shown."""

    def __init__(
        self, settings: Settings, client: KubeClient, database: Database, nodes: ClusterNodes, namespaces: Namespaces
    ) -> None:
        self._settings = settings
        self._client = client
        self._database = database
        self._nodes = nodes
        self._namespaces = namespaces
        self._unkept: dict[str, Gpu] = {}
        with database.reading() as session:
            self._inventory: dict[str, Gpu] = workloads.gpus(session)

    def keep_inventory(self) -> None:
        """Record the GPUs that nodes have published since the last call."""
        self._unkept |= {gpu.uuid: gpu for gpu in self._nodes.take()}
        if self._unkept:
            self._database.write(lambda session: workloads.keep_gpus(session, self._unkept.values()))
            self._inventory |= self._unkept
            self._unkept.clear()

    def opening(self, pod: Object, start: interval.Start, policy: NamespacePolicy) -> Opening | None:
        """Return the opening of a bound pod; None if it is not charged.

        Raises Unavailable if the API server must be asked and does not answer, or if its namespace is not known yet.
        """
        request = charged_request(pod, policy, self._settings)
        if not request.holds_gpus:
            return None
        found = self._meter(pod, request, policy)
        if charged_fraction.GPU_UNKNOWN in found.flags and self._look_at(pod["spec"]["nodeName"]):
            found = self._meter(pod, request, policy)
        flags = {*found.flags}
        if not start.exact:
            flags.add("bound-elsewhere")
        if start.skewed:
            flags.add("clock-skew")
        holders = {r.container: r.gpus for r in request.requests}
        for container, counts in request.devices.items():
            holders[container] = holders.get(container, 0) + sum(counts.values())
        return Opening(
            pod_uid=pod["metadata"]["uid"],
            pod_name=pod["metadata"]["name"],
            namespace=namespace_of(pod),
            namespace_uid=str(pod.get(NAMESPACE_UID) or self.namespace_uid(namespace_of(pod))),
            node=pod["spec"]["nodeName"],
            gpus=found.gpus,
            holders=msgspec.json.encode(holders).decode(),
            gpu_class=request.gpu_class,
            shares=found.shares,
            start=start.at,
            flags=tuple(sorted(flags)),
            created=interval.created_at(pod, start.at),
        )

    def is_charged(self, pod: Object, policy: NamespacePolicy) -> bool:
        """Whether a pod will be charged once it is bound."""
        return charged_request(pod, policy, self._settings).holds_gpus

    def is_left_out(self, pod: Object, policy: NamespacePolicy) -> bool:
        """Whether a pod is not charged because of its namespace's policy, and would be under another one."""
        return not self.is_charged(pod, policy) and self.is_charged(pod, _ALL_CHARGED)

    def need(
        self, pod: Object, policy: NamespacePolicy, span: int, book: RateBook, now: Instant
    ) -> pod_need.Need | None:
        """Return the reservation that a pod needs if it holds its GPUs for `span` milliseconds at most.

        None if no GPU is known that it could get. Raises Unavailable if the API server does not answer.
        """
        return pod_need.need_of(
            charged_request(pod, policy, self._settings),
            span,
            gpus=self._inventory.values(),
            book=book,
            weight=self._settings.timekeeper.weight,
            background=policy.background_fraction,
            quota=self._quota(pod),
            now=now,
            device_nodes=self._nodes.all_device_labels(),
        )

    def namespace_uid(self, name: str) -> str:
        """Return a namespace's UID.

        Raises Unavailable if it is not known yet.
        """
        uid = self._namespaces.uid(name)
        if uid is None:
            raise Unavailable(f"namespace {name} is not known yet")
        return uid

    def _meter(self, pod: Object, request: PodRequest, policy: NamespacePolicy) -> charged_fraction.Metering:
        node = pod["spec"]["nodeName"]
        if request.devices and self._nodes.device_labels(node) is None:
            self._look_at(node)  # a device's fraction of a GPU must not depend on which watch was faster
        return charged_fraction.meter(
            pod,
            request,
            inventory=self._inventory,
            weight=self._settings.timekeeper.weight,
            background=policy.background_fraction,
            quota=self._quota(pod),
            device_model=self._nodes.device_model(node),
            device_labels=self._nodes.device_labels(node) or {},
        )

    def _quota(self, pod: Object) -> quota_weight.Quota | None:
        """Return the quota of a pod if pods are weighted by it."""
        if self._settings.timekeeper.weight != "quota":
            return None
        quotas, _ = self._client.list(RESOURCE_QUOTAS, namespace=namespace_of(pod))
        return quota_weight.quota_of(quotas, pod, self._settings.resources)

    def _look_at(self, node: str) -> bool:
        """Ask for a node whose GPUs the watch has not shown; return whether the answer has new ones."""
        try:
            self._nodes.on_event("MODIFIED", self._client.get(NODES, node))
        except NotFound:
            return False
        before = len(self._inventory)
        self.keep_inventory()
        return len(self._inventory) > before
