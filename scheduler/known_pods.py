# SPDX-License-Identifier: Apache-2.0
"""The managed pods that the watch has shown, and which of them wait, may be evicted, or belong to a gang."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from scheduler.gang_members import GangMembers, gang_members
from scheduler.pods import KnownPod
from slicekeeper import names as marks


class KnownPods:
    """All managed pods. One thread at a time may change them; `get` may be called at any time."""

    def __init__(self) -> None:
        self._pods: dict[str, KnownPod] = {}
        self._waiting: dict[str, KnownPod] = {}
        """Pods without a node: all that concern the reclaimer."""
        self._yielding: set[str] = set()
        """Pods on nodes that may be evicted, or are terminating: without any, no eviction makes room."""
        self._gangs: dict[str, dict[str, None]] = {}
        """Each gang's pods."""
        self._gang_members: dict[str, GangMembers] = {}
        """The last result of `gang_members`, as long as none of the gang's pods and places has changed."""
        self._succeeded: dict[str, dict[str, int]] = {}
        """By gang, how many pods have succeeded, by the UID of their controller."""

    def get(self, uid: str) -> KnownPod | None:
        """Return a pod, None if it is not known."""
        return self._pods.get(uid)

    def uids(self) -> set[str]:
        """Return all pods' UIDs."""
        return set(self._pods)

    def every(self) -> list[KnownPod]:
        """Return all pods."""
        return list(self._pods.values())

    def waiting(self) -> list[KnownPod]:
        """Return the pods without a node."""
        return list(self._waiting.values())

    def may_yield(self) -> bool:
        """Whether any pod could be evicted, or is terminating."""
        return bool(self._yielding)

    def put(self, pod: KnownPod) -> None:
        """Update a pod."""
        self.forget(pod.uid)
        self._pods[pod.uid] = pod
        if pod.gang is not None:
            self._gangs.setdefault(pod.gang.key, {})[pod.uid] = None
            self._gang_members.pop(pod.gang.key, None)
        if pod.finished:
            return
        if not pod.node:
            self._waiting[pod.uid] = pod
        elif pod.leaving or pod.budget_state == marks.OVER_BUDGET or pod.gpu_class == marks.BACKGROUND:
            self._yielding.add(pod.uid)

    def forget(self, uid: str) -> None:
        """Forget a pod."""
        known = self._pods.pop(uid, None)
        if known is not None and known.gang is not None:
            uids = self._gangs[known.gang.key]
            self._gang_members.pop(known.gang.key, None)
            del uids[uid]
            if not uids:
                del self._gangs[known.gang.key]
                self._succeeded.pop(known.gang.key, None)
        self._waiting.pop(uid, None)
        self._yielding.discard(uid)

    def place_changed(self, uid: str) -> None:
        """Record that a pod has another place, or none."""
        known = self._pods.get(uid)
        if known is not None and known.gang is not None:
            self._gang_members.pop(known.gang.key, None)

    def note_succeeded(self, key: str, succeeded: Mapping[str, int]) -> None:
        """Record how many pods of each controller of a gang have succeeded, also those that were removed."""
        if key not in self._gangs:
            return
        before = self._succeeded.get(key, {})
        after = {**before, **succeeded}
        if after != before:
            self._succeeded[key] = after
            self._gang_members.pop(key, None)

    def succeeded(self) -> dict[str, int]:
        """Return how many pods of each controller have succeeded, as far as it was recorded."""
        return {uid: count for of_gang in self._succeeded.values() for uid, count in of_gang.items()}

    def gang_members(
        self, key: str, asking: KnownPod | None, is_binding: Callable[[KnownPod], bool]
    ) -> GangMembers | None:
        """Return the pods of a gang, None if it has none; `asking` counts even if no watch has shown it yet."""
        uids = self._gangs.get(key, {})
        unseen = [asking] if asking is not None and asking.uid not in uids else []
        members = None if unseen else self._gang_members.get(key)
        if members is None:
            succeeded = self._succeeded.get(key, {})
            members = gang_members((*(self._pods[uid] for uid in uids), *unseen), is_binding, succeeded)
            if members is not None and not unseen:
                self._gang_members[key] = members
        return members
