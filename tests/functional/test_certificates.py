# SPDX-License-Identifier: Apache-2.0
"""`slicekeeper certificates run` when cert-manager or another program keeps the CA: it publishes, and signs nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import urllib3
from support.ports import free_port
from support.small_cluster import NAMESPACE, SmallCluster, small_cluster
from support.waiting import wait_for

from certificates.authority import make_ca
from slicekeeper import names
from slicekeeper.kube.client import CONFIG_MAPS, NAMESPACES

PATIENCE = 120.0


@pytest.fixture
def small() -> Iterator[SmallCluster]:
    with small_cluster() as small:
        yield small


def wait_for_bundle(small: SmallCluster, namespace: str, bundle: bytes) -> None:
    def published() -> bool:
        found = small.client.find(CONFIG_MAPS, names.CA_CONFIG_MAP, namespace)
        return found is not None and found["data"][names.CA_KEY] == bundle.decode()

    wait_for(published, f"the bundle in {namespace}")


def wait_ready(address: str, status: int, told: str) -> None:
    def answers() -> bool:
        answer = urllib3.request("GET", f"http://{address}/readyz", timeout=PATIENCE, retries=False)
        return answer.status == status and told in answer.data.decode()

    wait_for(answers, f"{status} {told}")


def bundle() -> bytes:
    return make_ca(datetime.now(UTC), timedelta(days=1)).certificate


@pytest.mark.parametrize("look_seconds", ["0.2", "0.000001"], ids=["", "on a machine too slow for its looks"])
def test_a_bundle_that_another_keeps_is_published_and_followed(
    small: SmallCluster, tmp_path: Path, look_seconds: str
) -> None:
    file, first, second = tmp_path / "ca.crt", bundle(), bundle()
    probes = f"127.0.0.1:{free_port()}"
    environ = {
        "SLICEKEEPER_CERTIFICATES_PROBES_BIND": probes,
        "SLICEKEEPER_KUBERNETES_SERVER": small.server.url,
        "SLICEKEEPER_CERTIFICATES_CA_FILES": str(file),
        "SLICEKEEPER_CERTIFICATES_LOOK_SECONDS": look_seconds,
    }
    command = [str(Path(sys.executable).parent / "slicekeeper"), "certificates", "run"]
    with (tmp_path / "log").open("wb") as log, subprocess.Popen(command, env=environ, stderr=log) as process:
        try:
            file.write_bytes(first)
            wait_for_bundle(small, NAMESPACE, first)
            wait_ready(probes, 200, "OK")
            small.client.create(NAMESPACES, {"metadata": {"name": "later"}})
            wait_for_bundle(small, "later", first)
            file.write_bytes(b"")  # half-way: what was trusted stays trusted
            wait_ready(probes, 503, "holds no certificate")
            small.client.create(NAMESPACES, {"metadata": {"name": "meanwhile"}})
            wait_for_bundle(small, "meanwhile", first)
            file.write_bytes(second)
            wait_for_bundle(small, NAMESPACE, second)
        finally:
            process.terminate()
    assert process.returncode == 0, (tmp_path / "log").read_text()
