# SPDX-License-Identifier: Apache-2.0
"""How often a reader of one call changes files: an admission, a bind, and the opening of an interval.

    .venv/bin/python benchmarks/walks.py [--files]

Needs Python 3.12 (`sys.monitoring`). Functions of Slicekeeper are followed in the order in which they are entered, in
the thread of the call. A *stop* is an entry into another file than the one before, a *return* a stop in a file where
the walk has been before. Prints Markdown; with `--files` also where each walk stops.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import CodeType

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "tests"), str(ROOT / "benchmarks/webhook")]

from reviews import pod, review  # noqa: E402
from support.controller_stage import staged  # noqa: E402
from support.manual_clock import ManualClock  # noqa: E402
from support.small_cluster import binding, small_cluster  # noqa: E402
from support.waiting import wait_for  # noqa: E402

from scheduler.scheduler_process import Scheduler  # noqa: E402
from slicekeeper.config.policy import PolicyBook  # noqa: E402
from slicekeeper.config.settings import KubernetesSettings, Settings  # noqa: E402
from slicekeeper.kube.client import PODS  # noqa: E402
from timekeeper.store.db import migrate  # noqa: E402
from timekeeper.store.db.engine import make_engine  # noqa: E402
from webhook.admission import Admission  # noqa: E402
from webhook.admission_review import Reviewer  # noqa: E402
from webhook.review_inputs import Case  # noqa: E402

PARTS = ("slicekeeper", "webhook", "scheduler", "timekeeper")


def walk(call: Callable[[], object]) -> list[str]:
    """Return the file of each function of ours that a call enters, in this order."""
    mine, entered = threading.get_ident(), []

    def enter(code: CodeType, _offset: int) -> None:
        path = Path(code.co_filename)
        ours = path.is_relative_to(ROOT) and path.relative_to(ROOT).parts[0] in PARTS
        if ours and threading.get_ident() == mine:
            entered.append(str(path.relative_to(ROOT)))

    monitoring, tool = sys.monitoring, sys.monitoring.PROFILER_ID
    monitoring.use_tool_id(tool, "walks")
    monitoring.register_callback(tool, monitoring.events.PY_START, enter)
    monitoring.set_events(tool, monitoring.events.PY_START)
    try:
        call()
    finally:
        monitoring.set_events(tool, 0)
        monitoring.free_tool_id(tool)
    return entered


def admission() -> list[str]:
    """A new pod with one share is mutated; not the first, so that what is computed once is there."""
    case = Case("research", PolicyBook().default)
    reviewer = Reviewer(Admission(Settings()), lambda _namespace: case)
    body = review(pod(1))
    reviewer.mutate(body)
    return walk(lambda: reviewer.mutate(body))


def bind() -> list[str]:
    """A pod is bound to a node, by the extender's verb `bind`."""
    with small_cluster() as cluster:
        cluster.node("n0")
        for name in ("warm", "a"):
            cluster.pod(name, core=30)
        scheduler = Scheduler(Settings(kubernetes=KubernetesSettings(server=cluster.server.url)), ManualClock())
        scheduler.watches.start()
        wait_for(lambda: scheduler.watches.synced, "synced")
        answers: list[str] = []
        entered = []
        for name in ("warm", "a"):
            args = binding(cluster.get(name), "n0")
            entered = walk(lambda args=args: answers.append(scheduler.binder.bind(args)))
        scheduler.watches.stop()
    assert answers == ["", ""], answers
    return entered


def interval() -> list[str]:
    """The controller sees that a pod was bound, and opens its interval."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        database = f"sqlite:///{folder / 'ledger.db'}"
        migrate.upgrade(make_engine(database))
        with staged(folder, database) as stage:
            stage.create("warm", core="10")
            stage.look()
            stage.create("a", core="10")
            pods = stage.kube.list(PODS)[0]

            def look() -> None:
                stage.controller.pods.on_list(pods)
                stage.controller.look()

            entered = walk(look)
            assert stage.known() == 2
    return entered


def stops(entered: list[str]) -> list[str]:
    """Return the files in which a walk stops, in its order."""
    return [file for before, file in zip(["", *entered], entered, strict=False) if file != before]


def main() -> None:
    arguments = argparse.ArgumentParser()
    arguments.add_argument("--files", action="store_true")
    chosen = arguments.parse_args()
    print("| walk | functions entered | files | stops | returns |\n| --- | ---: | ---: | ---: | ---: |")
    for one in (admission, bind, interval):
        entered = one()
        there = stops(entered)
        print(
            f"| {one.__name__} | {len(entered)} | {len(set(there))} | {len(there)} | {len(there) - len(set(there))} |"
        )
        if chosen.files:
            print("\n".join(there), file=sys.stderr)


if __name__ == "__main__":
    main()
