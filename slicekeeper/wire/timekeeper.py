# SPDX-License-Identifier: Apache-2.0
"""What goes over the wire to and from the timekeeper under `/api/v1`.

All GPU time is integer GPU-milliseconds, all instants RFC 3339 with milliseconds, UTC.
"""

from __future__ import annotations

from typing import Literal

import msgspec

State = Literal["ok", "warning", "overdraft", "exhausted", "suspended"]


class Wire(msgspec.Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=False):
    """Base: camelCase names; unknown fields of a newer peer are passed over."""


class Decision(Wire, frozen=True, kw_only=True):
    """What a namespace may do now. Pods of a namespace in `exhausted` or `suspended` are over budget."""

    namespace: str
    state: State
    balance_ms: int
    """GPU-milliseconds left of the budget that binds, the namespace's own or one above it."""
    used_ms: int
    """Charged to the budget in this period."""
    over_budget_ms: int = 0
    """Metered over budget in this period."""
    reserved_ms: int = 0
    """Set aside of the balance for pods that are to finish, and by hand."""
    enforcement: Literal["soft", "hard", "safe"] = "soft"
    priority_class_name: str
    as_of: str
    since: str
    """When the state was last entered: the zero-crossing, the grant, the period's begin."""
    stale_after: str
    run_out_at: str | None = None
    """When the balance reaches zero if the pods that run now go on."""
    reason: str = ""
    bound_by: str = ""
    """The team or organisation whose budget binds; empty: the namespace's own does."""

    @property
    def over_budget(self) -> bool:
        """Whether new pods get the lower class."""
        return self.state in ("exhausted", "suspended")


class DecisionList(Wire, frozen=True, kw_only=True):
    """All namespaces' decisions; a namespace that is not in it is in budget with its policy's default."""

    items: list[Decision]
    as_of: str


class UsageReport(Wire, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One container's cumulative counter. Loss, repeat and reorder of reports change nothing."""

    namespace: str
    pod_name: str
    pod_uid: str
    container: str
    epoch: int
    """Life of the counter: one that starts again has a greater epoch. Usage is the sum of the epochs' newest values."""
    seq: int
    """Counts up by one within an epoch, from 1."""
    used_ms: int | None
    """GPU-milliseconds used since the epoch began; None: unknown."""
    memory_mib: int | None = None
    """GPU memory in use when the counter was read; None: unknown."""
    monotonic_ns: int
    """The reporter's monotonic clock when the counter was read."""
    source: str = "unknown"
    """Where `used_ms` comes from: `simulator`, `node`, `unknown`."""
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
    """The object of the cluster that says what a budget is, and its newest generation that was taken."""

    uid: str
    generation: int


class Figures(Wire, frozen=True, kw_only=True):
    """The figures of a budget, of a namespace, a team or an organisation."""

    amount_ms: int
    period: str
    time_zone: str
    balance_ms: int
    used_ms: int
    """Charged to it in this period, in all budgets under it."""
    over_budget_ms: int
    """Metered over budget in this period; a parent's: what its own budget had no room for."""
    granted_ms: int
    """Grants that began in this period, beside the amount."""
    state: State
    period_start: str | None = None
    period_end: str | None = None
    run_out_at: str | None = None
    credit_ms: int = 0
    """How far the balance may go below zero."""
    rollover_ms: int = 0
    anchor: str | None = None
    """An instant at which a period begins, on the zone's wall clock; None: they begin as the calendar does."""
    status: Literal["active", "suspended", "closed"] = "active"
    reserved_ms: int = 0
    """Set aside of the balance for pods that are to finish, and by hand; a parent's: in all budgets under it."""
    parent: str | None = None
    """The team or organisation that it is under."""
    bound_by: str = ""
    """The team or organisation above whose budget binds; empty: its own does."""
    kept_by: KeptBy | None = None
    """None: requests say what it is, or the policy."""
    object_version: str = ""
    """Another one whenever a state of an object was taken, or an object's deletion; empty until the first."""


class Budget(Figures, frozen=True, kw_only=True):
    """A namespace's current budget."""

    namespace: str
    uid: str = ""
    """The namespace's: a name that is used again has an account for each."""
    gone: bool = False
    """Whether the namespace was deleted. Its account stays."""
    source: Literal["policy", "own"] = "policy"
    enforcement: Literal["soft", "hard", "safe"] = "soft"


class BudgetList(Wire, frozen=True, kw_only=True):
    """A page of budgets."""

    items: list[Budget]
    next_cursor: str | None = None


class Parent(Figures, frozen=True, kw_only=True):
    """A team's or an organisation's current budget; what the budgets under it are charged is taken from it too."""

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
    """What it was charged to the budget above in that budget's period."""


class ChildList(Wire, frozen=True, kw_only=True):
    """All budgets directly under a budget, in the order of names."""

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
    """When it was withdrawn before it began: it never brings anything."""


class GrantList(Wire, frozen=True, kw_only=True):
    """A page of grants, newest first."""

    items: list[Grant]
    next_cursor: str | None = None


class Reservation(Wire, frozen=True, kw_only=True):
    """GPU time that is set aside, for a pod until it ends or by hand until `expiresAt`."""

    id: int
    state: Literal["open", "settled", "released", "expired"]
    """Settled: the pod has ended; released: by hand; expired: its time is over, or the pod never ran."""
    amount_ms: int
    held_ms: int
    """What is left of it now: less what the pod has been charged."""
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
    """One pod as the ledger has it."""

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
    """To the budget; for a running pod: up to `as_of`."""
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
    """All bookings of one kind, reversals taken off."""

    kind: str
    correction: bool
    """Whether they correct sealed periods."""
    count: int
    amount_ms: int
    balance_ms: int
    """By how much they moved the balance."""


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
    """A pod's interval as it was corrected, and as it was before; `end` None: the pod ran then."""

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
    """What is booked in a half-open interval: opening balance, totals and closing balance add up.

    They sum the whole interval, so only the first page has them.
    """

    namespace: str | None
    parent: str | None
    """The team or organisation whose statement it is."""
    start: str
    end: str
    opening_ms: int | None
    closing_ms: int | None
    totals: list[StatementTotal]
    workloads: list[StatementPod]
    """A page of them, in the order of their UIDs."""
    children: list[StatementChild]
    """A parent's statement has these and no workloads: a page of them."""
    next_cursor: str | None = None
