# SPDX-License-Identifier: Apache-2.0
"""Bodies that are taken and answers that are given, beside the types that other parts share (`slicekeeper.wire`).

Unknown fields of a body are refused. The OpenAPI document is made of these types, so the two cannot differ.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from slicekeeper.namespace_policy import MAX_AMOUNT_MS
from slicekeeper.wire.timekeeper import Wire

Amount = Annotated[int, Meta(ge=1, le=MAX_AMOUNT_MS, description="GPU-milliseconds.")]
Reason = Annotated[str, Meta(min_length=1, max_length=1024, pattern=r"\S", description="Why; kept for auditors.")]
Instant = Annotated[str, Meta(max_length=40, description="RFC 3339 with a zone.")]


class Body(msgspec.Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Base of bodies."""


class BudgetBody(Body, frozen=True, kw_only=True):
    """A namespace's own budget."""

    amount_ms: Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MS, description="GPU-milliseconds per period.")]
    period: Literal["none", "hour", "day", "week", "month", "year"]
    time_zone: Annotated[str, Meta(min_length=1, max_length=64, description="IANA name.")] = "UTC"
    credit_ms: Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MS, description="How far the balance may go below zero.")] = 0
    rollover_ms: Annotated[
        int, Meta(ge=0, le=MAX_AMOUNT_MS, description="The most that a period leaves to the next one.")
    ] = 0
    anchor: Instant | None = None
    """An instant at which a period begins, on the zone's wall clock; without it they begin as the calendar does."""
    new_period: bool = False
    """A period begins now: what the running one has used does not count against the new amount."""


class BudgetPatch(Body, frozen=True, kw_only=True):
    """What of a budget is to be another; what is not named stays as it is."""

    amount_ms: Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MS, description="GPU-milliseconds per period.")] | UnsetType = (
        UNSET
    )
    period: Literal["none", "hour", "day", "week", "month", "year"] | UnsetType = UNSET
    time_zone: Annotated[str, Meta(min_length=1, max_length=64, description="IANA name.")] | UnsetType = UNSET
    credit_ms: (
        Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MS, description="How far the balance may go below zero.")] | UnsetType
    ) = UNSET
    rollover_ms: (
        Annotated[int, Meta(ge=0, le=MAX_AMOUNT_MS, description="The most that a period leaves to the next one.")]
        | UnsetType
    ) = UNSET
    anchor: Instant | UnsetType | None = UNSET
    """An instant at which a period begins, on the zone's wall clock; null: they begin as the calendar does."""
    new_period: bool = False
    """A period begins now: what the running one has used does not count against the new amount."""


class ParentPatch(BudgetPatch, frozen=True, kw_only=True):
    """What of a team's or an organisation's budget is to be another; `kind` is refused where it is another."""

    kind: Literal["team", "organisation"] | UnsetType = UNSET


class GrantBody(Body, frozen=True, kw_only=True):
    """GPU time beside the budget; without `validFrom` from now on, without `validTo` until it is used up."""

    amount_ms: Amount
    reason: Reason
    valid_from: Instant | None = None
    valid_to: Instant | None = None
    priority: Annotated[int, Meta(ge=-100, le=100, description="Low is used first; the budget itself has 0.")] = 0


class RefundBody(Body, frozen=True, kw_only=True):
    """What an ended pod gets back of its charge."""

    pod_uid: Annotated[str, Meta(min_length=1, max_length=64)]
    amount_ms: Amount
    reason: Reason


class IntervalBody(Body, frozen=True, kw_only=True):
    """How a pod's interval should be: another start, another end, or both."""

    pod_uid: Annotated[str, Meta(min_length=1, max_length=64)]
    reason: Reason
    start: Instant | None = None
    end: Instant | None = None


class AdjustmentBody(Body, frozen=True, kw_only=True):
    """GPU time put right by hand; a negative amount takes it away."""

    amount_ms: Annotated[int, Meta(ge=-MAX_AMOUNT_MS, le=MAX_AMOUNT_MS, description="GPU-milliseconds, not 0.")]
    reason: Reason


class TransferBody(Body, frozen=True, kw_only=True):
    """GPU time for another budget; without `validTo` until it is used up there."""

    to: Annotated[str, Meta(min_length=1, max_length=63, description="The name of the budget that gets it.")]
    to_kind: Literal["namespace", "parent"] | None = None
    """Whose name `to` is; without it of one like the giver."""
    amount_ms: Amount
    reason: Reason
    valid_to: Instant | None = None


class ParentBudgetBody(BudgetBody, frozen=True, kw_only=True):
    """A team or an organisation and its budget."""

    kind: Literal["team", "organisation"]


class PlaceBody(Body, frozen=True, kw_only=True):
    """Under whom a budget stands from now on; null: under nobody."""

    parent: Annotated[str, Meta(min_length=1, max_length=63)] | None
    reason: Reason


class StatusBody(Body, frozen=True, kw_only=True):
    """Whether a budget may be spent; `closed` is for good."""

    status: Literal["active", "suspended", "closed"]
    reason: Reason


class ReservationBody(Body, frozen=True, kw_only=True):
    """GPU time to be set aside until an instant."""

    amount_ms: Amount
    reason: Reason
    expires_at: Instant


