# SPDX-License-Identifier: Apache-2.0
"""What the webhook costs a real API server: pods created per second with it and without it, and the server's own p99.

Run it as `PYTHONPATH=tests KUBECONFIG=… python -m cluster.harness.throughput`, with the KUBECONFIG that
`python -m cluster.harness up` printed. Prints a Markdown table. The pods fit no node, so nothing but the API server,
etcd and the webhook has work.
"""

from __future__ import annotations

import base64
import os
import re
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import yaml
from cluster.harness import cluster
from cluster.harness.kubectl import Kubectl
from cluster.harness.site import Site, gpu_container, pod

from slicekeeper.kube.client import PODS, KubeClient
from slicekeeper.settings import KubernetesSettings

PODS_PER_ROUND = 400
CLIENTS = 8
ROUNDS = 3
KINDS = "mutatingwebhookconfiguration,validatingwebhookconfiguration"


def main() -> None:
    """Measure alternately with and without the webhook, and print the table."""
    found = next(c for c in cluster.living() if str(c.kubeconfig) == os.environ["KUBECONFIG"])
    kubectl = Kubectl(found.kubectl, found.kubeconfig)
    with tempfile.TemporaryDirectory() as folder:
        site = Site(kubectl, Path(folder), found)
        admin = site.kubectl("create", "token", "suite", "-n", _account(site)).strip()
        rates: dict[bool, list[float]] = {True: [], False: []}
        for _ in range(ROUNDS):
            for with_webhook in (True, False):
                rates[with_webhook].append(_round(site, admin, with_webhook=with_webhook))
    hooked, bare = (sorted(rates[key])[ROUNDS // 2] for key in (True, False))
    print("| | pods/s (median of 3) |\n|---|---:|")
    print(f"| with the webhook | {hooked:.0f} |\n| without | {bare:.0f} |\n| ratio | {hooked / bare:.2f} |\n")
    for name, p99 in _p99(kubectl).items():
        print(f"p99 of {name}: below {p99 * 1000:.0f} ms")


def _account(site: Site) -> str:
    namespace = site.namespace("load")
    site.kubectl("create", "serviceaccount", "suite", "-n", namespace)
    subject = f"--serviceaccount={namespace}:suite"
    site.kubectl("create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin", subject)
    return namespace


def _round(site: Site, token: str, *, with_webhook: bool) -> float:
    namespace = site.namespace("load")
    made = pod("x", gpu_container(core=5), nodeSelector={"nowhere": "true"})
    del made["metadata"]["name"]
    made["metadata"]["generateName"] = "x-"
    gate = threading.Barrier(CLIENTS + 1)

    def work() -> None:
        client = _client(site, token)
        gate.wait()
        for _ in range(PODS_PER_ROUND // CLIENTS):
            client.create(PODS, made, namespace)
        gate.wait()

    with _webhook(site, there=with_webhook):
        threads = [threading.Thread(target=work) for _ in range(CLIENTS)]
        for thread in threads:
            thread.start()
        gate.wait()
        began = time.monotonic()
        gate.wait()
        took = time.monotonic() - began
        for thread in threads:
            thread.join()
    site.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force", timeout=300)
    site.clear()
    return PODS_PER_ROUND / took


def _client(site: Site, token: str) -> KubeClient:
    there = yaml.safe_load(site.kubectl.kubeconfig.read_text())["clusters"][0]["cluster"]
    ca, file = site.folder / "ca.crt", site.folder / "load.token"
    ca.write_bytes(base64.b64decode(there["certificate-authority-data"]))
    file.write_text(token)
    return KubeClient(KubernetesSettings(server=there["server"], ca_file=str(ca), token_file=str(file)))


@contextmanager
def _webhook(site: Site, *, there: bool) -> Iterator[None]:
    if there:
        yield
        return
    saved = site.kubectl("get", KINDS, "slicekeeper", "-o", "yaml")
    site.kubectl("delete", KINDS, "slicekeeper")
    try:
        yield
    finally:
        site.kubectl("create", "-f", "-", stdin=re.sub(r"\n\s+(resourceVersion|uid): .*", "", saved))


def _p99(kubectl: Kubectl) -> dict[str, float]:
    """Return the bucket below which 99 of 100 calls of each of our webhooks lie, by the API server's own count."""
    line = re.compile(
        r'apiserver_admission_webhook_admission_duration_seconds_bucket\{name="([^"]+)",.*le="([^"]+)"\} (\d+)'
    )
    buckets: dict[str, list[tuple[float, int]]] = {}
    for name, bound, count in line.findall(kubectl("get", "--raw", "/metrics")):
        if name.startswith("pods.") and name.endswith("slicekeeper.io"):
            buckets.setdefault(name, []).append((float(bound), int(count)))
    return {
        name: next(bound for bound, count in sorted(counts) if count >= 0.99 * max(c for _, c in counts))
        for name, counts in buckets.items()
    }


if __name__ == "__main__":
    main()
