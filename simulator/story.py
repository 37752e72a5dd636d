# SPDX-License-Identifier: Apache-2.0
"""A folder of manifests as a story: what is submitted when, what must come true before the next step.

The story is `story.yaml` in the folder; a folder without one is submitted file by file in alphabetical order, into the
namespace `default`. A story that does not come out says at which step, and what it saw instead.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec

from simulator import submit
from simulator.local import LocalCluster
from simulator.store import phase
from slicekeeper import names
from slicekeeper.config.settings import Section
from slicekeeper.config.yaml_file import check_keys, convert, read_yaml
from slicekeeper.errors import SettingsError, SlicekeeperError
from slicekeeper.kube.client import PODS, Object
from slicekeeper.units import parse_duration
from slicekeeper.wire.timekeeper import Budget

WAIT_SECONDS: Final = 120.0
WAIT_CLOCK_SECONDS: Final = 1_200.0
"""Longest time that a step may take to come true, in real and in the cluster's seconds: the longer one counts."""

STORY: Final = "story.yaml"


class Wait(Section, frozen=True):
    """What must come true; all given conditions must hold together."""

    namespace: str
    name: str = ""
    """Prefix of the pods' names."""
    pods: int = 0
    """At least this many pods have what follows."""
    phase: str = ""
    budget_state: str = ""
    priority_class: str = ""
    evicted: int = 0
    """At least this many pods were evicted."""

    def __str__(self) -> str:
        parts = [f"{key}: {value}" for key, value in msgspec.to_builtins(self).items() if value]
        return ", ".join(parts)


class StoryGrant(Section, frozen=True):
    """GPU time granted beside the budget."""

    namespace: str
    amount: str


class StoryStep(Section, frozen=True):
    """One step: something to say, then one thing to do or to wait for."""

    say: str = ""
    pause: Annotated[float, msgspec.Meta(ge=0, le=10)] = 0.0
    """Real seconds to let pass first: the webhook's decisions are some tenths of a second old."""
    submit: str = ""
    namespace: str = ""
    expect: Literal["admitted", "refused"] = "admitted"
    wait: Wait | None = None
    grant: StoryGrant | None = None


class Story(Section, frozen=True):
    """All steps, and the policy file that is in force."""

    policy: str = ""
    steps: tuple[StoryStep, ...] = ()


class StoryFailed(SlicekeeperError):
    """The story did not come out."""


def read(folder: Path) -> Story:
    """Return the folder's story.

    Raises SettingsError naming the file and what is wrong.
    """
    file = folder / STORY
    if not file.is_file():
        found = sorted(path.name for path in folder.glob("*.yaml"))
        if not found:
            raise SettingsError(f"--examples is {str(folder)!r}: there is no *.yaml in it")
        return Story(steps=tuple(StoryStep(submit=name) for name in found))
    tree = read_yaml(file).tree
    check_keys(tree, Story, str(file))
    for number, step in enumerate(tree.get("steps") or [], 1):
        check_keys(step, StoryStep, f"{file}: step {number}")
    story = convert(tree, Story, str(file))
    for name in [story.policy, *(step.submit for step in story.steps)]:
        if name and not (folder / name).is_file():
            raise SettingsError(f"{file}: {name} is not in {folder}")
    return story


