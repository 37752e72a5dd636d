# SPDX-License-Identifier: Apache-2.0
"""Write the budget state to pods: whether their namespace is in budget or over it.

A namespace is examined again when its account has changed or something in it falls due, and a pod when the pod itself
has changed. In modes other than `enforce`, the annotation from admission stays.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from typing import Final

from slicekeeper import names
from slicekeeper.clock import Clock
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.kube.client import KubeClient, Object
from slicekeeper.kube.pod import has_ended
from slicekeeper.units import Instant, format_instant
from timekeeper.cluster import pod_patch
from timekeeper.cluster.gated_pods import GatedPods
from timekeeper.cluster.hard_budget_eviction import Evictions
from timekeeper.cluster.opening import namespace_of
from timekeeper.cluster.pod_patch import Each
from timekeeper.cluster.watches import Pods
from timekeeper.core.account import AccountId
from timekeeper.ledger.books import Books
from timekeeper.ledger.standing import BudgetStanding

AGAIN_SECONDS: Final = 5.0
"""Real seconds after which a state is written again if the watch has not shown it."""


class BudgetStates:
    """The states that pods must have. Used by the controller's one thread."""

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        books: Books,
        policy: PolicyFile,
        pods: Pods,
        gated_pods: GatedPods,
        evictions: Evictions,
        each: Each,
    ) -> None:
        self._client = client
        self._clock = clock
        self._books = books
        self._policy = policy
        self._pods = pods
        self._gated_pods = gated_pods
        self._evictions = evictions
        self._each = each
        self._changed: set[str] = set()
        """UIDs of the pods to look at."""
        self._states: dict[str, str] = {}
        """By namespace."""
        self._why: dict[str, str] = {}
        """By namespace, for events on its pods."""
        self._due: dict[str, tuple[BudgetStanding, Instant | None]] = {}
        """The standing from which each namespace's state was determined, and until when that is valid."""
        self._written: dict[str, tuple[str, float]] = {}
        """The state written to each pod, and when (real seconds), by UID."""

    def judge_again(self) -> None:
        """Determine all states again: the policy has changed, which may affect whether they are written."""
        self._states.clear()

    def mark(self, uids: Iterable[str]) -> None:
        """Look at some pods again."""
        self._changed.update(uids)

    def forget(self, uid: str) -> None:
        """Forget a pod that is settled."""
        self._written.pop(uid, None)

    def fallen_due(self, now: Instant) -> set[AccountId]:
        """Return the accounts in which something has fallen due."""
        return {standing.account.id for standing, at in self._due.values() if at is not None and at <= now}

    def dues(self) -> list[Instant]:
        """Return when accounts are to be looked at again."""
        return [at for _, at in self._due.values() if at is not None]

    def over_budget(self) -> list[str]:
        """Return the namespaces that are over budget."""
        return [name for name, state in self._states.items() if state == names.OVER_BUDGET]

    def look(self, now: Instant) -> None:
        """Write the state to the pods that have another one."""
        for standing in self._books.standings():
            name = standing.account.name
            known, due = self._due.get(name, (None, None))
            # A standing is replaced when a record of its budget changes: if it is the same object, none has.
            if known is not standing or (due is not None and due <= now) or name not in self._states:
                self._judge(standing, now)
        pods = [pod for pod in map(self._pods.find, self._changed) if pod is not None]
        self._each(
            [pod for pod in pods if self._wrong(pod)], lambda pod: self._write(pod, self._why[namespace_of(pod)])
        )
        self._changed.clear()

    def _judge(self, standing: BudgetStanding, now: Instant) -> None:
        """Determine a namespace's state; if it has changed, mark all its pods."""
        name, state = standing.account.name, standing.at(now)
        self._due[name] = (standing, standing.due(now))
        wanted = names.OVER_BUDGET if state.over_budget else names.IN_BUDGET
        self._why[name] = f"namespace {name} is {wanted} since {format_instant(state.since)}"
        policy = self._policy.of(name)
        if state.over_budget and policy.evicts:
            due = format_instant(self._evictions.due(name, policy, state.since))
            self._why[name] += f"; its pods are evicted from {due} on unless a grant or a new period comes first"
        if self._states.get(name) != wanted:
            self.mark(pod["metadata"]["uid"] for pod in self._pods.all() if namespace_of(pod) == name)
            self._states[name] = wanted

    def _wanted(self, pod: Object) -> str | None:
        """Return the state that a pod must have: one with GPU time reserved, or waiting for that, stays in budget."""
        wanted = self._states.get(namespace_of(pod))
        return names.IN_BUDGET if wanted and self._gated_pods.keeps_in_budget(pod) else wanted

    def _wrong(self, pod: Object) -> bool:
        namespace, uid = namespace_of(pod), pod["metadata"]["uid"]
        wanted = self._wanted(pod)
        if wanted is None or has_ended(pod) or self._policy.of(namespace).mode != "enforce":
            return False
        if pod_patch.state_of(pod) == wanted:
            self._written.pop(uid, None)
            return False
        state, at = self._written.get(uid, ("", 0.0))
        return state != wanted or time.monotonic() - at > AGAIN_SECONDS

    def _write(self, pod: Object, why: str) -> None:
        wanted = self._wanted(pod) or names.IN_BUDGET
        pod_patch.flip(self._client, self._clock, pod, wanted, why)
        self._written[pod["metadata"]["uid"]] = (wanted, time.monotonic())
