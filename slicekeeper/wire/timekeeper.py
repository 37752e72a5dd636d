# SPDX-License-Identifier: Apache-2.0
"""Requests and answers of the timekeeper's REST API under `/api/v1`.

GPU time is in whole GPU-milliseconds; instants are RFC 3339 with milliseconds, in UTC.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

_STATES: Final[dict[str, Any]] = {"enum": ["ok", "warning", "overdraft", "exhausted", "suspended", "closed"]}
_ENFORCEMENTS: Final[dict[str, Any]] = {"enum": ["soft", "hard", "safe"]}

# Parts of several releases work together during an upgrade: a peer must be able to decode a word that it does not know.
State = Annotated[str, Meta(extra_json_schema=_STATES)]
Enforcement = Annotated[str, Meta(extra_json_schema=_ENFORCEMENTS)]

SPENDABLE: Final = frozenset({"ok", "warning", "overdraft"})
"""The states in which something may be spent. In any other nothing may, also if a newer timekeeper named it."""


class Wire(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=False):
    """Base: camelCase names; unknown fields of a newer peer are ignored."""


class Decision(Wire, frozen=True, kw_only=True):
    """What a namespace may do now. Pods are over budget in any state but those of `SPENDABLE`."""

    namespace: str
    state: State
    balance_ms: int
    """GPU-milliseconds left of the tightest budget, the namespace's own or one above it."""
    used_ms: int
    """Charged to the budget in this period."""
    over_budget_ms: int = 0
    """Metered over budget in this period."""
    reserved_ms: int = 0
    """Part of the balance that is reserved, for pods or by hand."""
    enforcement: Enforcement = "soft"
    priority_class_name: str
    as_of: str
    since: str
    """When the state began: the balance reached zero, a grant was booked, or a period began."""
    stale_after: str
    run_out_at: str | None = None
    """When the balance reaches zero if the current pods continue to run."""
    reason: str = ""
    bound_by: str = ""
    """The team or organisation whose budget is the tightest; empty: it is the namespace's own."""

    @property
    def over_budget(self) -> bool:
        """Whether new pods get the lower class."""
        return self.state not in SPENDABLE


class ClusterGpus(Wire, frozen=True, kw_only=True):
    """The GPUs of the cluster that a request can get; empty until the nodes' agents have published some."""

    memory_mib: dict[str, int] = {}
    """By model: the memory of its largest GPU; if these are divided, of its largest MIG slice."""
    most_on_node: int = 0
    """The most whole GPUs on one node."""


NO_GPUS: Final = ClusterGpus()


class DecisionList(Wire, frozen=True, kw_only=True):
    """The decisions of all namespaces; a namespace that is not listed is in budget, with its policy's default."""

    items: list[Decision]
    as_of: str
    gpus: ClusterGpus = NO_GPUS


