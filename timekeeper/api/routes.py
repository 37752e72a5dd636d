# SPDX-License-Identifier: Apache-2.0
"""All routes, in one table. The OpenAPI document is generated from it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec
from flask import Response

from slicekeeper import names
from slicekeeper.wire import timekeeper as wire
from timekeeper.api.handlers import (
    audit,
    budget,
    budget_object,
    decision,
    discovery,
    entry,
    health,
    interval_correction,
    legacy_routes,
    movement,
    openapi,
    parent,
    period,
    rate,
    reservation,
    statement,
    usage,
    usage_report,
    workload,
)
from timekeeper.api.schemas.audit import AuditList
from timekeeper.api.schemas.budget import BudgetBody, BudgetPatch, StatusBody
from timekeeper.api.schemas.budget_object import ObjectBody, ParentObjectBody
from timekeeper.api.schemas.discovery import ResourceList
from timekeeper.api.schemas.entry import EntryList
from timekeeper.api.schemas.health import Health
from timekeeper.api.schemas.interval_correction import IntervalBody
from timekeeper.api.schemas.legacy_routes import IncreaseBody, LegacyBudget, SignOfLife, Terminate
from timekeeper.api.schemas.movement import AdjustmentBody, GrantBody, MovementList, RefundBody, TransferBody
from timekeeper.api.schemas.parent import ParentBudgetBody, ParentPatch, PlaceBody
from timekeeper.api.schemas.period import PeriodList, SealBody
from timekeeper.api.schemas.rate import GpuRate, GpuRateList, RateBody
from timekeeper.api.schemas.reservation import ReservationBody
from timekeeper.api.schemas.usage import Usage, UsageList

StructType = type[msgspec.Struct]

PREFIX: Final = "/api/v1"
_NS = "/api/v1/budgets/{namespace}"
_PARENT = "/api/v1/parents/{parent}"
_PAGE = ("cursor", "limit")
_UID = ("uid",)
"""Selects one of several namespaces that have had the name."""

_IF_NONE = ("If-None-Match",)
_ONCE = ("Idempotency-Key",)
_IF_SAME = ("If-Match", "Idempotency-Key")


@dataclass(frozen=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    handler: Callable[..., Response]
    summary: str
    answer: StructType | None = None
    body: StructType | None = None
    status: tuple[int, ...] = (200,)
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    problems: tuple[int, ...] = ()
    """Its error statuses in addition to those that all routes have."""
    public: bool = False
    """Whether it needs no identity."""
    internal: bool = False
    """Whether only our own sidecars and operators use it."""

    @property
    def needs_key(self) -> bool:
        """Whether it books something in an account, and so needs a key; other writes may have one."""
        return self.method == "POST" and self.path.startswith((f"{_NS}/", f"{_PARENT}/"))

    @property
    def aggregated(self) -> bool:
        """Whether the API server offers it too."""
        return self.path.startswith(f"{PREFIX}/") and not self.internal and not self.public


ROUTES: tuple[Route, ...] = (
    Route("GET", "/api/v1/decisions", decision.listed, "All namespaces' decisions", wire.DecisionList,
          status=(200, 304), headers=_IF_NONE),
    Route("GET", "/api/v1/decisions/{namespace}", decision.shown, "One namespace's decision", wire.Decision,
          status=(200, 304), headers=_IF_NONE, problems=(404,)),
    Route("GET", "/api/v1/budgets", budget.listed, "Budgets, page by page", wire.BudgetList, query=_PAGE),
    Route("GET", _NS, budget.shown, "One budget", wire.Budget, status=(200, 304), headers=_IF_NONE,
          query=_UID, problems=(404,)),
    Route("PUT", _NS, budget.put, "Give a namespace a budget of its own", wire.Budget, BudgetBody,
          headers=_IF_SAME, problems=(404, 409, 412)),
    Route("PATCH", _NS, budget.patch, "Change the given fields of a namespace's budget", wire.Budget,
          BudgetPatch, headers=_IF_SAME, problems=(404, 409, 412)),
    Route("DELETE", _NS, budget.unset, "Reset a namespace to the policy's budget", wire.Budget,
          headers=_IF_SAME, query=("reason",), problems=(404, 409, 412)),
    Route("GET", f"{_NS}/grants", movement.grants, "Grants, newest first", wire.GrantList, query=(*_UID, *_PAGE),
          problems=(404,)),
    Route("POST", f"{_NS}/grants", movement.grant, "Book a grant", wire.Budget, GrantBody, status=(200, 201),
          headers=_ONCE, problems=(404, 409)),
    Route("DELETE", f"{_NS}/grants/{{grant}}", movement.withdraw, "Withdraw a grant that has not begun", wire.Grant,
          query=(*_UID, "reason"), headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_NS}/refunds", movement.refunds, "Refunds, newest first", MovementList,
          query=(*_UID, *_PAGE), problems=(404,)),
    Route("POST", f"{_NS}/refunds", movement.refund, "Refund an ended pod's charge, or a part", wire.Budget,
          RefundBody, status=(200, 201), headers=_ONCE, query=_UID, problems=(404, 409)),
    Route("GET", f"{_NS}/intervals", interval_correction.listed, "Pods' corrected intervals, newest first",
          wire.IntervalCorrectionList, query=(*_UID, *_PAGE), problems=(404,)),
    Route("POST", f"{_NS}/intervals", interval_correction.correct, "Correct a pod's interval", wire.Budget,
          IntervalBody, status=(200, 201), headers=_ONCE, query=_UID, problems=(404, 409)),
    Route("GET", f"{_NS}/adjustments", movement.adjustments, "Adjustments, newest first", MovementList,
          query=(*_UID, *_PAGE), problems=(404,)),
    Route("POST", f"{_NS}/adjustments", movement.adjust, "Adjust GPU time by hand", wire.Budget,
          AdjustmentBody, status=(200, 201), headers=_ONCE, query=_UID, problems=(404, 409)),
    Route("GET", f"{_NS}/transfers", movement.transfers, "Transfers in and out, newest first", MovementList,
          query=(*_UID, *_PAGE), problems=(404,)),
    Route("POST", f"{_NS}/transfers", movement.transfer, "Move GPU time into another namespace's budget", wire.Budget,
          TransferBody, status=(200, 201), headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_NS}/reservations", reservation.listed, "Reservations, newest first",
          wire.ReservationList, query=_PAGE, problems=(404,)),
    Route("POST", f"{_NS}/reservations", reservation.opened, "Reserve GPU time", wire.Reservation,
          ReservationBody, status=(200, 201), headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_NS}/reservations/{{reservation}}", reservation.shown, "One reservation", wire.Reservation,
          problems=(404,)),
    Route("DELETE", f"{_NS}/reservations/{{reservation}}", reservation.released, "Release a reservation",
          wire.Reservation, query=("reason",), headers=_ONCE, problems=(404, 409)),
    Route("PUT", f"{_NS}/status", budget.status, "Suspend a budget, close it, or reactivate it", wire.Budget,
          StatusBody, headers=_ONCE, problems=(404, 409)),
    Route("PUT", f"{_NS}/parent", parent.put_under, "Put a namespace under a team or an organisation", wire.Budget,
          PlaceBody, headers=_ONCE, problems=(404, 409)),
    Route("PUT", f"{_NS}/object", budget_object.put, "Let an object of the cluster define a budget", wire.Budget,
          ObjectBody, problems=(404, 409, 412), internal=True),
    Route("DELETE", f"{_NS}/object", budget_object.deleted, "Note that the object was deleted", wire.Budget,
          query=(*_UID, "object"), problems=(404,), internal=True),
    Route("GET", "/api/v1/parents", parent.listed, "Teams and organisations, page by page", wire.ParentList,
          query=_PAGE),
    Route("GET", _PARENT, budget.shown, "One team or organisation", wire.Parent, status=(200, 304), headers=_IF_NONE,
          problems=(404,)),
    Route("PUT", _PARENT, parent.put, "Create a team or an organisation, or set its budget", wire.Parent,
          ParentBudgetBody, status=(200, 201), headers=_IF_SAME, problems=(409, 412)),
    Route("PATCH", _PARENT, parent.patch, "Change the given fields of its budget", wire.Parent, ParentPatch,
          headers=_IF_SAME, problems=(404, 409, 412)),
    Route("GET", f"{_PARENT}/children", parent.children, "The budgets directly under it", wire.ChildList,
          problems=(404,)),
    Route("PUT", f"{_PARENT}/parent", parent.put_under, "Put a team under another one or an organisation",
          wire.Parent, PlaceBody, headers=_ONCE, problems=(404, 409)),
    Route("PUT", f"{_PARENT}/object", budget_object.put_parent, "Let an object of the cluster define it", wire.Parent,
          ParentObjectBody, problems=(404, 409, 412), internal=True),
    Route("DELETE", f"{_PARENT}/object", budget_object.deleted, "Note that the object was deleted", wire.Parent,
          query=("object",), problems=(404,), internal=True),
    Route("PUT", f"{_PARENT}/status", budget.status, "Suspend its budget, close it, or reactivate it", wire.Parent,
          StatusBody, headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_PARENT}/grants", movement.grants, "Grants to it, newest first", wire.GrantList, query=_PAGE,
          problems=(404,)),
    Route("POST", f"{_PARENT}/grants", movement.grant, "Book a grant for all under it", wire.Parent, GrantBody,
          status=(200, 201), headers=_ONCE, problems=(404, 409)),
    Route("DELETE", f"{_PARENT}/grants/{{grant}}", movement.withdraw, "Withdraw a grant that has not begun",
          wire.Grant, query=("reason",), headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_PARENT}/adjustments", movement.adjustments, "Adjustments of it, newest first",
          MovementList, query=_PAGE, problems=(404,)),
    Route("POST", f"{_PARENT}/adjustments", movement.adjust, "Adjust its GPU time by hand", wire.Parent,
          AdjustmentBody, status=(200, 201), headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_PARENT}/transfers", movement.transfers, "Transfers in and out of it, newest first",
          MovementList, query=_PAGE, problems=(404,)),
    Route("POST", f"{_PARENT}/transfers", movement.transfer, "Move its GPU time into another budget", wire.Parent,
          TransferBody, status=(200, 201), headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_PARENT}/entries", entry.listed, "Its ledger entries, in the order of booking",
          EntryList, query=_PAGE, problems=(404,)),
    Route("GET", f"{_PARENT}/periods", period.periods, "Its periods, newest first", PeriodList,
          query=_PAGE, problems=(404,)),
    Route("PUT", f"{_PARENT}/seal", period.seal, "Seal completed periods of it before their grace ends",
          PeriodList, SealBody, headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_PARENT}/statement", statement.statement, "What is booked for it in a period or any interval",
          wire.Statement, query=("from", "to", "format", *_PAGE), problems=(404,)),
    Route("GET", "/api/v1/rates", rate.listed, "Rates of GPU models, in the order they were set", GpuRateList,
          query=("model", *_PAGE)),
    Route("POST", "/api/v1/rates", rate.put, "Set a GPU model's rate from an instant on", GpuRate,
          RateBody, status=(200, 201), headers=_ONCE, problems=(409,)),
    Route("GET", "/api/v1/audit", audit.listed, "Who did what and why, in order", AuditList,
          query=("namespace", *_UID, "parent", *_PAGE), problems=(404,)),
    Route("GET", f"{_NS}/entries", entry.listed, "Ledger entries, in the order of booking", EntryList,
          query=(*_UID, *_PAGE), problems=(404,)),
    Route("GET", f"{_NS}/periods", period.periods, "Periods, newest first", PeriodList,
          query=(*_UID, *_PAGE), problems=(404,)),
    Route("PUT", f"{_NS}/seal", period.seal, "Seal completed periods before their grace ends", PeriodList,
          SealBody, query=_UID, headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_NS}/statement", statement.statement, "What is booked in a period or any interval",
          wire.Statement, query=(*_UID, "from", "to", "format", *_PAGE), problems=(404,)),
    Route("POST", "/api/v1/reports", usage_report.taken, "One pod's usage counters",
          wire.ReportAnswer, wire.ReportBatch, internal=True),
    Route("GET", "/api/v1/workloads", workload.listed, "Pods that the ledger knows, newest first",
          wire.WorkloadList, query=("namespace", *_UID, "state", *_PAGE), problems=(404,)),
    Route("GET", "/api/v1/usage", usage.listed, "GPU time held, used and not observed, by time", UsageList,
          query=("namespace", *_UID, "podUid", "model", "groupBy", "bucket", "timeZone", "from", "to", *_PAGE),
          problems=(404,)),
    Route("GET", "/api/v1/usage/{namespace}", usage.of_namespace, "Charges and usage of this period", Usage,
          problems=(404,)),
    Route("GET", "/api/v1/openapi.json", openapi.shown, "This document", public=True),
    Route("GET", "/budget/{namespace}", legacy_routes.shown, "Budget in GPU-minutes (legacy route)",
          LegacyBudget),
    Route("POST", "/budget/{namespace}/report", legacy_routes.report, "Sign of life (legacy route)",
          Terminate, SignOfLife, problems=(404,)),
    Route("POST", "/budget/{namespace}/increase", legacy_routes.increase, "Grant minutes (legacy route)",
          LegacyBudget, IncreaseBody, headers=_ONCE, problems=(404, 409)),
    Route("GET", f"/apis/{names.API}", discovery.shown, "Discovery for the API server", ResourceList,
          public=True),
    Route("GET", "/openapi/v2", discovery.shown, "An empty document for the API server", public=True),
    Route("GET", "/openapi/v3", discovery.shown, "An empty document for the API server", public=True),
    Route("GET", "/healthz", health.live, "Liveness probe", Health, problems=(503,),
          public=True),
    Route("GET", "/readyz", health.ready, "Readiness probe", Health, problems=(503,),
          public=True),
)  # fmt: skip
