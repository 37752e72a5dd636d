# SPDX-License-Identifier: Apache-2.0
"""The scheduler as a process, killed at the worst moments: no GPU is ever given out twice."""

import contextlib
import http.client
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time

import pytest
from support.ports import free_port
from support.small_cluster import Api, binding, small_cluster
from support.waiting import wait_for

from simulator.api_errors import ApiError
from simulator.kubescheduler import KubeScheduler
from slicekeeper import names
from slicekeeper.errors import NotFound
from slicekeeper.kube.client import NODES
from slicekeeper.net.json_client import JsonClient

COMMAND = (sys.executable, "-c", "from slicekeeper.cli.main import main; main()")
PATIENCE = 120


class Process:
    """`slicekeeper scheduler serve` on a port of its own, and kube-scheduler's calls to it."""

    def __init__(self, cluster, folder):
        self.cluster = cluster
        self.port, self.metrics_port = free_port(), free_port()
        self.file = folder / "config.yaml"
        self.file.write_text(
            f"kubernetes: {{server: '{cluster.server.url}'}}\n"
            f"scheduler: {{bind: '127.0.0.1:{self.port}', metricsBind: '127.0.0.1:{self.metrics_port}', "
            "reclaimSeconds: 0.1, reclaimAfterSeconds: 0.5, leaseSeconds: 6}\n"
            "log: {style: text}\n"
        )
        self.log = folder / "scheduler.log"
        self.process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def start(self):
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [*COMMAND, "--config", str(self.file), "scheduler", "serve"],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        wait_for(self.is_ready, "the scheduler is ready", PATIENCE)
        return self

    def is_ready(self):
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def kill(self):
        """End master and worker at once, as a crash of the machine does."""
        os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()

    def stop(self):
        if self.process.poll() is None:
            self.process.terminate()
            assert self.process.wait(PATIENCE) == 0

    def get(self, path, port=None):
        connection = http.client.HTTPConnection("127.0.0.1", port or self.port, timeout=PATIENCE)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def call(self, verb, body):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        try:
            connection.request("POST", f"/{verb}", json.dumps(body))
            return json.loads(connection.getresponse().read())
        finally:
            connection.close()

    def filter(self, pod, *nodes):
        return self.call("filter", {"Pod": pod, "Nodes": None, "NodeNames": list(nodes)})["NodeNames"]

    def bind(self, pod, node):
        return self.call("bind", binding(pod, node))["Error"]


@pytest.fixture
def cluster():
    with small_cluster() as made:
        yield made


@pytest.fixture
def scheduler(cluster, tmp_path):
    made = Process(cluster, tmp_path)
    yield made
    if made.process is not None:
        made.stop()
        assert "Traceback" not in made.log.read_text()


def test_killed_between_filter_and_bind(cluster, scheduler):
    cluster.node("n0")
    scheduler.start()
    first, second = cluster.pod("first"), cluster.pod("second")
    assert scheduler.filter(first, "n0") == ["n0"]
    assert scheduler.filter(second, "n0") == []
    scheduler.kill()
    scheduler.start()
    # The hold is forgotten, so the second pod is let in, and the first one's bind finds the place taken.
    assert scheduler.filter(second, "n0") == ["n0"]
    assert scheduler.bind(second, "n0") == ""
    assert "not enough is free" in scheduler.bind(first, "n0")
    assert cluster.taken() == {"n0-0": 60}


def test_killed_between_bind_and_watch(cluster, scheduler):
    cluster.node("n0")
    scheduler.start()
    first, second = cluster.pod("first"), cluster.pod("second")
    assert scheduler.bind(first, "n0") == ""
    scheduler.kill()
    scheduler.start()
    assert scheduler.filter(second, "n0") == []
    assert "not enough is free" in scheduler.bind(second, "n0")
    assert scheduler.bind(first, "n0") == ""
    assert cluster.taken() == {"n0-0": 60}


def test_killed_while_the_api_server_carries_the_binding_out(cluster, scheduler):
    cluster.node("n0")
    scheduler.start()
    first, second = cluster.pod("first"), cluster.pod("second")
    arrived, go_on = threading.Event(), threading.Event()

    def slow(api, call):
        arrived.set()
        assert go_on.wait(PATIENCE)
        Api.answer(api, "POST", call)
        raise ConnectionResetError

    cluster.api.faults["binding"] = slow

    def call():
        with pytest.raises((OSError, http.client.HTTPException)):
            scheduler.bind(first, "n0")

    caller = threading.Thread(target=call)
    caller.start()
    assert arrived.wait(PATIENCE)
    scheduler.kill()
    caller.join()
    del cluster.api.faults["binding"]
    go_on.set()
    wait_for(cluster.taken, "the binding has been carried out")
    scheduler.start()
    assert scheduler.filter(second, "n0") == []
    assert scheduler.bind(first, "n0") == ""
    assert cluster.taken() == {"n0-0": 60}


NODE_NAMES = ["n0", "n1", "n2"]


def lose_some(api, call):
    """Lose three answers in ten, half of them after the binding was carried out."""
    if random.random() < 0.3:
        if random.random() < 0.5:
            Api.answer(api, "POST", call)
        raise ConnectionResetError


def place_all(scheduler, pods, seed, enough):
    """Filter and bind pods again and again, each on a node of the caller's own choice, until `enough`."""
    rng = random.Random(seed)
    while not enough.is_set():
        for pod in pods:
            try:
                fitting = scheduler.filter(pod, *NODE_NAMES)
                if fitting:
                    scheduler.bind(pod, rng.choice(fitting))
            except (OSError, http.client.HTTPException, ValueError):
                time.sleep(0.02)


