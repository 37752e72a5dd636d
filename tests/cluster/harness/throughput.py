# SPDX-License-Identifier: Apache-2.0
"""What the webhook costs a real API server: pods created per second with it and without it, and the server's own p99.

Run it as `PYTHONPATH=tests KUBECONFIG=… python -m cluster.harness.throughput`, with the KUBECONFIG that
`python -m cluster.harness up` printed. Prints a Markdown table. The pods are held by a scheduling gate, so no scheduler
has work with them. Each client creates one pod after the other, as fast as it can.
"""

from __future__ import annotations

import base64
import os
import re
import statistics
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from math import inf
from pathlib import Path

import yaml
from cluster.harness import cluster
from cluster.harness.kubectl import Kubectl, wait_for
from cluster.harness.site import Site, gpu_container, pod

from slicekeeper.kube.client import PODS, KubeClient
from slicekeeper.settings import KubernetesSettings

PODS_PER_ROUND = 400
CLIENTS = 8
ROUNDS = 3
SETTLE_SECONDS = 2
"""The API server learns of changed webhook configurations by a watch."""


def main() -> None:
    """Measure alternately with and without the webhook, and print the table."""
    found = next(c for c in cluster.living() if str(c.kubeconfig) == os.environ["KUBECONFIG"])
    kubectl = Kubectl(found.kubectl, found.kubeconfig)
    with tempfile.TemporaryDirectory() as folder:
        site = Site(kubectl, Path(folder), found)
        namespace, token = _account(site)
        try:
            _round(site, token)  # warm caches and connections
            before = _buckets(kubectl)
            rounds = [(_round(site, token), _without(site, token)) for _ in range(ROUNDS)]
        finally:
            kubectl("delete", f"namespace/{namespace}", f"clusterrolebinding/{namespace}", "--wait=false")
    print("| round | with the webhook, pods/s | without | ratio |\n|---:|---:|---:|---:|")
    for number, (hooked, bare) in enumerate(rounds, 1):
        print(f"| {number} | {hooked:.0f} | {bare:.0f} | {hooked / bare:.2f} |")
    print(f"| median | | | {statistics.median(hooked / bare for hooked, bare in rounds):.2f} |\n")
    print("| webhook | calls | below 5 ms | below 25 ms | p99 |\n|---|---:|---:|---:|---:|")
    for name, counts in _buckets(kubectl).items():
        now = {bound: count - before.get(name, {}).get(bound, 0) for bound, count in counts.items()}
        calls = now[inf]
        p99 = next(bound for bound, count in sorted(now.items()) if count >= 0.99 * calls)
        shares = " | ".join(f"{100 * now[bound] / calls:.1f} %" for bound in (0.005, 0.025))
        print(f"| {name} | {calls} | {shares} | below {p99 * 1000:.0f} ms |")


def _account(site: Site) -> tuple[str, str]:
    """Make somebody who may do all; return the name of the namespace and of the binding, and a token."""
    namespace = site.namespace("load")
    site.namespaces.clear()  # it outlives the rounds
    site.kubectl("create", "serviceaccount", "load", "-n", namespace)
    subject = f"--serviceaccount={namespace}:load"
    site.kubectl("create", "clusterrolebinding", namespace, "--clusterrole=cluster-admin", subject)
    return namespace, site.kubectl("create", "token", "load", "-n", namespace).strip()


def _without(site: Site, token: str) -> float:
    with site.without_webhook():
        time.sleep(SETTLE_SECONDS)
        return _round(site, token)


def _round(site: Site, token: str) -> float:
    """Return how many pods per second the API server takes; they are gone again before the next round."""
    namespace = site.namespace("load")
    time.sleep(SETTLE_SECONDS)
    made = pod("x", gpu_container(core=5), schedulingGates=[{"name": "suite.example/held"}])
    del made["metadata"]["name"]
    made["metadata"]["generateName"] = "x-"
    clients = [_client(site, token) for _ in range(CLIENTS)]

    def work(client: KubeClient) -> None:
        for _ in range(PODS_PER_ROUND // CLIENTS):
            client.create(PODS, made, namespace)

    with ThreadPoolExecutor(CLIENTS) as pool:
        began = time.monotonic()
        list(pool.map(work, clients))
        took = time.monotonic() - began
    for client in clients:
        client.close()
    site.kubectl("delete", "pods", "--all", "-n", namespace, "--grace-period=0", "--force", "--wait=false", timeout=300)
    wait_for("end of the pods", lambda: not site.pods(namespace), seconds=300, pause=1)
    site.clear()
    return PODS_PER_ROUND / took


def _client(site: Site, token: str) -> KubeClient:
    there = yaml.safe_load(site.kubectl.kubeconfig.read_text())["clusters"][0]["cluster"]
    ca, file = site.folder / "ca.crt", site.folder / "load.token"
    ca.write_bytes(base64.b64decode(there["certificate-authority-data"]))
    file.write_text(token)
    return KubeClient(KubernetesSettings(server=there["server"], ca_file=str(ca), token_file=str(file)))


def _buckets(kubectl: Kubectl) -> dict[str, dict[float, int]]:
    """Return the API server's own count of calls of each of our webhooks on pods, by their duration in seconds."""
    line = re.compile(
        r'apiserver_admission_webhook_admission_duration_seconds_bucket\{name="([^"]+)",.*le="([^"]+)"\} (\d+)'
    )
    buckets: dict[str, dict[float, int]] = {}
    for name, bound, count in line.findall(kubectl("get", "--raw", "/metrics")):
        if name.endswith("slicekeeper.io"):
            found = buckets.setdefault(name, {})
            found[float(bound)] = found.get(float(bound), 0) + int(count)
    return {name: counts for name, counts in buckets.items() if counts[inf]}


if __name__ == "__main__":
    main()
