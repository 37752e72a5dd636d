# SPDX-License-Identifier: Apache-2.0
"""The tables. Records and ledger entries are append-only; balances, checkpoints and versions can be rebuilt from them.

A namespace is identified by (cluster, namespace UID): a name that is used again starts afresh. All instants are
milliseconds since the epoch, all GPU time is GPU-milliseconds, both as 64-bit integers. Types are portable.
"""

from __future__ import annotations

from fractions import Fraction

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Text,
    UniqueConstraint,
    text,
)
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from slicekeeper.units import GpuMilliseconds, Instant
from timekeeper.core.account import AccountId, Revision
from timekeeper.core.posting import ACCOUNTS

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
    "pk": "pk_%(table_name)s",
}

# SQLite counts up only a column that is exactly INTEGER.
Id = BigInteger().with_variant(Integer, "sqlite")
_KINDS = ", ".join(f"'{kind}'" for kind in ACCOUNTS)


class Base(DeclarativeBase):
    """Base of all tables."""

    metadata = MetaData(naming_convention=NAMING)
    type_annotation_map = dict.fromkeys((int, Instant, GpuMilliseconds, AccountId, Revision), BigInteger)


class Namespace(Base):
    """A namespace of a cluster, a team or an organisation: what has accounts.

    Budgets that are above each other are settled together. The row at the top has the instant up to which they are
    settled, and its `version` grows with each change, so that other processes know that their copies are outdated.
    """

    __tablename__ = "namespace"
    __table_args__ = (
        UniqueConstraint("cluster", "uid"),
        Index(None, "cluster", "name"),
        CheckConstraint("kind IN ('namespace', 'team', 'organisation')", "kind"),
    )

    id: Mapped[AccountId] = mapped_column(Id, primary_key=True)
    cluster: Mapped[str] = mapped_column(String(253))
    uid: Mapped[str] = mapped_column(String(64))
    name: Mapped[str] = mapped_column(String(253))
    opened_at: Mapped[Instant]
    settled_at: Mapped[Instant]
    version: Mapped[Revision]
    sealed_until: Mapped[Instant] = mapped_column(server_default="0")
    """Up to and including this instant, nothing is booked or reversed any more."""
    kind: Mapped[str] = mapped_column(String(16), server_default="namespace")


class Membership(Base):
    """A budget is under another one from an instant on, until its next row; without a parent: under none."""

    __tablename__ = "membership"
    __table_args__ = (Index(None, "child_id", "effective_at"), Index(None, "parent_id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    child_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"))
    parent_id: Mapped[AccountId | None] = mapped_column(ForeignKey("namespace.id"))
    effective_at: Mapped[Instant]
    actor: Mapped[str] = mapped_column(String(253))


