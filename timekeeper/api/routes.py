# SPDX-License-Identifier: Apache-2.0
"""All routes, in one table. The OpenAPI document is made of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import msgspec
from flask import Response

from slicekeeper.wire import timekeeper as wire
from timekeeper.api import openapi_answer, schemas
from timekeeper.api.handlers import (
    budgets,
    decisions,
    health,
    intervals,
    movements,
    original,
    parents,
    rates,
    reports,
    reservations,
    statements,
    usage,
    workloads,
)

Kind = type[msgspec.Struct]


@dataclass(frozen=True)
class Route:
    """One method of one path; `problems` are the statuses that it may answer beside those all may."""

    method: str
    path: str
    handler: Callable[..., Response]
    summary: str
    answer: Kind | None = None
    body: Kind | None = None
    status: tuple[int, ...] = (200,)
    query: tuple[str, ...] = ()
    headers: tuple[str, ...] = ()
    problems: tuple[int, ...] = ()
    public: bool = False


_NS = "/api/v1/budgets/{namespace}"
_PARENT = "/api/v1/parents/{parent}"
_PAGE = ("cursor", "limit")
_UID = ("uid",)
"""Which of several namespaces that had the name, one after the other."""
_IF_NONE = ("If-None-Match",)
_ONCE = ("Idempotency-Key",)

ROUTES: tuple[Route, ...] = (
    Route("GET", "/api/v1/decisions", decisions.listed, "All namespaces' decisions", wire.DecisionList,
          status=(200, 304), headers=_IF_NONE),
    Route("GET", "/api/v1/decisions/{namespace}", decisions.shown, "One namespace's decision", wire.Decision,
          status=(200, 304), headers=_IF_NONE, problems=(404,)),
    Route("GET", "/api/v1/budgets", budgets.listed, "Budgets, page by page", wire.BudgetList, query=_PAGE),
    Route("GET", _NS, budgets.shown, "One budget as it stands", wire.Budget, status=(200, 304), headers=_IF_NONE,
          query=_UID, problems=(404,)),
    Route("PUT", _NS, budgets.put, "Give a namespace a budget of its own", wire.Budget, schemas.BudgetBody,
          headers=("If-Match",), problems=(404, 409, 412)),
    Route("PATCH", _NS, budgets.patch, "Change what is named of a namespace's budget", wire.Budget,
          schemas.BudgetPatch, headers=("If-Match",), problems=(404, 409, 412)),
    Route("GET", f"{_NS}/grants", movements.grants, "Grants, newest first", wire.GrantList, query=(*_UID, *_PAGE),
          problems=(404,)),
    Route("POST", f"{_NS}/grants", movements.grant, "Book a grant", wire.Budget, schemas.GrantBody, status=(200, 201),
          headers=_ONCE, problems=(404, 409)),
    Route("DELETE", f"{_NS}/grants/{{grant}}", movements.withdraw, "Withdraw a grant that has not begun", wire.Grant,
          query=(*_UID, "reason"), problems=(404, 409)),
    Route("GET", f"{_NS}/refunds", movements.refunds, "Refunds, newest first", schemas.MovementList,
          query=(*_UID, *_PAGE), problems=(404,)),
    Route("POST", f"{_NS}/refunds", movements.refund, "Give back what an ended pod was charged", wire.Budget,
          schemas.RefundBody, status=(200, 201), headers=_ONCE, query=_UID, problems=(404, 409)),
    Route("GET", f"{_NS}/intervals", intervals.listed, "Pods' corrected intervals, newest first",
          wire.IntervalCorrectionList, query=(*_UID, *_PAGE), problems=(404,)),
    Route("POST", f"{_NS}/intervals", intervals.correct, "Put a pod's interval right", wire.Budget,
          schemas.IntervalBody, status=(200, 201), headers=_ONCE, query=_UID, problems=(404, 409)),
    Route("GET", f"{_NS}/adjustments", movements.adjustments, "Adjustments, newest first", schemas.MovementList,
          query=(*_UID, *_PAGE), problems=(404,)),
    Route("POST", f"{_NS}/adjustments", movements.adjust, "Put GPU time right by hand", wire.Budget,
          schemas.AdjustmentBody, status=(200, 201), headers=_ONCE, query=_UID, problems=(404, 409)),
    Route("GET", f"{_NS}/transfers", movements.transfers, "Transfers in and out, newest first", schemas.MovementList,
          query=(*_UID, *_PAGE), problems=(404,)),
    Route("POST", f"{_NS}/transfers", movements.transfer, "Move GPU time into another namespace's budget", wire.Budget,
          schemas.TransferBody, status=(200, 201), headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_NS}/reservations", reservations.listed, "GPU time set aside, newest first",
          wire.ReservationList, query=_PAGE),
    Route("POST", f"{_NS}/reservations", reservations.opened, "Set GPU time aside", wire.Reservation,
          schemas.ReservationBody, status=(200, 201), headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_NS}/reservations/{{reservation}}", reservations.shown, "One reservation", wire.Reservation,
          problems=(404,)),
    Route("DELETE", f"{_NS}/reservations/{{reservation}}", reservations.released, "Give it back", wire.Reservation,
          problems=(404, 409)),
    Route("PUT", f"{_NS}/status", budgets.status, "Suspend a budget, close it, or have it go on", wire.Budget,
          schemas.StatusBody, problems=(404, 409)),
    Route("PUT", f"{_NS}/parent", parents.put_under, "Put a namespace under a team or an organisation", wire.Budget,
          schemas.PlaceBody, problems=(404, 409)),
    Route("GET", "/api/v1/parents", parents.listed, "Teams and organisations, page by page", wire.ParentList,
          query=_PAGE),
    Route("GET", _PARENT, budgets.shown, "One team or organisation", wire.Parent, status=(200, 304), headers=_IF_NONE,
          problems=(404,)),
    Route("PUT", _PARENT, parents.put, "Make a team or an organisation, or give it another budget", wire.Parent,
          schemas.ParentBudgetBody, status=(200, 201), headers=("If-Match",), problems=(409, 412)),
    Route("PATCH", _PARENT, parents.patch, "Change what is named of its budget", wire.Parent, schemas.ParentPatch,
          headers=("If-Match",), problems=(404, 409, 412)),
    Route("GET", f"{_PARENT}/children", parents.children, "What stands directly under it", wire.ChildList,
          problems=(404,)),
    Route("PUT", f"{_PARENT}/parent", parents.put_under, "Put a team under another one or an organisation",
          wire.Parent, schemas.PlaceBody, problems=(404, 409)),
    Route("PUT", f"{_PARENT}/status", budgets.status, "Suspend its budget, close it, or have it go on", wire.Parent,
          schemas.StatusBody, problems=(404, 409)),
    Route("GET", f"{_PARENT}/grants", movements.grants, "Grants to it, newest first", wire.GrantList, query=_PAGE,
          problems=(404,)),
    Route("POST", f"{_PARENT}/grants", movements.grant, "Book a grant for all under it", wire.Parent, schemas.GrantBody,
          status=(200, 201), headers=_ONCE, problems=(404, 409)),
    Route("DELETE", f"{_PARENT}/grants/{{grant}}", movements.withdraw, "Withdraw a grant that has not begun",
          wire.Grant, query=("reason",), problems=(404, 409)),
    Route("GET", f"{_PARENT}/adjustments", movements.adjustments, "Adjustments of it, newest first",
          schemas.MovementList, query=_PAGE, problems=(404,)),
    Route("POST", f"{_PARENT}/adjustments", movements.adjust, "Put its GPU time right by hand", wire.Parent,
          schemas.AdjustmentBody, status=(200, 201), headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_PARENT}/transfers", movements.transfers, "Transfers in and out of it, newest first",
          schemas.MovementList, query=_PAGE, problems=(404,)),
    Route("POST", f"{_PARENT}/transfers", movements.transfer, "Move its GPU time into another budget", wire.Parent,
          schemas.TransferBody, status=(200, 201), headers=_ONCE, problems=(404, 409)),
    Route("GET", f"{_PARENT}/entries", budgets.entries, "Its ledger entries, in the order of booking",
          schemas.EntryList, query=_PAGE, problems=(404,)),
    Route("GET", f"{_PARENT}/periods", statements.periods, "Its periods, newest first", schemas.PeriodList,
          query=_PAGE, problems=(404,)),
    Route("PUT", f"{_PARENT}/seal", statements.seal, "Seal its periods that are over before their grace is",
          schemas.PeriodList, schemas.SealBody, problems=(404, 409)),
    Route("GET", f"{_PARENT}/statement", statements.statement, "What is booked of it in a period or any interval",
          wire.Statement, query=("from", "to", "format", *_PAGE), problems=(404,)),
    Route("GET", "/api/v1/rates", rates.listed, "Prices of GPU models, in the order of setting", schemas.GpuRateList,
          query=("model", *_PAGE)),
    Route("POST", "/api/v1/rates", rates.put, "Set a GPU model's price from an instant on", schemas.GpuRate,
          schemas.RateBody, status=(200, 201), problems=(409,)),
    Route("GET", "/api/v1/audit", rates.audited, "Who did what and why, in order", schemas.AuditList,
          query=("namespace", *_UID, "parent", *_PAGE), problems=(404,)),
    Route("GET", f"{_NS}/entries", budgets.entries, "Ledger entries, in the order of booking", schemas.EntryList,
          query=(*_UID, *_PAGE), problems=(404,)),
    Route("GET", f"{_NS}/periods", statements.periods, "Periods, newest first", schemas.PeriodList,
          query=(*_UID, *_PAGE), problems=(404,)),
    Route("PUT", f"{_NS}/seal", statements.seal, "Seal periods that are over before their grace is", schemas.PeriodList,
          schemas.SealBody, query=_UID, problems=(404, 409)),
    Route("GET", f"{_NS}/statement", statements.statement, "What is booked in a period or any interval",
          wire.Statement, query=(*_UID, "from", "to", "format", *_PAGE), problems=(404,)),
    Route("POST", "/api/v1/reports", reports.taken, "One pod's usage counters", wire.ReportAnswer, wire.ReportBatch),
    Route("GET", "/api/v1/workloads", workloads.listed, "Pods as the ledger has them, newest first",
          wire.WorkloadList, query=("namespace", *_UID, *_PAGE), problems=(404,)),
    Route("GET", "/api/v1/usage", usage.listed, "GPU time held, used and not observed, by time", schemas.UsageList,
          query=("namespace", "podUid", "model", "groupBy", "bucket", "timeZone", "from", "to", *_PAGE)),
    Route("GET", "/api/v1/usage/{namespace}", workloads.usage, "Charges and usage of this period", schemas.Usage),
    Route("GET", "/api/v1/openapi.json", openapi_answer.shown, "This document", public=True),
    Route("GET", "/budget/{namespace}", original.shown, "Budget in GPU-minutes (the original's route)",
          schemas.OriginalBudget),
    Route("POST", "/budget/{namespace}/report", original.report, "Sign of life (the original's route)",
          schemas.Terminate, schemas.SignOfLife, problems=(404,)),
    Route("POST", "/budget/{namespace}/increase", original.increase, "Grant minutes (the original's route)",
          schemas.OriginalBudget, schemas.IncreaseBody, headers=("Idempotency-Key",), problems=(404, 409)),
    Route("GET", "/healthz", health.live, "Whether the server does its work", schemas.Health, problems=(503,),
          public=True),
    Route("GET", "/readyz", health.ready, "Whether the server may be asked", schemas.Health, problems=(503,),
          public=True),
)  # fmt: skip
