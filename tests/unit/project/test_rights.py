# SPDX-License-Identifier: Apache-2.0
"""Each verb that our manifests give an account is used, and missed by the part's own code when it is taken away.

The parts run against an API server in memory that answers by the manifests' own RBAC rules. What kube-scheduler's
binary needs is listed here and seen on a real cluster, for it is none of our code.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any
from unittest import mock

import pytest
from support.manual_clock import ManualClock
from support.rbac_server import GRANTED, HOME, READ, TEAM, Right, Server, documents, pod, world

from certificates.namespace_bundles import BundlePublisher
from certificates.tls_secrets import SECRETS, CertificateKeeper
from nodeagent.gpu_publisher import GpuPublisher
from nodeagent.node_pods import NodePods
from nodeagent.process_audit import Audit
from objects.budgets.keeper import Keeper
from objects.budgets.resources import CLUSTER_GPU_BUDGETS, GPU_BUDGETS
from objects.policies.keeper import PolicyKeeper
from objects.sharepods.keeper import SharePodKeeper
from objects.sharepods.template import SHAREPOD_LABEL
from scheduler.job_progress import JobProgress
from scheduler.pods import read_pod
from scheduler.reclaim.disruption_budgets import not_allowed_together
from scheduler.reclaim.retry_trigger import RetryTrigger
from scheduler.scheduler_process import Scheduler
from slicekeeper import names
from slicekeeper.cli.check.rights import ALWAYS
from slicekeeper.config.policy import NamespacePolicy
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings, Resources, Settings, TimekeeperSettings
from slicekeeper.errors import Forbidden
from slicekeeper.gpu.inventory import Gpu
from slicekeeper.kube import break_glass_record, events
from slicekeeper.kube.eviction import evict
from slicekeeper.kube.leader import LeaderElection
from slicekeeper.kube.policy_watch import GPU_POLICIES, PolicyObjects
from slicekeeper.kube.watch import Watch
from slicekeeper.net.tls import ClientCas
from slicekeeper.wire.timekeeper import Budget, KeptBy, Parent
from timekeeper.api.front_proxy import FrontProxy
from timekeeper.api.identity import Identity
from timekeeper.cluster import pod_patch
from timekeeper.cluster.accepted_policy import AcceptedPolicy
from timekeeper.cluster.break_glass_records import ReleasedPods
from timekeeper.cluster.lost_label import StrayPods
from timekeeper.cluster.node_clock import NodeClocks
from timekeeper.cluster.opening import Openings
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.cluster.watches import ClusterNodes, Namespaces, Pods
from timekeeper.core.caller import Caller
from webhook import cluster_watches
from webhook.limit_range_watch import LimitRanges
from webhook.priority_class_watch import PriorityClasses

NOW = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp() * 1000)


def follow(watch: Watch) -> None:
    """Run one round of a watch's loop."""
    watch._list()
    watch._follow()


def attempt(act: Callable[[], object]) -> None:
    """Do one thing; what RBAC refused is noted by the server, whether the code bears it or not."""
    with suppress(Forbidden):
        act()


def elect(server: Server, name: str) -> None:
    campaign = LeaderElection(server, ManualClock(NOW), namespace=HOME, name=name, identity="me")  # type: ignore[arg-type]
    attempt(campaign.campaign)  # makes the lease
    server.put("leases", {"metadata": {"name": name, "namespace": HOME}, "spec": {"holderIdentity": "me"}})
    attempt(campaign.campaign)  # renews it


def follow_policies(server: Server) -> None:
    followed = PolicyObjects(server, PolicyFile(PolicySettings(objects=True)))  # type: ignore[arg-type]
    attempt(lambda: follow(followed._watch))


def run_webhook(server: Server) -> None:
    follow_policies(server)
    with mock.patch.object(cluster_watches, "KubeClient", return_value=server):
        watches = cluster_watches.watches_of(PriorityClasses(Settings().classes), LimitRanges(), Settings().kubernetes)
    for watch in watches:
        attempt(lambda watch=watch: follow(watch))  # type: ignore[misc]
    # What the timekeeper asks the API server before it answers GET /api/v1/decisions.
    attempt(lambda: server.ask("list", names.GROUP, "gpubudgets"))


