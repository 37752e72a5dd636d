# SPDX-License-Identifier: Apache-2.0
"""Reports repeated, reordered, lost, replayed, forged: usage is right or the report refused; charges never move."""

from __future__ import annotations

import os
import random
import signal
from collections.abc import Iterator
from contextlib import suppress
from fractions import Fraction
from pathlib import Path

import msgspec
import pytest
from support.charge_oracle import charges, interval
from support.local_cluster import PATIENCE, delete_all, namespace, pod, pods, records, start
from support.waiting import wait_for

from simulator.initial_objects import MODELS
from simulator.local import LocalCluster
from simulator.store import phase
from slicekeeper.errors import Forbidden, ServiceError
from slicekeeper.kube.client import Object
from slicekeeper.net.json_client import JsonClient
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.wire.timekeeper import UsageReport, Workload

CORE = 25
SECOND_NS = 1_000_000_000


@pytest.fixture
def local(tmp_path: Path) -> Iterator[LocalCluster]:
    local = start(tmp_path, nodes=1, gpus=1, speed=30)
    yield local
    local.stop()


def speaking_for(local: LocalCluster, found: Object) -> TimekeeperClient:
    """Return a client with a pod's own token, as its sidecar has it."""
    volumes = local.home / "pods" / found["metadata"]["uid"] / "volumes"
    settings = local.settings.timekeeper_client
    return TimekeeperClient(msgspec.structs.replace(settings, token_file=str(volumes / "slicekeeper-token" / "token")))


def outcomes(client: TimekeeperClient, *reports: UsageReport) -> list[tuple[str, str]]:
    return [(o.outcome, o.reason) for o in client.report(list(reports)).outcomes]


def workload(local: LocalCluster, name: str) -> Workload:
    return next(w for w in local.timekeeper_client().workloads("team") if w.pod_name == name)


def answers(local: LocalCluster) -> bool:
    """Whether the timekeeper does."""
    with suppress(ServiceError):
        local.timekeeper_client().decisions()
        return True
    return False


def test_hostile_reports_move_no_charge_and_honest_ones_count_once(local: LocalCluster) -> None:
    client = local.kube_client()
    namespace(client, "team")
    for name in ("one", "two"):
        pod(client, "team", name, CORE, 8)
    wait_for(lambda: [phase(p) for p in pods(local).values()] == ["Running"] * 2, "two running pods")
    wait_for(lambda: len(list(local.timekeeper_client().workloads("team"))) == 2, "both in the ledger")
    one, two = pods(local)["one"], pods(local)["two"]
    mine, others = speaking_for(local, one), speaking_for(local, two)
    epoch = local.cluster.clock.now_ms() * 1_000_000
    # The real sidecar of the one is held for a while, so that no other process counts for it.
    sidecar = local.processes()["sidecars"][one["metadata"]["uid"]]
    os.kill(sidecar, signal.SIGSTOP)
    os.killpg(local.processes()["parts"]["timekeeper"], signal.SIGKILL)  # and with it what the sidecar has just sent
    wait_for(lambda: answers(local), "the timekeeper's return")
    before = workload(local, "one").used_ms or 0

    def report(seq: int, used_ms: int | None, **changes: object) -> UsageReport:
        made = UsageReport(
            namespace="team",
            pod_name="one",
            pod_uid=one["metadata"]["uid"],
            container="main",
            epoch=epoch,
            seq=seq,
            used_ms=used_ms,
            monotonic_ns=seq * SECOND_NS,
            source="simulator",
        )
        return msgspec.structs.replace(made, **changes)

    # Honest reports, a third of them lost, the rest twice and in any order.
    pick = random.Random(11)
    sent = [report(seq, seq * 200) for seq in range(1, 61) if pick.random() < 0.67]
    last = max(sent, key=lambda r: r.seq)
    stream = sent * 2
    pick.shuffle(stream)
    told = [o for first in range(0, len(stream), 7) for o in outcomes(mine, *stream[first : first + 7])]
    assert {outcome for outcome, _ in told} == {"accepted", "duplicate"}

    top, used = last.seq, last.used_ms or 0
    refusals = (
        (mine, report(top + 1, used - 1), "counter-ran-backwards"),
        (mine, report(top + 1, used + 10, monotonic_ns=0), "counter-ran-backwards"),
        (mine, report(top, used + 10), "counter-ran-backwards"),
        (mine, report(top + 1, 10**12), "counter-above-possible"),
        (mine, report(1, 10**12, epoch=epoch + 1), "counter-above-possible"),
        (mine, report(top + 1, -1), "counter-invalid"),
        (mine, report(1, 1, epoch=2**62), "epoch-implausible"),
        (mine, report(top + 1, used, container="gpu-sidecar"), "unknown-container"),
        (mine, report(top + 1, used, pod_name="two"), "wrong-pod"),
        (mine, report(top + 1, used, namespace="default"), "wrong-pod"),
        (others, report(top + 1, used + 100), "wrong-pod"),
        (others, last, "wrong-pod"),
    )
    for speaker, forged, reason in refusals:
        assert outcomes(speaker, forged) == [("refused", reason)], forged
    assert outcomes(mine, report(top + 1, None)) == [("accepted", "")]
    assert workload(local, "one").used_ms == before + used, "unknown is no zero, and each millisecond counts once"
    os.kill(sidecar, signal.SIGCONT)
    for token in ("", "guess"):
        (local.home / "other.token").write_text(token)
        stranger = JsonClient(
            local.settings.timekeeper_client.url, token_file=str(local.home / "other.token"), timeout=PATIENCE
        )
        with pytest.raises(Forbidden):
            stranger.json("POST", "/api/v1/reports", body={"reports": [last]})
    settings = local.settings.timekeeper_client
    operator = JsonClient(settings.url, token_file=settings.token_file, timeout=PATIENCE)
    for body in ({"reports": [{"podUid": "x"}]}, {"reports": "none"}, [], {"reports": [], "more": 1}):
        with pytest.raises(ServiceError) as refused:
            operator.json("POST", "/api/v1/reports", body=body)
        assert 400 <= refused.value.status < 500

    wait_for(lambda: (workload(local, "one").used_ms or 0) > before + used, "the sidecar's own count")
    wait_for(lambda: workload(local, "two").used_ms, "the other one's")
    delete_all(local)
    held = [i for p in records(local) if (i := interval(p, MODELS["A100"], Fraction(1)))]
    most = {i.uid: (i.end - i.start) * CORE // 100 for i in held}
    assert (workload(local, "one").used_ms or 0) <= most[one["metadata"]["uid"]] + used
    assert (workload(local, "two").used_ms or 0) <= most[two["metadata"]["uid"]]
    wanted = charges(held, 20 * 3_600_000, [])
    booked = {w.pod_uid: (w.charged_ms, w.over_budget_ms) for w in local.timekeeper_client().workloads("team")}
    assert booked == wanted
