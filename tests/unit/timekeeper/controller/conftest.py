# SPDX-License-Identifier: Apache-2.0
"""The controller, look by look, against the simulator's API server over HTTP and a real database."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.controller_stage import GPU, T0, Stage
from support.manual_clock import ManualClock
from support.small_cluster import api_served

from simulator.api import Api
from simulator.cluster import Cluster
from slicekeeper import names
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings, Settings
from slicekeeper.gpu import inventory
from slicekeeper.kube.client import NAMESPACES, NODES
from timekeeper.cluster.reconcile_loop import Controller
from timekeeper.ledger.books import Books
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine


@pytest.fixture
def stage(tmp_path: Path, database_url: str) -> Iterator[Stage]:
    clock = ManualClock(T0)
    cluster = Cluster(clock)
    policy = tmp_path / "policy.yaml"
    policy.write_text("default: {budget: {amount: 10s, period: none}}")
    with api_served(Api(cluster)) as (reached, kube):
        settings = Settings(kubernetes=reached, policy=PolicySettings(file=str(policy), exempt_namespaces=()))
        kube.create(NAMESPACES, {"metadata": {"name": "team"}})
        kube.create(NODES, {"metadata": {"name": "n", "annotations": {names.NODE_GPUS: inventory.encode([GPU])}}})
        database = Database(make_engine(database_url))
        books = Books(database, "default", carry=False)
        controller = Controller(settings, clock, kube, books, PolicyFile(settings.policy))
        controller.namespaces.on_list(kube.list(NAMESPACES)[0])
        yield Stage(clock, kube, cluster, books, controller)
        controller.stop()
        database.close()