class Teller:
    """Plays a story on a local cluster. `outcomes` are the results of the manifests, in order."""

    def __init__(self, cluster: LocalCluster, folder: Path, tell: Callable[[str, str], None]) -> None:
        self._local = cluster
        self._store = cluster.cluster.store
        self._folder = folder
        self._tell = tell
        self.outcomes: list[submit.SubmitOutcome] = []

    def play(self, story: Story) -> None:
        """Play all steps.

        Raises StoryFailed.
        """
        for number, step in enumerate(story.steps, 1):
            if step.say:
                self._tell("", step.say)
            self._local.interrupted.wait(step.pause)
            self._local.go_on()
            if step.submit:
                self._submit(step)
            if step.grant is not None:
                self._grant(step.grant, number)
            if step.wait is not None:
                self._wait(step.wait, f"step {number} of {STORY}")

    def _submit(self, step: StoryStep) -> None:
        file = self._folder / step.submit
        client = self._local.kube_client()
        for manifest in submit.documents(file.read_text("utf-8"), str(file)):
            outcome = submit.create(client, manifest, step.namespace, str(file))
            self.outcomes.append(outcome)
            # The narrator reports pods, including those of controllers.
            if outcome.kind != "Pod" or not outcome.admitted:
                self._tell("submitted" if outcome.admitted else "refused", str(outcome))
            if outcome.admitted != (step.expect == "admitted"):
                raise StoryFailed(f"{step.submit}: expected to be {step.expect}, but {outcome}")
        client.close()

    def _grant(self, grant: StoryGrant, number: int) -> None:
        client = self._local.timekeeper_client()
        budget = client.grant(
            Budget, grant.namespace, parse_duration(grant.amount), "local mode's story", f"story-{number}"
        )
        self._tell("granted", f"{grant.namespace}  {grant.amount} of GPU time; it is {budget.state} now")

    def _wait(self, wait: Wait, where: str) -> None:
        longest = max(WAIT_SECONDS, WAIT_CLOCK_SECONDS / self._local.options.speed)
        deadline = time.monotonic() + longest
        report_at = time.monotonic() + 3.0
        version = -1
        while not self.holds(wait):
            self._local.go_on()
            if time.monotonic() > deadline:
                raise StoryFailed(f"{where} did not happen within {longest:.0f} s ({wait}); pods: {self._seen(wait)}")
            if time.monotonic() > report_at:
                report_at = deadline
                self._tell("waiting", str(wait))
            self._store.wait(version, 0.2)
            version = self._store.version

    def holds(self, wait: Wait) -> bool:
        """Whether what a step waits for is true now."""
        enough = sum(_fits(pod, wait) for pod in self._pods(wait)) >= wait.pods
        return enough and len(self._evicted(wait.namespace)) >= wait.evicted

    def _pods(self, wait: Wait) -> Iterator[Object]:
        for pod in self._store.collection(PODS, wait.namespace)[0]:
            if pod["metadata"]["name"].startswith(wait.name):
                yield pod

    def _evicted(self, namespace: str) -> set[str]:
        with self._store.changed:
            pods = [*self._store.removed_pods, *self._store.collection(PODS)[0]]
        return {p["metadata"]["uid"] for p in pods if p["metadata"]["namespace"] == namespace and is_evicted(p)}

    def _seen(self, wait: Wait) -> str:
        seen = [
            f"{pod['metadata']['name']} {phase(pod)} {pod['spec'].get('priorityClassName', '')} {_budget_state(pod)}"
            for pod in self._pods(wait)
        ]
        return "; ".join(seen) or "none"


def is_evicted(pod: Object) -> bool:
    """Whether a pod was deleted by the eviction API."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == "DisruptionTarget" and c["status"] == "True" for c in conditions)


def ending(pod: Object) -> str:
    """Return how a pod ended, in a word: a pod that was deleted while it ran has not failed by itself."""
    if is_evicted(pod):
        return "Evicted"
    return "Deleted" if phase(pod) == "Failed" and pod["metadata"].get("deletionTimestamp") else phase(pod)


def _budget_state(pod: Object) -> str:
    return str((pod["metadata"].get("annotations") or {}).get(names.BUDGET_STATE, ""))


def _fits(pod: Object, wait: Wait) -> bool:
    if pod["metadata"].get("deletionTimestamp"):
        return False
    return (
        wait.phase in ("", phase(pod))
        and wait.budget_state in ("", _budget_state(pod))
        and wait.priority_class in ("", pod["spec"].get("priorityClassName"))
    )
