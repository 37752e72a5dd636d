# SPDX-License-Identifier: Apache-2.0
"""Show people what happens in the cluster, line by line, only from the objects: nothing here decides anything."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from simulator.local import LocalCluster
from simulator.store import Change
from simulator.story import ending, is_evicted
from slicekeeper import names
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.errors import ServiceError
from slicekeeper.kube.client import EVENTS, PODS, Object
from slicekeeper.kube.pod import has_ended
from slicekeeper.kube.pod_manifest import annotations_of
from slicekeeper.units import format_duration

log = logging.getLogger(__name__)

TELL_SECONDS = 3.0
"""Longest time, in real seconds, for which `stop` waits for lines that are still to come."""

POLICY_SECONDS = 0.5
"""How often, in real seconds, the policy file is looked at."""

SHORT = 12
"""Characters of a GPU's UUID that a line shows."""


class Narrator:
    """Follows the store, the budgets' decisions and the policy file in daemon threads.

    `tell` gets a verb and the rest of a line.
    """

    def __init__(self, local: LocalCluster, tell: Callable[[str, str], None]) -> None:
        self._local = local
        self._store = local.cluster.store
        self._client = local.timekeeper_client()
        self._tell = tell
        self._stop = threading.Event()
        self._last_version = self._store.version
        self._policy_file = PolicyFile(local.settings.policy)
        self._threads = [
            threading.Thread(target=target, name=name, daemon=True)
            for name, target in (
                ("narrator", self._follow),
                ("decisions", self._decisions),
                ("policy", self._policy),
            )
        ]

    def start(self) -> None:
        """Start."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Stop, once everything that has happened was shown."""
        deadline = time.monotonic() + TELL_SECONDS
        while self._last_version < self._store.version and time.monotonic() < deadline:
            time.sleep(0.02)
        self._stop.set()
        for thread in self._threads:
            thread.join(5)

    def _follow(self) -> None:
        for changes in self._store.follow(self._last_version, self._stop, 0.2):
            for change in changes:
                if change.resource == PODS and names.MANAGED_LABEL in (change.obj["metadata"].get("labels") or {}):
                    self._pod(change)
                elif change.resource == EVENTS and change.kind == "ADDED":
                    self._event(change.obj)
                self._last_version = change.version

    def _pod(self, change: Change) -> None:
        pod, old = change.obj, change.old
        metadata, spec, annotations = pod["metadata"], pod["spec"], annotations_of(pod)
        name = f"{metadata['namespace']}/{metadata['name']}"
        if old is None:
            state = annotations.get(names.BUDGET_STATE, "not metered")
            self._tell("admitted", f"{name}  class {spec.get('priorityClassName')}, {state}")
            return
        if spec.get("nodeName") and not old["spec"].get("nodeName"):
            self._tell("bound", f"{name}  to {placement(pod)}")
        before, now = annotations_of(old).get(names.BUDGET_STATE), annotations.get(names.BUDGET_STATE)
        if before != now and not has_ended(pod):
            verb, what = (
                ("demoted", "gives way from now on") if now == names.OVER_BUDGET else ("restored", "has its share")
            )
            self._tell(verb, f"{name}  is {now} and {what}")
        if is_evicted(pod) and not is_evicted(old):
            self._tell("reclaimed", f"{name}  is evicted from {placement(pod)}")
        if has_ended(pod) and not has_ended(old):
            self._tell("ended", f"{name}  {ending(pod)}")
        held = names.FINALIZER in (old["metadata"].get("finalizers") or ())
        if held and names.FINALIZER not in (metadata.get("finalizers") or ()):
            self._charged(pod, name)

    def _charged(self, pod: Object, name: str) -> None:
        if not pod["spec"].get("nodeName"):
            return
        try:
            workloads = self._client.workloads(pod["metadata"]["namespace"])
            found = next((w for w in workloads if w.pod_uid == pod["metadata"]["uid"]), None)
        except ServiceError as error:
            log.info("no charge to report for %s: %s", name, error)
            return
        if found is not None:
            over = f", and {format_duration(found.over_budget_ms)} over budget" if found.over_budget_ms else ""
            self._tell("charged", f"{name}  {format_duration(found.charged_ms)} of GPU time{over}")

    def _event(self, event: Object) -> None:
        """Show our parts' own events; what Kubernetes does is seen from the pods."""
        about = event["involvedObject"]
        who = (event.get("source") or {}).get("component", "")
        if who.startswith("slicekeeper") or who.endswith("controller"):
            self._tell("event", f"{about['namespace']}/{about['name']}  {event['reason']}: {event['message']}")

    def _policy(self) -> None:
        """Say whether a changed policy file is in force: the parts write that only to their logs."""
        file = self._policy_file
        while not self._stop.wait(POLICY_SECONDS):
            before = file.error
            if file.refresh():
                self._tell("policy", "the changed file is in force")
                for warning in file.book.warnings:
                    self._tell("policy", f"warning: {warning}")
            elif file.error != before:
                self._tell("policy", f"refused, what was in force before stays: {file.error}")

    def _decisions(self) -> None:
        states: dict[str, str] = {}
        etag = ""
        while not self._stop.wait(0.3):
            try:
                decisions, etag = self._client.decisions(etag)
            except ServiceError:
                continue  # the timekeeper is down; `parts` reports it
            for decision in decisions.items if decisions is not None else ():
                before = states.get(decision.namespace, "ok")
                states[decision.namespace] = decision.state
                if before != decision.state:
                    verb = "ran out" if decision.over_budget else "budget"
                    # The rest of an exhausted budget is less than any pod needs.
                    left = "nothing" if decision.state == "exhausted" else format_duration(decision.balance_ms)
                    self._tell(
                        verb,
                        f"{decision.namespace}  {decision.state} since {decision.since}; "
                        f"{left} left, new pods get {decision.priority_class_name}",
                    )


def placement(pod: Object) -> str:
    """Return a pod's node and GPUs, short."""
    gpus = [
        uuid[:SHORT]
        for key, value in annotations_of(pod).items()
        if key.startswith(names.GPU_PREFIX)
        for uuid in str(value).split(",")
    ]
    return " ".join([str(pod["spec"].get("nodeName", "")), *dict.fromkeys(gpus)])
