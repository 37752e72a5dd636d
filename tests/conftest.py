# SPDX-License-Identifier: Apache-2.0
"""Where tests start, and how properties are searched.

No test sees the folder, the home or the variables of whoever runs it: a cluster that is named there is not meant.

Properties are judged by what they find, never by how long a shared machine takes for an example.
A counterexample must not be lost: it is kept in `build/counterexamples`, with the command that finds it again. That
collects what this run did, for Hypothesis draws from the constants of all modules that are loaded.
Shrinking is bounded, because Hypothesis's own bound of five minutes for each failure is a third of the unit suite.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster.harness import cluster
from hypothesis import HealthCheck, Phase, core, settings
from hypothesis.internal.conjecture import engine
from hypothesis.vendor.pretty import RepresentationPrinter
from support import leftovers

LEADING = re.compile(
    "SLICEKEEPER_(?!CLUSTER_|CACHE$).*|KUBE.*|PG.*|GIT_(DIR|WORK_TREE|INDEX_FILE)|LISTEN_.*|GUNICORN_.*|PROMETHEUS_.*|"
    "(CUDA|NVIDIA)_VISIBLE_.*|MAKEFLAGS|MAKELEVEL|LD_PRELOAD|WEB_CONCURRENCY|NO_COLOR|FORCE_COLOR|COLUMNS|LINES"
)
"""Variables that lead what a test starts to something else than the test means; the suites' own are kept."""

SHRINKING_SECONDS = 30

assert hasattr(engine, "MAX_SHRINKING_SECONDS"), "Hypothesis has moved its bound of shrinking: bound it there"
engine.MAX_SHRINKING_SECONDS = SHRINKING_SECONDS

settings.register_profile(
    "project",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[phase for phase in Phase if phase is not Phase.explain],  # it runs examples after shrinking, without bound
    print_blob=True,
)
settings.load_profile("project")
settings.register_profile("few", settings.get_profile("project"), max_examples=5)


def pytest_configure() -> None:
    """Forget variables before any test module or fixture reads them, and tidy up after runs that were killed."""
    for name in filter(LEADING.fullmatch, list(os.environ)):
        del os.environ[name]
    leftovers.begin()
    cluster.sweep()


def pytest_unconfigure() -> None:
    """Leave nothing to the next run."""
    leftovers.end()


@pytest.fixture(scope="session", autouse=True)
def _elsewhere(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Work in an empty folder with an empty home; what was built or downloaded once stays where it is."""
    if request.config.option.basetemp is None:  # neither chosen nor below that of another worker's run
        leftovers.note("folder", str(tmp_path_factory.getbasetemp()))
    with pytest.MonkeyPatch.context() as patch:
        for name, folder in (("XDG_CACHE_HOME", ".cache"), ("XDG_CONFIG_HOME", ".config"), ("GOPATH", "go")):
            patch.setenv(name, os.environ.get(name) or str(Path.home() / folder))
        patch.setenv("HOME", str(tmp_path_factory.mktemp("home")))
        patch.chdir(tmp_path_factory.mktemp("here"))
        yield


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Say how many examples a property has, and have a counterexample printed with its values.

    Schemathesis, once loaded, has Hypothesis leave the values out.
    """
    core.RepresentationPrinter = RepresentationPrinter  # type: ignore[misc]
    with pytest.MonkeyPatch.context() as patch:
        if item.get_closest_marker("hypothesis") and isinstance(item, pytest.Function):
            test: Any = getattr(item.obj, "__func__", item.obj)
            wanted = test._hypothesis_internal_use_settings
            fewer = settings(wanted, max_examples=examples(item, wanted.max_examples))
            patch.setattr(test, "_hypothesis_internal_use_settings", fewer)
        return (yield)


def examples(item: pytest.Function, wanted: int) -> int:
    """Return how many examples a property is searched by, of those that it wants.

    The profile `few` holds for properties that say themselves how many they want, too. What PostgreSQL does differently
    shows in a third of them: the histories are the same as on SQLite, and a server takes twice as long for each.
    """
    if settings.get_current_profile_name() == "few":
        wanted = min(wanted, settings.default.max_examples)
    on_server = hasattr(item, "callspec") and "postgresql" in item.callspec.params.values()
    return max(wanted // 3, 1) if on_server else wanted


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Keep the counterexample of a property that failed."""
    report = yield
    told = "\n".join([report.longreprtext, *(text for _, text in report.sections)])
    if report.failed and "@reproduce_failure" in told:  # `print_blob` has it printed
        seed = item.config.getoption("--hypothesis-seed")
        name = getattr(item, "originalname", item.name)
        again = f"pytest {' '.join(item.config.args)} -k {name}" + (
            "" if seed is None else f" --hypothesis-seed={seed}"
        )
        kept = keep(item.config.rootpath, item.nodeid, f"{again}\n\n{told}\n")
        report.sections.append(("Counterexample", f"kept in {kept}; find it again by\n{again}"))
    return report


def keep(root: Path, test: str, text: str) -> Path:
    """Write a counterexample to a file named after its test, and return the file's path from the root."""
    path = Path("build/counterexamples", re.sub(r"[^A-Za-z0-9_.-]+", "-", test) + ".txt")
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)
    return path