def run_timekeeper(server: Server) -> None:
    follow_policies(server)
    client: Any = server
    clock, settings = ManualClock(NOW), Settings(timekeeper=TimekeeperSettings(weight="quota"))
    books, policy = mock.Mock(), mock.Mock()
    books.database.engine.dialect.name = "sqlite"
    with mock.patch.multiple("timekeeper.cluster.reconcile_loop", Leadership=mock.DEFAULT, Openings=mock.DEFAULT):
        controller = Controller(settings, clock, client, books, policy)
    for watch in controller._watches:
        attempt(lambda watch=watch: follow(watch))  # type: ignore[misc]
    controller.namespaces.on_list([])
    attempt(lambda: controller.namespace_uid(TEAM))
    controller.stop()
    openings = Openings(settings, client, mock.MagicMock(), ClusterNodes(), Namespaces())
    attempt(lambda: openings._look_at("n"))
    attempt(lambda: openings._quota({"metadata": {"namespace": TEAM}}))
    attempt(lambda: NodeClocks(client).ahead(pod(), NOW))
    strays = StrayPods(client, Pods(mock.Mock()), mock.Mock(spec=Executor))
    strays.add(pod())
    attempt(lambda: strays.look(0))
    attempt(strays.sweep)
    attempt(lambda: pod_patch.release(client, pod()))
    attempt(lambda: pod_patch.say(client, clock, pod(), kind="Normal", reason="A", action="B", note="c"))
    attempt(lambda: evict(client, pod()))
    attempt(FrontProxy(client, ClientCas()).look)
    identity = Identity(client, "timekeeper", "")
    attempt(lambda: identity.caller("Bearer t"))
    attempt(lambda: identity.allow(Caller("jane"), "get", TEAM))
    [(record, _)] = break_glass_record.records([pod()], {TEAM: "uid"}, {})
    server.put("configmaps", {**record, "metadata": {**record["metadata"], "namespace": HOME}})
    let_go = ReleasedPods(client, HOME, Pods(mock.Mock()), ClusterNodes())
    attempt(let_go.gone)
    attempt(lambda: let_go.settle(["uid-p"]))
    accepted = AcceptedPolicy(client, HOME, PolicyFile(PolicySettings()))
    attempt(lambda: accepted._write("a"))  # makes it
    attempt(lambda: accepted._write("b"))  # changes it


def run_scheduler(server: Server) -> None:
    client: Any = server
    clock = ManualClock(NOW)
    with mock.patch("scheduler.scheduler_process.KubeClient", return_value=client):
        scheduler = Scheduler(Settings(), clock)
    for watch in scheduler.watches._watches.values():
        attempt(lambda watch=watch: follow(watch))  # type: ignore[misc]
    args: Any = {"PodName": "p", "PodNamespace": TEAM, "PodUID": "uid-p", "Node": "n"}
    attempt(lambda: scheduler.binder._try(args, {}))
    attempt(lambda: scheduler.binder._read(args))
    read = read_pod(pod(), Resources())
    assert read is not None
    evictor = scheduler.reclaimer._evictor
    attempt(lambda: evictor._evict(read))
    attempt(lambda: not_allowed_together(client, [read, read]))
    attempt(lambda: evictor._tell(pod(), "Normal", "Reclaimed", "note"))
    retry_trigger = RetryTrigger(client, clock, pause_seconds=1)
    retry_trigger.trigger(read, at_once=True)
    waits = read_pod(pod(node=""), Resources())
    assert waits is not None
    scheduler.notices._write(waits)
    job = {"kind": "Job", "name": "j", "uid": "uid-j", "controller": True}
    of_job = replace(waits, controller="uid-j", waiting={"metadata": {"ownerReferences": [job]}})
    attempt(lambda: JobProgress(client, clock).succeeded([of_job]))
    elect(server, "slicekeeper-reclaimer")
    elect(server, "slicekeeper-binder")


def run_nodeagent(server: Server) -> None:
    follow_policies(server)
    client: Any = server
    publisher = GpuPublisher(client, "n", mock.Mock(gpus=lambda: [Gpu("GPU-1", "A10", 1024)]), Resources(), 1.0)
    attempt(publisher.reconcile)
    pods = NodePods(client, "n", lambda: None, lambda: None)
    attempt(lambda: follow(pods._watch))
    attempt(lambda: pods.ask(TEAM, "p"))
    events.write(client, ManualClock(NOW), pod(), kind="Warning", reason="A", action="B", note="c", reporter="agent")
    audit = Audit(
        client,
        "n",
        mock.Mock(),
        mock.Mock(),
        mock.Mock(),
        Resources(),
        lambda _: NamespacePolicy(audit="evict"),
        lambda *_: None,
    )
    attempt(lambda: audit._evict(mock.Mock(note=""), pod(), 0.0))


