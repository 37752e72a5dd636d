# SPDX-License-Identifier: Apache-2.0
"""Follow the cluster's GpuPolicies, and apply them over a part's policy file.

While the API server is unavailable, the last ones known stay in force. `slicekeeper.config.policy_objects` determines
their precedence.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

from slicekeeper import names
from slicekeeper.config.policy import PolicyBook
from slicekeeper.config.policy_file import PolicyFile
from slicekeeper.config.policy_objects import GpuPolicy, Judged, apply_policies, read
from slicekeeper.errors import NotFound
from slicekeeper.kube.changed_by import writer_of
from slicekeeper.kube.client import KubeClient, Object, Resource
from slicekeeper.kube.watch import Watch

log = logging.getLogger(__name__)

GPU_POLICIES: Final = Resource(f"/apis/{names.GROUP}/v1alpha1", "gpupolicies", namespaced=False)

GONE_SECONDS: Final = 60.0
"""How long the last GpuPolicies stay in force while the API server does not serve the kind: it may just have
started."""


def _read(obj: Object) -> GpuPolicy:
    return replace(read(obj), writer=writer_of(obj))


class PolicyObjects:
    """Keeps the GpuPolicies applied over a policy file, in a daemon thread."""

    def __init__(self, client: KubeClient, policy: PolicyFile) -> None:
        self._policy = policy
        self._known: dict[str, GpuPolicy] = {}
        self._judged: dict[str, Judged] = {}
        """The result of each object, by UID: the others are not evaluated again when one changes."""
        self._logged: dict[str, str] = {}
        """Errors that are in the log already, by UID."""
        self._missing_since: float | None = None
        """Since when the API server has not served the kind; None if it does, or does not answer."""
        self._error = ""
        self._watch = Watch(client, GPU_POLICIES, self, on_error=self._failed)
        policy.objects_trouble = self.trouble

    def trouble(self) -> str:
        """Return why changes of GpuPolicies may have been missed; empty while they are followed."""
        return self._error if self._watch.failures > 1 else ""

    def start(self) -> None:
        """Start following."""
        self._watch.start()

    def stop(self) -> None:
        """Stop following."""
        self._watch.stop()

    def on_list(self, objects: Iterable[Object]) -> None:
        """Apply all objects."""
        self._take({policy.uid: policy for policy in map(_read, objects)})

    def on_event(self, kind: str, obj: Object) -> None:
        """Apply the new state of one object, or its deletion."""
        policy = _read(obj)
        known = {uid: other for uid, other in self._known.items() if uid != policy.uid}
        self._take(known if kind == "DELETED" else {**known, policy.uid: policy})

    def _take(self, known: dict[str, GpuPolicy]) -> None:
        if known == self._known and self._policy.complete.is_set():  # a status was written
            return
        before, self._known = self._known, known
        self._policy.apply_over(lambda book: self._apply(book, known))
        changed = {uid: policy.name for uid, policy in known.items() if before.get(uid) != policy}
        gone = {uid: policy.name for uid, policy in before.items() if uid not in known}
        log.info(
            "GpuPolicies: %d, new or changed: %s, gone: %s",
            len(known),
            ", ".join(sorted(changed.values())) or "none",
            ", ".join(sorted(gone.values())) or "none",
        )

    def _apply(self, book: PolicyBook, known: dict[str, GpuPolicy]) -> PolicyBook:
        applied = apply_policies(book, known.values(), self._judged)
        for uid, error in applied.errors.items():
            if self._logged.get(uid) != error:
                log.error("GpuPolicy %s is left out: %s", known[uid].name, error)
        self._logged = dict(applied.errors)
        return applied.book

    def _failed(self, error: Exception) -> None:
        self._error = str(error)
        if not isinstance(error, NotFound):
            self._missing_since = None
            return
        # The kind is not served, so there are none; if there were some, the last ones stay in force for a while.
        if self._watch.failures == 1 or self._missing_since is None:
            self._missing_since = time.monotonic()
        if not self._known or time.monotonic() - self._missing_since >= GONE_SECONDS:
            self._take({})
