# SPDX-License-Identifier: Apache-2.0
"""A timekeeper's service over a simulated cluster and a real database, for tests of its REST interface."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from support.small_cluster import api_served

from simulator.api import Api
from simulator.cluster import Cluster
from slicekeeper.clock import ManualClock
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.settings import PolicySettings, Settings, TimekeeperSettings
from slicekeeper.kube.client import NAMESPACES
from timekeeper.api.identity import Identity
from timekeeper.api.service import Service
from timekeeper.cluster.controller import Controller
from timekeeper.ledger.books import Books
from timekeeper.store.db.database import Database
from timekeeper.store.db.engine import make_engine


@contextmanager
def serving(folder: Path, database_url: str, clock: ManualClock) -> Iterator[tuple[Service, Cluster]]:
    """Serve the namespaces team and other; the operator's token is operator-token. The controller does not run."""
    cluster = Cluster(clock)
    token, policy = folder / "token", folder / "policy.yaml"
    token.write_text("operator-token\n")
    policy.write_text("default: {budget: {amount: 150m, period: day}}\n")
    with api_served(Api(cluster)) as (reached, client):
        settings = Settings(
            kubernetes=reached,
            policy=PolicySettings(file=str(policy)),
            timekeeper=TimekeeperSettings(database=database_url, operator_token_file=str(token)),
        )
        for name in ("team", "other"):
            client.create(NAMESPACES, {"metadata": {"name": name}})
        database = Database(make_engine(database_url))
        books, file = Books(database, "default", carry=False), PolicyFile(settings.policy)
        identity = Identity(client, "timekeeper", str(token))
        controller = Controller(settings, clock, client, books, file, identity.forget)
        try:
            yield Service(settings, clock, books, file, controller, identity), cluster
        finally:
            controller.stop()
            database.close()