def free_some(cluster, pods, seed, enough):
    """End bound pods now and then, so that places are given again."""
    rng = random.Random(seed)
    while not enough.is_set():
        name = rng.choice(pods)["metadata"]["name"]
        with contextlib.suppress(ApiError, NotFound):
            if cluster.get(name)["spec"].get("nodeName"):
                cluster.end(name)
        time.sleep(0.02)


def test_a_storm_of_pods_kills_and_lost_answers(cluster, scheduler):
    """Six callers bind 120 pods through four kills while others end; the sums by the pods' own records are watched."""

    def placed():
        ended = {pod["metadata"]["name"] for pod in cluster.cluster.store.removed_pods}
        return ended | {pod["metadata"]["name"] for pod in cluster.pods() if pod["spec"].get("nodeName")}

    for node in NODE_NAMES:
        cluster.node(node, gpus=2)
    scheduler.start()
    pods = [cluster.pod(f"p{i}", [30, 40, 60, 70][i % 4], 1) for i in range(120)]
    cluster.api.faults["binding"] = lose_some
    enough = threading.Event()
    threads = [threading.Thread(target=place_all, args=(scheduler, pods[i::6], i, enough)) for i in range(6)]
    threads.append(threading.Thread(target=free_some, args=(cluster, pods, 7, enough)))
    for thread in threads:
        thread.start()
    over = []
    for _ in range(4):
        end = time.monotonic() + 0.7
        while time.monotonic() < end:
            over += [taken for taken in cluster.taken().items() if taken[1] > 100]
        scheduler.kill()
        scheduler.start()
    wait_for(lambda: len(placed()) > 20, "many have found a place", PATIENCE)
    enough.set()
    for thread in threads:
        thread.join()
    assert over == []
    assert max(cluster.taken().values(), default=0) <= 100


ROOM = {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "64"}


def test_with_kube_schedulers_loop_everybody_finds_a_place_and_over_budget_gives_way(cluster, scheduler):
    for node in ("n0", "n1"):
        cluster.node(node, gpus=2)
        cluster.cluster.store.update(
            NODES,
            node,
            "",
            lambda obj: {**obj, "status": {"allocatable": ROOM}},
            subresource="status",
        )
    scheduler.start()
    loop = KubeScheduler(cluster.cluster, JsonClient(scheduler.url), "slicekeeper-scheduler")
    loop.start()
    try:
        for index in range(4):
            cluster.pod(f"over-{index}", 90, state=names.OVER_BUDGET)
        wait_for(lambda: cluster.taken() == dict.fromkeys(("n0-0", "n0-1", "n1-0", "n1-1"), 90), "all are full")
        cluster.pod("waiting", 60)
        victims = wait_for(
            lambda: [f"over-{i}" for i in range(4) if cluster.get(f"over-{i}")["metadata"].get("deletionTimestamp")],
            "a pod gives way",
        )
        told = {"GaveWay", "PlaceReclaimed", "FailedScheduling"}
        wait_for(lambda: {reason for _, reason in cluster.events()} >= told, "they have been told")
        scheduler.kill()  # also now the place must not go to others
        cluster.pod("rival", 60, state=names.OVER_BUDGET)
        scheduler.start()
        held = 'slicekeeper_scheduler_places{kind="reserved"} 1.0'
        wait_for(lambda: held in scheduler.get("/metrics", scheduler.metrics_port)[1], "the place is held again")
        for victim in victims:
            cluster.end(victim)
        wait_for(lambda: cluster.get("waiting")["spec"].get("nodeName"), "the waiting pod has come")
        assert len(victims) == 1
        assert not cluster.get("rival")["spec"].get("nodeName")
    finally:
        loop.stop()


def test_gangs_start_whole_one_after_the_other_whatever_is_killed(cluster, scheduler):
    for node in ("n0", "n1"):
        cluster.node(node, gpus=2)
        cluster.cluster.store.update(
            NODES, node, "", lambda obj: {**obj, "status": {"allocatable": ROOM}}, subresource="status"
        )
    scheduler.start()
    loop = KubeScheduler(cluster.cluster, JsonClient(scheduler.url, timeout=30), "slicekeeper-scheduler")
    loop.start()

    def started():
        return {pod["metadata"]["name"] for pod in cluster.pods() if pod["spec"].get("nodeName")}

    gangs = [{f"{name}{index}" for index in range(4)} for name in "ab"]
    try:
        for index in range(3):
            for name in "ab":
                cluster.pod(f"{name}{index}", annotations={names.GANG: name, names.GANG_SIZE: "4"})
        time.sleep(0.5)
        scheduler.kill()
        scheduler.start()
        assert started() == set()
        for name in "ab":
            cluster.pod(f"{name}3", annotations={names.GANG: name, names.GANG_SIZE: "4"})
        seen = []
        wait_for(lambda: seen.append(started()) or len(seen[-1]) >= 4, "one of them starts")
        assert seen[-1] in gangs
        for name in seen[-1]:
            cluster.end(name)
        wait_for(lambda: seen.append(started()) or len(seen[-1]) >= 4, "the other starts")
        assert all(now <= gangs[0] or now <= gangs[1] for now in seen)
        assert any(gangs[0] <= now for now in seen)
        assert any(gangs[1] <= now for now in seen)
    finally:
        loop.stop()


def test_it_stops_in_good_order_and_says_how_it_is(cluster, scheduler):
    cluster.node("n0")
    scheduler.start()
    assert scheduler.get("/healthz") == (200, "ok\n")
    assert scheduler.get("/metrics")[0] == 404, "they have a port of their own"
    status, text = scheduler.get("/metrics", scheduler.metrics_port)
    assert status == 200
    assert "slicekeeper_scheduler_gpus 1.0" in text
    scheduler.stop()
