# SPDX-License-Identifier: Apache-2.0
"""What users notice while certificates change: pods are admitted without pause, and sidecars go on reporting."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from cluster.harness.kubectl import Object, Refused, wait_for
from cluster.harness.site import Site, gpu_container, pod

from slicekeeper import names


@dataclass
class Admissions:
    """What has come of the pods so far."""

    done: int = 0
    failed: list[str] = field(default_factory=list)

    def wait_for_more(self) -> None:
        """Wait for twenty more, or for one more that fails."""
        reached, failed = self.done, len(self.failed)
        wait_for(lambda: self.done > reached + 20 or len(self.failed) > failed, "more admissions")


@contextmanager
def admissions(site: Site, team: str, container: Object | None = None) -> Iterator[Admissions]:
    """Have two clients create pods of a container, by default of one with a share, in dry runs, until the end."""
    found, stop, made = Admissions(), threading.Event(), pod("one", container or gpu_container(core=5))

    def load() -> None:
        while not stop.is_set():
            try:
                site.kubectl.create(made, namespace=team, dry_run=True)
                found.done += 1
            except Refused as error:
                found.failed.append(str(error))

    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        yield found
    finally:
        stop.set()
        for thread in threads:
            thread.join()


class Reporter:
    """A GPU pod whose sidecar reports."""

    def __init__(self, site: Site, team: str) -> None:
        site.kubectl.create(pod("reports", gpu_container(core=5)), namespace=team)
        self._site = site
        self._pod: Object = site.wait_phase(team, "reports", "Running")
        self._heard = wait_for(lambda: site.heard(self._pod), "first report", pause=1)

    def goes_on(self) -> None:
        """Wait until a timekeeper with a new certificate has received further reports of the sidecar."""
        self._site.rollout("deployment/timekeeper")
        [(epoch, seq)] = self._heard.items()
        self._heard = wait_for(lambda: self._more(epoch, seq), "further reports", 180, 2)
        assert set(self._heard) == {epoch}, "one run of the sidecar, without a restart"
        team = self._pod["metadata"]["namespace"]
        assert "dropped" not in self._site.kubectl("logs", "reports", "-n", team, "-c", names.SIDECAR)

    def _more(self, epoch: int, seq: int) -> dict[int, int]:
        heard = self._site.heard(self._pod)
        return heard if heard[epoch] > seq + 4 else {}
