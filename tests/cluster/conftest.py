# SPDX-License-Identifier: Apache-2.0
"""One real cluster for the whole suite: this machine's own, or the one that SLICEKEEPER_CLUSTER_KUBECONFIG names."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from cluster.harness import cluster as clusters
from cluster.harness import install
from cluster.harness.binaries import say
from cluster.harness.cluster import Cluster
from cluster.harness.kubectl import Kubectl, Refused
from cluster.harness.site import Site

LOGS = Path(__file__).resolve().parents[2] / "build" / "cluster-logs"
PARTS = (
    "arbiter", "certificates", "nodeagent", "objects", "scheduler", "sharepods", "timekeeper", "timekeeper-forwarder",
    "webhook",
)  # fmt: skip
SHOWN = ("pods.txt", "events.txt", *(f"{part}.log" for part in PARTS), "kubelet.log")
SHOWN_LINES = 40


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Uninstall last, and by Helm after that. Let the time limit be a test's alone: a build bounds itself."""
    last = ("test_c12_uninstall", "test_c22_helm")
    items.sort(key=lambda item: next((at for at, name in enumerate(last, 1) if name in item.nodeid), 0))
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.timeout(600, func_only=True))


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """A cluster with Slicekeeper installed."""
    folder = tmp_path_factory.mktemp("site")
    own = os.environ.get("SLICEKEEPER_CLUSTER_KUBECONFIG")
    if own:
        program = shutil.which("kubectl")
        if program is None:
            pytest.skip("SLICEKEEPER_CLUSTER_KUBECONFIG names a cluster, and there is no kubectl on PATH")
        kubectl = Kubectl(Path(program), Path(own))
        install.install(kubectl)
        ours = [cluster for cluster in clusters.living() if cluster.kubeconfig == Path(own)]
        yield Site(kubectl, folder, ours[0] if ours else None)
        return
    reason = clusters.unfit()
    if reason:
        pytest.skip(reason)
    shutil.rmtree(LOGS / "install", ignore_errors=True)  # of another run
    cluster = clusters.start()
    try:
        kubectl = Kubectl(cluster.kubectl, cluster.kubeconfig)
        install.load_images(cluster)
        install.give_storage(cluster, kubectl)
        try:
            install.install(kubectl)
        except Refused:
            keep_logs(cluster, kubectl, LOGS / "install")
            raise
        yield Site(kubectl, folder, cluster)
    finally:
        cluster.stop()


@pytest.fixture
def cluster(site: Site) -> Cluster:
    """The machine below the cluster, for tests that hurt it."""
    if site.cluster is None:
        pytest.skip("this test kills programs of the cluster, which is not ours")
    return site.cluster


@pytest.fixture(autouse=True)
def _clear(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "site" in request.fixturenames:
        request.getfixturevalue("site").clear()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the logs of a test that failed, and show how they end: of a run elsewhere there is only what it printed."""
    report = yield
    if report.failed and isinstance(item, pytest.Function) and "site" in item.fixturenames:
        site: Site | None = item.funcargs.get("site")
        folder = LOGS / (item.name if site else "install")
        if site is not None and site.cluster is not None:
            keep_logs(site.cluster, site.kubectl, folder)
        for name in SHOWN:
            if (folder / name).exists():
                lines = (folder / name).read_text("utf-8", "replace").splitlines()[-SHOWN_LINES:]
                report.sections.append((name, "\n".join(lines)))
    return report


def keep_logs(cluster: Cluster, kubectl: Kubectl, folder: Path) -> None:
    """Copy what helps to understand a failure to a folder that outlives the cluster."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(cluster.logs, folder)
    wanted = {
        "pods.txt": ("get", "pods", "-A", "-o", "wide"),
        "pods.yaml": ("get", "pods", "-A", "-o", "yaml"),
        "events.txt": ("get", "events", "-A", "--sort-by=.lastTimestamp"),
    }
    for part in PARTS:
        selector = f"app.kubernetes.io/name={part}"
        every = ("--all-containers", "--tail=2000", "--max-log-requests=20")
        wanted[f"{part}.log"] = ("logs", "-n", install.NAMESPACE, "-l", selector, *every)
    for name, arguments in wanted.items():
        try:
            text = kubectl(*arguments)
        except (Refused, subprocess.TimeoutExpired) as error:
            text = str(error)
        (folder / name).write_text(text)
    say(f"logs are in {folder}")