class Account(Base):
    """One of a namespace's accounts. The balance is the sum of its entries, kept beside them."""

    __tablename__ = "account"
    __table_args__ = (UniqueConstraint("namespace_id", "kind"), CheckConstraint(f"kind IN ({_KINDS})", "kind"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"))
    kind: Mapped[str] = mapped_column(String(16))
    balance_ms: Mapped[GpuMilliseconds]


class BudgetRule(Base):
    """A budget rule, in force from `effective_at` until the next one of the namespace."""

    __tablename__ = "budget_rule"
    __table_args__ = (
        Index(None, "namespace_id", "effective_at"),
        CheckConstraint("amount_ms >= 0", "amount"),
        CheckConstraint("period IN ('none', 'hour', 'day', 'week', 'month', 'year')", "period"),
        CheckConstraint("source IN ('policy', 'own')", "source"),
        CheckConstraint("credit_ms >= 0 AND rollover_ms >= 0", "limits"),
        CheckConstraint("status IN ('active', 'suspended', 'closed')", "status"),
        CheckConstraint("used IN ('counts', 'reset')", "used"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"))
    effective_at: Mapped[Instant]
    amount_ms: Mapped[GpuMilliseconds]
    period: Mapped[str] = mapped_column(String(8))
    time_zone: Mapped[str] = mapped_column(String(64))
    source: Mapped[str] = mapped_column(String(8))
    actor: Mapped[str] = mapped_column(String(253))
    booked_at: Mapped[Instant]
    credit_ms: Mapped[GpuMilliseconds] = mapped_column(server_default="0")
    rollover_ms: Mapped[GpuMilliseconds] = mapped_column(server_default="0")
    status: Mapped[str] = mapped_column(String(16), server_default="active")
    anchor_at: Mapped[Instant | None]
    """An instant at which a period begins, on the zone's wall clock."""
    used: Mapped[str] = mapped_column(String(8), server_default="counts")
    """How usage of the current period is treated: `timekeeper.core.budget_record.Used`."""


class BudgetObject(Base):
    """The newest accepted state of the Kubernetes object that keeps a budget, or that was the last to keep it."""

    __tablename__ = "budget_object"

    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"), primary_key=True)
    uid: Mapped[str] = mapped_column(String(64))
    created_at: Mapped[Instant]
    generation: Mapped[int]
    parent: Mapped[str | None] = mapped_column(String(63))
    """The parent that it names, empty for none; None: it does not set the parent."""
    released_at: Mapped[Instant | None]
    """When its deletion became known: since then it keeps nothing."""


class DebtRule(Base):
    """A cluster's setting `timekeeper.debt`, in force from `effective_at` until the next row. Rows never change.

    The first applies from the start of time. Without any, readers use the setting. Rows that a clock far ahead of all
    others wrote are deleted.
    """

    __tablename__ = "debt_rule"
    __table_args__ = (CheckConstraint("debt IN ('forgive', 'carry')", "debt"),)

    cluster: Mapped[str] = mapped_column(String(253), primary_key=True)
    effective_at: Mapped[Instant] = mapped_column(primary_key=True)
    debt: Mapped[str] = mapped_column(String(8))


class BudgetGrant(Base):
    """GPU time added to a budget, or taken out (a negative amount): grants, refunds, adjustments, transfers.

    `request_hash` distinguishes a repeated request from another one under the same key. `counterpart` is the pod of a
    refund, or the other budget of a transfer. A refund expires with its period, and its `valid_to` means nothing.
    """

    __tablename__ = "budget_grant"
    __table_args__ = (
        UniqueConstraint("namespace_id", "idempotency_key"),
        Index(None, "namespace_id", "valid_from"),
        Index(None, "counterpart"),
        CheckConstraint("amount_ms <> 0", "amount"),
        CheckConstraint("kind IN ('grant', 'refund', 'adjustment', 'transfer')", "kind"),
        CheckConstraint("valid_to IS NULL OR valid_to > valid_from", "validity"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"))
    amount_ms: Mapped[GpuMilliseconds]
    reason: Mapped[str] = mapped_column(String(1024))
    valid_from: Mapped[Instant]
    valid_to: Mapped[Instant | None]
    idempotency_key: Mapped[str] = mapped_column(String(255))
    request_hash: Mapped[str] = mapped_column(String(64))
    actor: Mapped[str] = mapped_column(String(253))
    booked_at: Mapped[Instant]
    kind: Mapped[str] = mapped_column(String(16), server_default="grant")
    priority: Mapped[int] = mapped_column(server_default="0")
    counterpart: Mapped[str] = mapped_column(String(253), server_default="")
    taken_back_ms: Mapped[GpuMilliseconds] = mapped_column(server_default="0")
    """Of a refund: the part that the pod, by what is known now, was not charged to the budget. It has no effect."""
    withdrawn_at: Mapped[Instant | None]
    """When a grant was withdrawn before it began: it never has an effect."""


class ExecutedRequest(Base):
    """A request that was executed under an idempotency key, if no other table keeps the key beside what it appended.

    `subject` is the UID of the account that it changes; empty if it changes none, but what applies to all.
    """

    __tablename__ = "executed_request"

    cluster: Mapped[str] = mapped_column(String(253), primary_key=True)
    subject: Mapped[str] = mapped_column(String(64), primary_key=True)
    idempotency_key: Mapped[str] = mapped_column(String(255), primary_key=True)
    request_hash: Mapped[str] = mapped_column(String(64))
    executed_at: Mapped[Instant]
    rate_since: Mapped[Instant | None]
    """If it set a rate: the instant from which that applies."""


class Threshold(Base):
    """A threshold of a budget that was announced in a period, by its start (0: no periods). Rows are never deleted."""

    __tablename__ = "threshold"

    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"), primary_key=True)
    period_start: Mapped[Instant] = mapped_column(primary_key=True)
    percent: Mapped[int] = mapped_column(primary_key=True)
    told_at: Mapped[Instant]


class ReservationRow(Base):
    """GPU time set aside: for a pod until it ends, or by hand until `expires_at`. What is left of it is computed.

    `span_ms` is the longest time for which the pod can hold its GPUs. A row is ended once, and never deleted.
    """

    __tablename__ = "reservation"
    __table_args__ = (
        UniqueConstraint("pod_uid"),
        UniqueConstraint("namespace_id", "idempotency_key"),
        Index(None, "namespace_id", "ended_at"),
        CheckConstraint("amount_ms >= 0", "amount"),
        CheckConstraint("(pod_uid IS NULL) <> (expires_at IS NULL)", "holder"),
        CheckConstraint("outcome IN ('', 'settled', 'released', 'expired')", "outcome"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"))
    pod_uid: Mapped[str | None] = mapped_column(String(64))
    pod_name: Mapped[str] = mapped_column(String(253), default="")
    amount_ms: Mapped[GpuMilliseconds]
    span_ms: Mapped[int] = mapped_column(default=0)
    reason: Mapped[str] = mapped_column(String(1024), default="")
    idempotency_key: Mapped[str] = mapped_column(String(255))
    request_hash: Mapped[str] = mapped_column(String(64), default="")
    actor: Mapped[str] = mapped_column(String(253))
    opened_at: Mapped[Instant]
    expires_at: Mapped[Instant | None]
    ended_at: Mapped[Instant | None]
    outcome: Mapped[str] = mapped_column(String(16), default="")


class Rate(Base):
    """The rate of a GPU model from an instant on; the empty model has none. Rows never change.

    `source` is `settings` or `rest`, a request. The settings' rates are applied when they change.
    """

    __tablename__ = "rate"
    __table_args__ = (
        UniqueConstraint("model", "effective_at"),
        CheckConstraint("numerator >= 0 AND denominator > 0", "ratio"),
        CheckConstraint("source IN ('settings', 'rest')", "source"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    model: Mapped[str] = mapped_column(String(253))
    numerator: Mapped[int]
    denominator: Mapped[int]
    effective_at: Mapped[Instant]
    source: Mapped[str] = mapped_column(String(16), server_default="settings")
    booked_at: Mapped[Instant | None]
    """When it was set. If that is `effective_at`, it was set to apply immediately, otherwise for an instant."""

    @property
    def rate(self) -> Fraction:
        """GPU-milliseconds that a millisecond of a whole GPU costs."""
        return Fraction(self.numerator, self.denominator)


class GpuSeen(Base):
    """A GPU as an agent published it: kept after its node is gone, because pods that held it are still charged.

    A MIG slice has a row of its own, with its GPU's model and memory, and its own part of them; 0 for a GPU.
    """

    __tablename__ = "gpu"

    uuid: Mapped[str] = mapped_column(String(253), primary_key=True)
    model: Mapped[str] = mapped_column(String(253))
    memory_mib: Mapped[int]
    slice_mib: Mapped[int] = mapped_column(server_default="0")
    slice_compute: Mapped[int] = mapped_column(server_default="0")
    slice_of: Mapped[int] = mapped_column(server_default="0")


RUNNING_INDEX = "ix_workload_running"


class WorkloadRow(Base):
    """A pod that held GPUs: its interval, closed once, and its share of GPUs by model, set when the interval opens."""

    __tablename__ = "workload"
    __table_args__ = (
        Index(None, "namespace_id", "ended_at", "started_at"),
        Index(None, "namespace_id", "started_at", "pod_uid"),
        Index(None, "started_at", "pod_uid"),
        Index(None, "archived_at", "ended_at"),
        Index(
            RUNNING_INDEX, "pod_uid", sqlite_where=text("ended_at IS NULL"), postgresql_where=text("ended_at IS NULL")
        ),
        CheckConstraint("ended_at IS NULL OR ended_at >= started_at", "interval"),
    )

    pod_uid: Mapped[str] = mapped_column(String(64), primary_key=True)
    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"))
    pod_name: Mapped[str] = mapped_column(String(253))
    node: Mapped[str] = mapped_column(String(253))
    gpus: Mapped[str] = mapped_column(Text)
    """UUIDs, comma-separated."""
    holders: Mapped[str] = mapped_column(Text)
    """JSON: GPUs held, by container."""
    gpu_class: Mapped[str] = mapped_column(String(32))
    shares: Mapped[str] = mapped_column(Text)
    """JSON: GPUs per millisecond before their rate, as a ratio, by model; the empty model is that of unknown GPUs."""
    opened_at: Mapped[Instant]
    """When the row was written."""
    created_at: Mapped[Instant | None]
    """When the API server created the pod; None: not known."""
    closed_at: Mapped[Instant | None]
    """When the end was recorded, by our clock; None: the pod runs, or it is not known."""
    started_at: Mapped[Instant]
    ended_at: Mapped[Instant | None]
    end_source: Mapped[str] = mapped_column(String(32))
    flags: Mapped[str] = mapped_column(Text)
    """Comma-separated."""
    heard_at: Mapped[Instant | None]
    """The last sign of life without counters; of an archived pod, the last one of any kind."""
    models: Mapped[str] = mapped_column(String(253), server_default="")
    """The models of its GPUs, comma-separated; empty if they are not known."""
    gpus_ppm: Mapped[int] = mapped_column(server_default="0")
    """GPUs held, of all models, in millionths: for sums that need not be exact."""
    archived_at: Mapped[Instant | None]
    """When its watermarks were deleted; since then, reports are refused."""
    used_ms: Mapped[int | None]
    """Of an archived pod: its usage in GPU-milliseconds; None: unknown."""
    peak_memory_mib: Mapped[int | None]
    """Of an archived pod: the most GPU memory that it held; None: unknown."""


class UnmeteredPod(Base):
    """A pod that, when it was first seen holding GPUs, its namespace's policy did not have metered. It never is."""

    __tablename__ = "unmetered_pod"

    pod_uid: Mapped[str] = mapped_column(String(64), primary_key=True)
    seen_at: Mapped[Instant]


class IntervalCorrectionRow(Base):
    """A pod's corrected interval, and the one before. Rows never change; the workload has the newest interval."""

    __tablename__ = "interval_correction"
    __table_args__ = (
        UniqueConstraint("namespace_id", "idempotency_key"),
        Index(None, "pod_uid"),
        CheckConstraint("ended_at IS NULL OR ended_at >= started_at", "interval"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"))
    pod_uid: Mapped[str] = mapped_column(ForeignKey("workload.pod_uid"))
    started_at: Mapped[Instant]
    ended_at: Mapped[Instant | None]
    started_before: Mapped[Instant]
    ended_before: Mapped[Instant | None]
    reason: Mapped[str] = mapped_column(String(1024))
    idempotency_key: Mapped[str] = mapped_column(String(255))
    request_hash: Mapped[str] = mapped_column(String(64))
    actor: Mapped[str] = mapped_column(String(253))
    booked_at: Mapped[Instant]


class Transaction(Base):
    """One booking; its entries sum to zero. It has all fields of its posting, so that the two can be compared."""

    __tablename__ = "txn"
    __table_args__ = (
        UniqueConstraint("idempotency_key"),
        UniqueConstraint("reverses"),
        Index(None, "namespace_id", "effective_at"),
        Index(None, "namespace_id", "subject", "effective_at"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"))
    kind: Mapped[str] = mapped_column(String(16))
    idempotency_key: Mapped[str] = mapped_column(String(512))
    subject: Mapped[str] = mapped_column(String(253))
    """The pod's UID for a charge, otherwise the allowance."""
    started_at: Mapped[Instant]
    effective_at: Mapped[Instant]
    amount_ms: Mapped[GpuMilliseconds]
    booked_at: Mapped[Instant]
    reverses: Mapped[int | None] = mapped_column(ForeignKey("txn.id"))
    corrects_at: Mapped[Instant | None]
    """Of a correction: the instant in a sealed period at which it would have been effective, had it been known."""


class Seal(Base):
    """A seal of a namespace's ledger: up to and including `until`, nothing is booked or reversed any more.

    `transactions` is their number since the previous seal, `last_txn` the newest of them; `balances` are the sums of
    all entries that are effective up to `until`, by account.
    """

    __tablename__ = "seal"

    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"), primary_key=True)
    until: Mapped[Instant] = mapped_column(primary_key=True)
    sealed_at: Mapped[Instant]
    actor: Mapped[str] = mapped_column(String(253))
    last_txn: Mapped[int]
    transactions: Mapped[int]
    balances: Mapped[str] = mapped_column(Text)
    """JSON: GPU-milliseconds by account."""


class Entry(Base):
    """One side of a transaction."""

    __tablename__ = "entry"
    __table_args__ = (
        UniqueConstraint("txn_id", "account_id"),
        Index(None, "account_id", "id"),
        CheckConstraint("amount_ms <> 0", "amount"),
    )

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    txn_id: Mapped[int] = mapped_column(ForeignKey("txn.id"))
    account_id: Mapped[int] = mapped_column(ForeignKey("account.id"))
    amount_ms: Mapped[GpuMilliseconds]


class Checkpoint(Base):
    """A namespace's state at an instant, from which settling can continue. Deleted if a record before it changes."""

    __tablename__ = "anchor"

    namespace_id: Mapped[AccountId] = mapped_column(ForeignKey("namespace.id"), primary_key=True)
    at: Mapped[Instant] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(Text)


class WatermarkRow(Base):
    """The latest report of one epoch of one container."""

    __tablename__ = "watermark"

    pod_uid: Mapped[str] = mapped_column(String(64), primary_key=True)
    container: Mapped[str] = mapped_column(String(253), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    seq: Mapped[int]
    used_ms: Mapped[int | None]
    monotonic_ns: Mapped[int]
    received_at: Mapped[Instant]
    hour: Mapped[Instant] = mapped_column(server_default="0")
    """The hour in which the counter was last read, by its first instant; `usage_hour` has the earlier ones."""
    hour_base: Mapped[int] = mapped_column(server_default="0")
    observed_ms: Mapped[int] = mapped_column(server_default="0")
    peak_memory_mib: Mapped[int | None]


class UsageHour(Base):
    """What one epoch of a container used in an hour that is over. PostgreSQL keeps a partition for each month."""

    __tablename__ = "usage_hour"
    __table_args__ = (Index(None, "hour"), {"postgresql_partition_by": "RANGE (hour)"})

    pod_uid: Mapped[str] = mapped_column(String(64), primary_key=True)
    container: Mapped[str] = mapped_column(String(253), primary_key=True)
    epoch: Mapped[int] = mapped_column(primary_key=True)
    hour: Mapped[Instant] = mapped_column(primary_key=True)
    used_ms: Mapped[int | None]
    observed_ms: Mapped[int]


class AuditRecord(Base):
    """An action with its author and reason. Each record has the previous hash, so none can be changed unnoticed."""

    __tablename__ = "audit"
    __table_args__ = (UniqueConstraint("prev_hash"), Index(None, "cluster", "namespace", "id"))

    id: Mapped[int] = mapped_column(Id, primary_key=True)
    at: Mapped[Instant]
    cluster: Mapped[str] = mapped_column(String(253))
    actor: Mapped[str] = mapped_column(String(253))
    action: Mapped[str] = mapped_column(String(32))
    namespace: Mapped[str] = mapped_column(String(253))
    """Empty if it concerns all."""
    detail: Mapped[str] = mapped_column(Text)
    """JSON, with sorted keys."""
    prev_hash: Mapped[str] = mapped_column(String(64))
    hash: Mapped[str] = mapped_column(String(64))


class WatchMark(Base):
    """The last instant at which the watch of a cluster's pods was known to be complete."""

    __tablename__ = "watch_mark"

    cluster: Mapped[str] = mapped_column(String(253), primary_key=True)
    confirmed_at: Mapped[Instant]