class UsageReport(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One container's cumulative counter. Lost, repeated and reordered reports do no harm."""

    namespace: str
    pod_name: str
    pod_uid: str
    container: str
    epoch: int
    """Identifies a run of the counter: one that starts again has a greater epoch. Usage is the sum of the newest value
    of each epoch."""
    seq: int
    """Counts up by one within an epoch, from 1."""
    used_ms: int | None
    """GPU-milliseconds used since the epoch began; None: unknown."""
    memory_mib: int | None = None
    """GPU memory in use when the counter was read; None: unknown."""
    monotonic_ns: int
    """The reporter's monotonic clock when the counter was read."""
    source: str = "unknown"
    """The source of `used_ms`: `simulator`, `node` or `unknown`."""
    final: bool = False
    """The reporter is stopping."""


class ReportBatch(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reports of one pod, oldest first."""

    reports: list[UsageReport]


class ReportOutcome(Wire, frozen=True, kw_only=True):
    """The fate of one report of a batch: `accepted`, `duplicate` (changes nothing) or `refused`."""

    outcome: Literal["accepted", "duplicate", "refused"]
    reason: str = ""
    """Stable code if refused, for example `counter-ran-backwards`."""


class ReportAnswer(Wire, frozen=True, kw_only=True):
    """The answer to a batch, in its order."""

    outcomes: list[ReportOutcome]
    terminate: bool = False
    """All other containers of the pod have ended, so the sidecar may leave."""


class KeptBy(Wire, frozen=True, kw_only=True):
    """The object of the cluster that defines a budget, and the newest generation of it that was applied."""

    uid: str
    generation: int


class Figures(Wire, frozen=True, kw_only=True):
    """The figures of the budget of a namespace, a team or an organisation."""

    amount_ms: int
    period: str
    time_zone: str
    balance_ms: int
    used_ms: int
    """Charged to it in this period, including all budgets below it."""
    over_budget_ms: int
    """Metered over budget in this period; of a parent: what its own budget could not cover."""
    granted_ms: int
    """Added to the amount in this period: grants, refunds, adjustments and transfers, and the rest of earlier ones."""
    withdrawn_ms: int = 0
    """Taken out in this period, by adjustments and by transfers to other budgets."""
    to_spend_ms: int = 0
    """What there is to spend in this period, used or not: `usedMs` plus `balanceMs`."""
    state: State
    period_start: str | None = None
    period_end: str | None = None
    run_out_at: str | None = None
    credit_ms: int = 0
    """How far the balance may go below zero."""
    rollover_ms: int = 0
    anchor: str | None = None
    """An instant at which a period begins, on the zone's wall clock; None: periods follow the calendar."""
    status: Literal["active", "suspended", "closed"] = "active"
    reserved_ms: int = 0
    """Part of the balance that is reserved, for pods or by hand; of a parent: including all budgets below it."""
    parent: str | None = None
    """The team or organisation directly above it."""
    bound_by: str = ""
    """The team or organisation above whose budget is the tightest; empty: it is its own."""
    kept_by: KeptBy | None = None
    """None: it is defined by requests or by the policy."""
    object_version: str = ""
    """Changes whenever a generation or the deletion of an object was applied; empty before the first."""


class Budget(Figures, frozen=True, kw_only=True):
    """A namespace's current budget."""

    namespace: str
    uid: str = ""
    """UID of the namespace: if a name is used again, each namespace has its own account."""
    gone: bool = False
    """Whether the namespace was deleted. Its account remains."""
    source: Literal["policy", "own"] = "policy"
    enforcement: Enforcement = "soft"


class BudgetList(Wire, frozen=True, kw_only=True):
    """A page of budgets."""

    items: list[Budget]
    next_cursor: str | None = None


class Parent(Figures, frozen=True, kw_only=True):
    """The current budget of a team or an organisation; charges to the budgets below it are charged to it too."""

    name: str
    kind: Literal["team", "organisation"]


class ParentList(Wire, frozen=True, kw_only=True):
    """A page of teams and organisations."""

    items: list[Parent]
    next_cursor: str | None = None


class Child(Wire, frozen=True, kw_only=True):
    """A budget directly under another one."""

    name: str
    kind: str
    """`namespace`, `team` or `organisation`."""
    state: State
    balance_ms: int
    """Left of its own budget."""
    consumed_ms: int
    """What it was charged to the budget above, in that budget's period."""


class ChildList(Wire, frozen=True, kw_only=True):
    """All budgets directly below a budget, sorted by name."""

    items: list[Child]
    as_of: str


class Grant(Wire, frozen=True, kw_only=True):
    """A grant as it was booked."""

    id: int
    amount_ms: int
    reason: str
    valid_from: str
    valid_to: str | None
    actor: str
    booked_at: str
    priority: int = 0
    withdrawn_at: str | None = None
    """When it was withdrawn, before it began: it has no effect."""


class GrantList(Wire, frozen=True, kw_only=True):
    """A page of grants, newest first."""

    items: list[Grant]
    next_cursor: str | None = None


class Reservation(Wire, frozen=True, kw_only=True):
    """Reserved GPU time: for a pod until it ends, or by hand until `expiresAt`."""

    id: int
    state: Literal["open", "settled", "released", "expired"]
    """Settled: the pod has ended; released: ended by hand; expired: its time is over, or the pod never ran."""
    amount_ms: int
    held_ms: int
    """What is left of it: the amount less what the pod has been charged."""
    pod_uid: str | None
    pod_name: str
    reason: str
    actor: str
    opened_at: str
    expires_at: str | None
    ended_at: str | None


class ReservationList(Wire, frozen=True, kw_only=True):
    """A page of reservations, newest first."""

    items: list[Reservation]
    next_cursor: str | None = None


class Workload(Wire, frozen=True, kw_only=True):
    """One pod, as recorded in the ledger."""

    namespace: str
    pod_name: str
    pod_uid: str
    node: str
    gpus: list[str]
    gpu_class: str
    state: Literal["running", "closed"]
    budget_state: Literal["in-budget", "over-budget"]
    start: str
    end: str | None
    charged_ms: int
    """Charged to the budget; of a running pod: up to `as_of`."""
    over_budget_ms: int
    used_ms: int | None
    """Reported; None: unknown."""
    peak_memory_mib: int | None = None
    """The most GPU memory reported, added up over the pod's containers; None: unknown."""
    flags: list[str] = []


class WorkloadList(Wire, frozen=True, kw_only=True):
    """A page of workloads."""

    items: list[Workload]
    as_of: str
    next_cursor: str | None = None


class StatementTotal(Wire, frozen=True, kw_only=True):
    """All bookings of one kind, less their reversals."""

    kind: str
    correction: bool
    """Whether they correct sealed periods."""
    count: int
    amount_ms: int
    balance_ms: int
    """By how much they changed the balance."""


class StatementPod(Wire, frozen=True, kw_only=True):
    """What one pod was charged."""

    pod_uid: str
    pod_name: str
    charged_ms: int
    over_budget_ms: int
    corrections_ms: int
    """The part of both that corrects sealed periods."""
    interval_corrected: bool = False
    """Whether its interval was corrected by hand."""


class IntervalCorrection(Wire, frozen=True, kw_only=True):
    """A pod's corrected interval, and the interval before; `end` None: the pod was running."""

    id: int
    pod_uid: str
    start: str
    end: str | None
    start_before: str
    end_before: str | None
    reason: str
    actor: str
    booked_at: str


class IntervalCorrectionList(Wire, frozen=True, kw_only=True):
    """A page of corrected intervals, newest first."""

    items: list[IntervalCorrection]
    next_cursor: str | None = None


class StatementChild(Wire, frozen=True, kw_only=True):
    """What a budget directly below a team or an organisation was charged to it."""

    name: str
    kind: str
    """`namespace`, `team` or `organisation`."""
    charged_ms: int
    over_budget_ms: int
    corrections_ms: int
    """The part of both that corrects sealed periods."""


class Statement(Wire, frozen=True, kw_only=True):
    """What is booked in a half-open interval: opening balance plus totals is the closing balance.

    These cover the whole interval, so only the first page has them.
    """

    namespace: str | None
    parent: str | None
    """The team or organisation that the statement is about."""
    start: str
    end: str
    opening_ms: int | None
    closing_ms: int | None
    totals: list[StatementTotal]
    workloads: list[StatementPod]
    """A page of them, sorted by UID."""
    children: list[StatementChild]
    """A page of them; only a parent's statement has them, and it has no workloads."""
    next_cursor: str | None = None