def run_certificates(server: Server) -> None:
    client: Any = server
    clock, settings = ManualClock(NOW), Settings().certificates
    publisher = BundlePublisher(client, HOME, mock.Mock())
    for watch in publisher._watches:
        attempt(lambda watch=watch: follow(watch))  # type: ignore[misc]
        watch.synced.set()
    keeper = CertificateKeeper(client, clock, settings, publisher)
    attempt(keeper.keep)  # makes all
    for name in (settings.ca_secret, "webhook-tls", "timekeeper-tls"):
        # What was there before: a right that is missed at the first step must not hide the others.
        server.objects.setdefault(("secrets", HOME, name), {"metadata": {"name": name, "namespace": HOME}})
        attempt(lambda name=name: keeper._write(client.find(SECRETS, name, HOME), name, {}, "Opaque"))  # type: ignore[misc]
    attempt(lambda: publisher.publish(b"other"))
    damaged = {"metadata": {"name": names.CA_CONFIG_MAP, "namespace": TEAM}, "data": {}}
    server.put("configmaps", damaged)
    publisher._published.on_list([server.objects["configmaps", TEAM, names.CA_CONFIG_MAP]])
    attempt(lambda: publisher.publish(b"another"))
    elect(server, "slicekeeper-certificates")


class Timekeeper:
    """What the operator asks of the timekeeper, each as the right that the timekeeper asks the API server about."""

    def __init__(self, server: Server) -> None:
        self._server = server

    def budgets(self, kind: type[Budget] | type[Parent]) -> Iterator[Budget | Parent]:
        kept = {"kept_by": KeptBy(uid="deleted", generation=1)}
        if kind is Budget:
            self._server.ask("list", names.GROUP, "gpubudgets")
            yield Budget(namespace=TEAM, **FIGURES, **kept)
        else:
            self._server.ask("list", names.GROUP, "gpubudgets/parents")
            yield Parent(name="physics", kind="team", **FIGURES, **kept)

    def put_object(self, kind: type[Budget] | type[Parent], *_: object) -> Budget | Parent:
        self._server.ask("update", names.GROUP, "gpubudgets/objects")
        return next(iter(self.budgets(kind)))

    def delete_object(self, *_: object) -> None:
        self._server.ask("delete", names.GROUP, "gpubudgets/objects")


FIGURES: dict[str, Any] = {
    "amount_ms": 1,
    "period": "none",
    "time_zone": "UTC",
    "balance_ms": 1,
    "used_ms": 0,
    "over_budget_ms": 0,
    "granted_ms": 0,
    "state": "ok",
}


def run_objects(server: Server) -> None:
    client: Any = server
    told: Any = Timekeeper(server)
    for plural, name, where in (("clustergpubudgets", "physics", ""), ("gpubudgets", "default", TEAM)):
        metadata = {"name": name, "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z"}
        metadata |= {"namespace": where} if where else {}
        server.put(plural, {"metadata": metadata, "spec": {"amount": "1h", "period": "none"}})
    attempt(Keeper(client, told, ManualClock(NOW), lambda: True).keep)
    server.put("gpupolicies", {"metadata": {"name": "teams", "generation": 1}, "spec": {"match": [TEAM]}})
    attempt(PolicyKeeper(client, PolicyFile(PolicySettings()), ManualClock(NOW), lambda: True).keep)
    elect(server, "slicekeeper-objects")
    # What kopf itself follows: all kinds in all namespaces, and which kinds there are.
    for resource in (CLUSTER_GPU_BUDGETS.resource, GPU_BUDGETS.resource, GPU_POLICIES):
        for verb in ("list", "watch"):
            attempt(lambda verb=verb, resource=resource: server.may(verb, resource))  # type: ignore[misc]
    for verb in ("list", "watch"):
        attempt(lambda verb=verb: server.ask(verb, "apiextensions.k8s.io", "customresourcedefinitions"))  # type: ignore[misc]


def run_sharepods(server: Server) -> None:
    client: Any = server
    keeper = SharePodKeeper(client, Resources(), ManualClock(NOW), lambda: True)
    for name in ("new", "failed", "orphaned"):
        metadata = {"name": name, "namespace": TEAM, "generation": 1}
        server.put("sharepods", {"metadata": metadata, "spec": {"containers": [{"name": "c"}]}})
    for name, owners, phase in (
        ("failed", [{"kind": "SharePod", "uid": "uid-failed", "controller": True}], "Failed"),
        ("orphaned", [], "Running"),
    ):
        metadata = {
            "name": name,
            "namespace": TEAM,
            "labels": {SHAREPOD_LABEL: "true"},
            "ownerReferences": owners,
            "creationTimestamp": "2025-01-01T00:00:00Z",
        }
        server.put("pods", {"metadata": metadata, "spec": {"containers": [{"name": "c"}]}, "status": {"phase": phase}})
    for watch in keeper._watches:
        attempt(lambda watch=watch: follow(watch))  # type: ignore[misc]
        watch.synced.set()
    attempt(keeper.keep)
    # With OwnerReferencesPermissionEnforcement the API server asks about whoever makes a pod that holds up its owner.
    attempt(lambda: server.ask("update", "kubeshare.nthu", "sharepods/finalizers"))
    elect(server, "slicekeeper-sharepods")


