# SPDX-License-Identifier: Apache-2.0
"""Keep one pod for each SharePod, as a ReplicaSet would, and mirror the pod in the SharePod's status.

A SharePod's pod has the SharePod's name, so there are never two, whenever this process is killed and even if another
acts at the same time. The watches may be behind: before a pod is made or adopted, the SharePod is read again, because
it may have been deleted, or its pod may have ended for good. The garbage collector deletes the pod of a deleted
SharePod, because the pod names its owner.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from objects.sharepods.status import has_outcome, outcome_of, status_of
from objects.sharepods.template import SHAREPOD_LABEL, SHAREPODS, Template, owner_reference, template_of
from slicekeeper.clock import Clock
from slicekeeper.config.settings import Resources
from slicekeeper.errors import Conflict, NotFound, ServiceError, Unavailable
from slicekeeper.kube.client import JSON_PATCH, PODS, KubeClient, Object
from slicekeeper.kube.pod import controller_of, full_name, guarded, has_ended
from slicekeeper.kube.watch import Seen, Watch
from slicekeeper.units import parse_instant
from slicekeeper.untyped_json import as_list, as_map

log = logging.getLogger(__name__)

REPLACED_MS: Final = 30_000
"""Minimum age at which a failed pod is replaced, so that one that always fails is not created continuously."""
FIRST_PAUSE_NS: Final = 5_000_000_000
LONGEST_PAUSE_NS: Final = 80_000_000_000
"""Pause after the refusal of a pod; it doubles with each attempt."""

_Problem = tuple[str, str]


class SharePodKeeper:
    """Runs the passes. `acts` returns whether this process holds the lease; it is called before each write."""

    def __init__(self, client: KubeClient, resources: Resources, clock: Clock, acts: Callable[[], bool]) -> None:
        self._client = client
        self._resources = resources
        self._clock = clock
        self._acts = acts
        self._sharepods = Seen()
        self._pods = Seen()
        self._watches = (
            Watch(client, SHAREPODS, self._sharepods),
            Watch(client, PODS, self._pods, label_selector=SHAREPOD_LABEL),
        )
        self._pauses = _Pauses(clock)

    def start(self, changed: Callable[[], None]) -> None:
        """Watch SharePods and their pods; `changed` is called whenever there is something to do."""
        self._sharepods.changed = self._pods.changed = changed
        for watch in self._watches:
            watch.start()

    def stop(self) -> None:
        """Stop watching."""
        for watch in self._watches:
            watch.stop()

    def keep(self) -> None:
        """Run one pass. Raises Unavailable if there is no list yet, or no answer; then retry."""
        if not all(watch.synced.is_set() for watch in self._watches):
            raise Unavailable("SharePods and their pods have not been listed yet")
        there = self._sharepods.all()
        self._pauses.forget_all_but({obj["metadata"]["uid"] for obj in there})
        for obj in there:
            if obj["metadata"].get("deletionTimestamp"):
                continue
            if not self._acts():
                return
            try:
                self._keep(obj)
            except ServiceError as error:
                if not error.status:
                    raise
                log.info("%s: %s", _in_log(obj), error)  # other SharePods do not wait for this one

    def _keep(self, obj: Object) -> None:
        metadata = obj["metadata"]
        template = template_of(obj, self._resources)
        pod, problem = self._pod_of(obj, template)
        if pod is None and problem is None:
            return
        status = status_of(obj, pod, template, problem, self._clock.now_ms())
        if status is not None and self._acts():
            body = _unless_changed(obj, {"op": "add", "path": "/status", "value": status})
            self._client.patch(
                SHAREPODS, metadata["name"], body, metadata["namespace"], content_type=JSON_PATCH, subresource="status"
            )

    def _pod_of(self, obj: Object, template: Template) -> tuple[Object | None, _Problem | None]:
        """Return its pod, or why it has none. If neither is known, the status stays, and a later pass decides."""
        metadata = obj["metadata"]
        pod = seen = self._pods.find(metadata["namespace"], metadata["name"])
        if pod is not None and _is_of(pod, obj):
            self._replace(pod)
            return pod, None
        if has_outcome(obj):
            return None, None
        if pod is None:
            if self._pauses.holds(obj, template):
                return None, None
            pod = self._read_pod(obj)  # a watch may be late, and a user may have removed the label
            if pod is not None and _is_of(pod, obj):
                return pod, None
        if template.violations:
            self._pauses.begin(obj, template)
            return None, ("SpecInvalid", "; ".join(map(str, template.violations)))
        if pod is None:
            return self._make(obj, template)
        if _is_orphan(pod):
            return self._adopt(obj, template, pod), None
        if seen is None:  # no watch shows when it is gone
            self._pauses.begin(obj, template)
        owner = controller_of(pod)
        whose = f"{owner.get('kind')} {owner.get('name')}'s" if owner else "not a SharePod's"
        return None, (
            "PodNameTaken",
            f"pod {metadata['name']} exists and is {whose}: delete it, or give the SharePod another name",
        )

    def _read_pod(self, obj: Object) -> Object | None:
        return self._client.find(PODS, obj["metadata"]["name"], obj["metadata"]["namespace"])

    def _make(self, obj: Object, template: Template) -> tuple[Object | None, _Problem | None]:
        if not self._is_still(obj, template):
            return None, None
        try:
            made = self._client.create(PODS, template.pod, obj["metadata"]["namespace"])
        except ServiceError as error:
            if not error.status:
                raise
            if isinstance(error, Conflict):  # another process created one; the next pass finds out which
                return None, None
            self._pauses.begin(obj, template)
            return None, ("PodRefused", str(error).partition(": ")[2] or str(error))
        self._pauses.end(obj)
        log.info("%s: its pod is made", _in_log(obj))
        return made, None

    def _adopt(self, obj: Object, template: Template, pod: Object) -> Object | None:
        if not self._is_still(obj, template):
            return None
        owners = [*as_list(pod["metadata"].get("ownerReferences")), owner_reference(obj)]
        body = _unless_changed(pod, {"op": "add", "path": "/metadata/ownerReferences", "value": owners})
        name, namespace = obj["metadata"]["name"], obj["metadata"]["namespace"]
        adopted = self._client.patch(PODS, name, body, namespace, content_type=JSON_PATCH)
        log.info("%s: the pod of its name, which had no owner, is adopted", _in_log(obj))
        return adopted

    def _replace(self, pod: Object) -> None:
        """Delete an ended pod that must be replaced: kubelet evicted it, or its node was shut down."""
        metadata = pod["metadata"]
        young = self._clock.now_ms() - parse_instant(metadata["creationTimestamp"]) < REPLACED_MS
        if not has_ended(pod) or outcome_of(pod) or metadata.get("deletionTimestamp") or young or not self._acts():
            return
        try:
            self._client.delete(PODS, metadata["name"], metadata["namespace"], uid=metadata["uid"])
        except (NotFound, Conflict):
            return
        log.info("pod %s/%s has failed: it is replaced", metadata["namespace"], metadata["name"])

    def _is_still(self, obj: Object, template: Template) -> bool:
        """Whether the SharePod, read again, still exists and still requires this pod."""
        metadata = obj["metadata"]
        try:
            now = self._client.get(SHAREPODS, metadata["name"], metadata["namespace"])
        except NotFound:
            return False
        return (
            now["metadata"]["uid"] == metadata["uid"]
            and not now["metadata"].get("deletionTimestamp")
            and not has_outcome(now)
            and template_of(now, self._resources).digest == template.digest
            and self._acts()
        )


class _Pauses:
    """Until when no pod is created for a SharePod after a refusal. Another template is tried at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._of: dict[str, tuple[str, int, int]] = {}
        """By the SharePod's UID: the refused template, the pause, and its end; in monotonic nanoseconds."""

    def holds(self, obj: Object, template: Template) -> bool:
        digest, _, until = self._of.get(obj["metadata"]["uid"], ("", 0, 0))
        return digest == template.digest and self._clock.monotonic_ns() < until

    def begin(self, obj: Object, template: Template) -> None:
        digest, pause, _ = self._of.get(obj["metadata"]["uid"], ("", 0, 0))
        pause = min(pause * 2, LONGEST_PAUSE_NS) if digest == template.digest else FIRST_PAUSE_NS
        self._of[obj["metadata"]["uid"]] = (template.digest, pause, self._clock.monotonic_ns() + pause)

    def end(self, obj: Object) -> None:
        self._of.pop(obj["metadata"]["uid"], None)

    def forget_all_but(self, uids: set[str]) -> None:
        self._of = {uid: pause for uid, pause in self._of.items() if uid in uids}


def _is_of(pod: Object, obj: Object) -> bool:
    return bool((controller_of(pod) or {}).get("uid") == obj["metadata"]["uid"])


def _is_orphan(pod: Object) -> bool:
    """Whether a SharePod's pod is an orphan that a SharePod of the same name may adopt."""
    metadata = pod["metadata"]
    made = SHAREPOD_LABEL in as_map(metadata.get("labels"))
    return made and controller_of(pod) is None and not metadata.get("deletionTimestamp")


def _unless_changed(obj: Object, operation: Object) -> list[Object]:
    """Return a patch that the API server refuses if the object has changed since it was seen."""
    version = {"op": "test", "path": "/metadata/resourceVersion", "value": obj["metadata"]["resourceVersion"]}
    return guarded(obj, version, operation)


def _in_log(obj: Object) -> str:
    return f"sharepod {full_name(obj)}"
