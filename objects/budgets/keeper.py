# SPDX-License-Identifier: Apache-2.0
"""Bring ledger and objects into step in one pass over both, whatever happened before.

Nothing is remembered from one pass to the next, so any pass may be cut short. Each write names the version of what it
was made from, so an operator that has lost the lease without noticing cannot undo what its successor has written: a
request to the timekeeper carries the budget's `object_version`, which is read before the object; a status is made from
a budget that is read after the object, and names the object's resource version. No object has a finalizer of ours, so
a namespace can be deleted while no operator runs. A deleted object is found by what the ledger still has of it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Final

from objects.budgets.resources import CLUSTER_GPU_BUDGETS, GPU_BUDGETS, ONLY_NAME, B, Kind
from objects.budgets.spec import SpecInvalid, body_of
from objects.budgets.status import status_of
from objects.status_writes import write_status
from slicekeeper.clock import Clock
from slicekeeper.errors import Forbidden, NotFound, ServiceError, Unavailable
from slicekeeper.kube.client import KubeClient, Object
from slicekeeper.net.timekeeper_client import TimekeeperClient
from slicekeeper.wire.timekeeper import Budget, Parent

log = logging.getLogger(__name__)

_NOT_THE_OBJECTS_FAULT: Final = (Unavailable, Forbidden)
"""The whole pass has failed, not because of a spec, so no object's status reports it."""
_ANOTHER_WAS_FIRST: Final = "version-mismatch"


class Keeper:
    """Runs the passes. `acts` returns whether this process holds the lease; it is called before each write."""

    def __init__(
        self, client: KubeClient, timekeeper: TimekeeperClient, clock: Clock, acts: Callable[[], bool]
    ) -> None:
        self._client = client
        self._timekeeper = timekeeper
        self._clock = clock
        self._acts = acts

    def keep(self) -> None:
        """Run one pass. Raises ServiceError if the API server or the timekeeper does not serve us; then retry."""
        self._keep_all(CLUSTER_GPU_BUDGETS)  # first, for the budgets below them
        self._keep_all(GPU_BUDGETS)

    def _keep_all(self, kind: Kind[B]) -> None:
        objects, _ = self._client.list(kind.resource)
        budgets = {_holder(budget): budget for budget in self._timekeeper.budgets(kind.budget) if not _is_gone(budget)}
        # An organisation has no parent, so it may be needed and needs none.
        objects.sort(key=lambda obj: (obj.get("spec") or {}).get("kind") != "organisation")
        for obj in objects:
            if not self._acts():
                return
            self._keep(kind, obj, budgets.get(kind.holder(obj)))
        there = {obj["metadata"]["uid"] for obj in objects}
        for name, budget in budgets.items():
            if budget.kept_by is not None and budget.kept_by.uid not in there and self._acts():
                self._report_deleted(kind, name, budget.kept_by.uid)

    def _keep(self, kind: Kind[B], obj: Object, budget: B | None) -> None:
        """Report an object's generation to the timekeeper if it has not accepted it, and write the object's status."""
        metadata, holder, problem = obj["metadata"], kind.holder(obj), None
        if metadata.get("deletionTimestamp"):
            return
        kept = budget.kept_by if budget is not None else None
        if kept is None or (kept.uid, kept.generation) != (metadata["uid"], metadata["generation"]):
            if not self._is_still(kind, obj):
                return  # the next pass sees its new state
            try:
                seen = budget.object_version if budget is not None else ""
                budget = self._timekeeper.put_object(kind.budget, holder, body_of(obj, seen))
                log.info("%s %s: generation %s is accepted", kind.resource.plural, holder, metadata["generation"])
            except _NOT_THE_OBJECTS_FAULT:
                raise
            except ServiceError as error:
                if error.reason == _ANOTHER_WAS_FIRST:
                    return
                problem = _camel(error.reason or "Refused"), str(error).partition(": ")[2] or str(error)
            except SpecInvalid as error:
                problem = "SpecInvalid", str(error)
        if (status := status_of(obj, budget, problem, self._clock.now_ms())) is None:
            return
        write_status(self._client, kind.resource, obj, status)

    def _is_still(self, kind: Kind[B], obj: Object) -> bool:
        """Whether an object, read again, still exists with this spec."""
        metadata = obj["metadata"]
        try:
            now = self._client.get(kind.resource, metadata["name"], metadata.get("namespace", ""))["metadata"]
        except NotFound:
            return False
        return bool((now["uid"], now["generation"]) == (metadata["uid"], metadata["generation"]))

    def _report_deleted(self, kind: Kind[B], holder: str, uid: str) -> None:
        """Report to the timekeeper that an object was deleted, if a GET by its name says so, too.

        A list may be incomplete for another reason, and the policy's budget applies as soon as this is reported.
        """
        namespaced = kind.resource.namespaced
        try:
            found = self._client.get(kind.resource, ONLY_NAME if namespaced else holder, holder if namespaced else "")
            if found["metadata"]["uid"] == uid:
                return
        except NotFound as error:
            if error.reason != "NotFound":  # the kind itself is not served
                raise Unavailable(f"{kind.resource.plural}: {error}", 404) from error
        try:
            self._timekeeper.delete_object(kind.budget, holder, uid)
            log.info("%s %s: deleted", kind.resource.plural, holder)
        except NotFound as error:
            log.info("%s %s: went with its namespace: %s", kind.resource.plural, holder, error)


def _holder(budget: Budget | Parent) -> str:
    return budget.namespace if isinstance(budget, Budget) else budget.name


def _is_gone(budget: Budget | Parent) -> bool:
    """Whether its namespace was deleted: the account remains."""
    return isinstance(budget, Budget) and budget.gone


def _camel(code: str) -> str:
    return "".join(part.capitalize() for part in code.split("-"))