class RateBody(Body, frozen=True, kw_only=True):
    """A GPU model's price; without `effectiveAt` from now on."""

    model: Annotated[str, Meta(min_length=1, max_length=253, pattern=r"\S")]
    rate: Annotated[str, Meta(min_length=1, max_length=32, description="An integer or a ratio such as 3/2.")]
    reason: Reason
    effective_at: Instant | None = None


class IncreaseBody(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The original service's increase, with what it lacked: how much, and why."""

    minutes: Annotated[int, Meta(ge=1, le=MAX_AMOUNT_MS // 60_000)]
    reason: Reason


class SignOfLife(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The original sidecar's report: it says that the pod is alive, and charges nothing."""

    pod_name: Annotated[str, Meta(min_length=1, max_length=253)]
    usage_factor: Annotated[float, Meta(ge=0)] = 0.0


class OriginalBudget(msgspec.Struct, frozen=True):
    """The original service's budget, in GPU-minutes."""

    budget_available: bool
    budget: float
    budget_remaining: float


class Terminate(msgspec.Struct, frozen=True):
    """The original service's answer to a report."""

    terminate: bool


class Movement(Wire, frozen=True, kw_only=True):
    """A refund, an adjustment or one side of a transfer, as it was booked. A negative amount went."""

    id: int
    amount_ms: int
    reason: str
    counterpart: str
    """The pod's UID of a refund, the other side of a transfer: a namespace's name, or `team x`, `organisation x`."""
    valid_to: str | None
    actor: str
    booked_at: str


class MovementList(Wire, frozen=True, kw_only=True):
    """A page of movements, newest first."""

    items: list[Movement]
    next_cursor: str | None = None


class GpuRate(Wire, frozen=True, kw_only=True):
    """A GPU model's price from an instant on."""

    id: int
    model: str
    rate: str
    effective_at: str
    source: str


class GpuRateList(Wire, frozen=True, kw_only=True):
    """A page of prices, in the order in which they were set."""

    items: list[GpuRate]
    next_cursor: str | None = None


class AuditEntry(Wire, frozen=True, kw_only=True):
    """What somebody did. `hash` covers all of it and the hash before."""

    id: int
    at: str
    actor: str
    action: str
    namespace: str
    detail: dict[str, str | int]
    prev_hash: str
    hash: str


class AuditList(Wire, frozen=True, kw_only=True):
    """A page of the audit log, in its order."""

    items: list[AuditEntry]
    next_cursor: str | None = None


class LedgerEntry(Wire, frozen=True, kw_only=True):
    """One side of a transaction. Charges cover [`start`, `effectiveAt`)."""

    id: int
    transaction: int
    kind: str
    account: str
    amount_ms: int
    subject: str
    """The pod's UID of a charge, else the allowance; of a parent's charge whose it is: `namespace:x`, `team:x`."""
    start: str
    effective_at: str
    booked_at: str
    reverses: int | None
    corrects_at: str | None
    """Of a correction: the instant in a sealed period at which it would have been effective."""


class EntryList(Wire, frozen=True, kw_only=True):
    """A page of ledger entries, in the order of booking."""

    items: list[LedgerEntry]
    next_cursor: str | None = None


class Usage(Wire, frozen=True, kw_only=True):
    """What a namespace was charged and what its pods used, over the current period."""

    namespace: str
    period_start: str | None
    charged_ms: int
    over_budget_ms: int
    workloads: int
    """Pods that held GPUs in the period."""
    used_ms: int | None
    """Reported by those pods over their whole life; None: nothing is known."""
    unknown_workloads: int
    """Pods of which nothing is known."""
    as_of: str


class SealBody(Body, frozen=True, kw_only=True):
    """Up to where periods are to be sealed: the end of one that is over."""

    until: Instant
    reason: Reason


class Period(Wire, frozen=True, kw_only=True):
    """An accounting period, and what is booked in it."""

    start: str
    end: str
    state: Literal["open", "grace", "sealed"]
    granted_ms: int
    """All that came to the budget, less what was taken out of it by hand."""
    charged_ms: int
    over_budget_ms: int
    expired_ms: int
    rolled_over_ms: int
    """The part of `grantedMs` that the period before left."""
    corrections: int
    """Bookings among these that tell of sealed periods."""


class PeriodList(Wire, frozen=True, kw_only=True):
    """A page of periods, newest first."""

    items: list[Period]
    sealed_until: str | None
    """Nothing that is effective up to here is booked or reversed any more; None: nothing is sealed."""
    next_cursor: str | None = None


class UsageBucket(Wire, frozen=True, kw_only=True):
    """What one group of pods held and used in one interval, in GPU-milliseconds before prices."""

    start: str
    end: str
    group: str
    """The namespace, the pod's UID, or the GPU model (empty: not known), as was asked for."""
    workloads: int
    unknown_workloads: int
    """Pods of which nobody told what they used."""
    allocated_ms: int
    """GPU time held, used or not."""
    used_ms: int | None
    """Reported by the pods; None: nothing is known."""
    unobserved_ms: int
    """The part of `allocatedMs` of which no report tells."""


class UsageList(Wire, frozen=True, kw_only=True):
    """A page of usage, by interval and group; an interval in which nobody held a GPU is left out."""

    group_by: Literal["namespace", "workload", "model"]
    items: list[UsageBucket]
    as_of: str
    next_cursor: str | None = None


class Health(msgspec.Struct, frozen=True):
    """Whether the server is well."""

    status: Literal["ok", "failing"]
    reason: str = ""