RUNS = {
    "webhook": run_webhook,
    "timekeeper": run_timekeeper,
    "scheduler": run_scheduler,
    "nodeagent": run_nodeagent,
    "certificates": run_certificates,
    "objects": run_objects,
    "sharepods": run_sharepods,
}


def _kube_scheduler(right: Right) -> bool:
    """Whether kube-scheduler's binary alone uses a right."""
    read = {
        "": (
            "services",
            "replicationcontrollers",
            "persistentvolumes",
            "persistentvolumeclaims",
            "namespaces",
            "nodes",
        ),
        "apps": ("replicasets", "statefulsets"),
        "policy": ("poddisruptionbudgets",),
        "storage.k8s.io": ("csinodes", "csidrivers", "csistoragecapacities", "volumeattachments"),
        "resource.k8s.io": ("deviceclasses", "resourceslices", "resourceclaims", "devicetaintrules"),
    }
    others = {
        ("", "pods", "delete"),  # what it preempts; a guard keeps it to that
        ("events.k8s.io", "events", "create"),
        ("events.k8s.io", "events", "patch"),
        ("resource.k8s.io", "resourceclaims", "update"),
        ("resource.k8s.io", "resourceclaims", "patch"),
        ("resource.k8s.io", "resourceclaims/status", "update"),
        ("resource.k8s.io", "resourceclaims/status", "patch"),
        ("resource.k8s.io", "resourceclaims/binding", "update"),
        ("resource.k8s.io", "resourceclaims/binding", "patch"),
        ("resource.k8s.io", "resourceclaims", "create"),
        ("resource.k8s.io", "resourceclaims", "delete"),
        ("", "pods/finalizers", "update"),
    }
    ours = {("nodes", "list"), ("nodes", "watch"), ("poddisruptionbudgets", "list")}
    if right.account != "scheduler" or (right.resource, right.verb) in ours:
        return False
    in_reads = right.verb in READ and right.resource in read.get(right.group, ())
    return in_reads or (right.group, right.resource, right.verb) in others


OURS = [right for right in GRANTED if not _kube_scheduler(right)]


def run(account: str, rights: list[Right]) -> Server:
    server = world([right for right in rights if right.account == account])
    RUNS[account](server)
    return server


@pytest.mark.parametrize("account", RUNS)
def test_every_part_has_the_rights_that_it_uses(account: str) -> None:
    server = run(account, GRANTED)
    assert server.missed == []
    assert {right for right in OURS if right.account == account} <= server.used


@pytest.mark.parametrize("taken", OURS, ids=lambda r: f"{r.account}: {r.verb} {r.resource} {r.group}".strip())
def test_a_right_that_is_taken_away_is_missed(taken: Right) -> None:
    server = run(taken.account, [right for right in GRANTED if right != taken])
    assert f"{taken.verb} {taken.resource}.{taken.group}" in server.missed


def test_what_slicekeeper_check_asks_about_is_granted() -> None:
    for right in ALWAYS:
        home = HOME if right.at_home else ""
        assert any(
            granted.account == right.account
            and granted.covers(right.verb, right.group, right.resource, home, right.name)
            for granted in GRANTED
        ), right
    assert {right.account for right in ALWAYS} == {right.account for right in GRANTED} - {"objects", "sharepods"}


def test_no_account_has_a_right_of_another_kind() -> None:
    assert {right.account for right in GRANTED} == set(RUNS)
    assert not [right for right in GRANTED if "*" in (right.verb, right.group, right.resource)]
    reviews = {r.account for r in GRANTED if r.resource in ("tokenreviews", "subjectaccessreviews")}
    assert reviews == {"timekeeper"}
    by_kubernetes = {
        document["roleRef"]["name"]
        for document in documents()
        if document["kind"] == "ClusterRoleBinding" and document["roleRef"]["name"].startswith("system:")
    }
    assert by_kubernetes == {"system:volume-scheduler"}
