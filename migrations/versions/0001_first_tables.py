# SPDX-License-Identifier: Apache-2.0
"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

_ID = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    postgresql = op.get_bind().dialect.name == "postgresql"
    op.create_table(
        "audit",
        sa.Column("id", _ID, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("cluster", sa.String(length=253), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("action", sa.String(length=32), nullable=False),
        sa.Column("namespace", sa.String(length=253), nullable=False),
        sa.Column("detail", sa.Text(), nullable=False),
        sa.Column("prev_hash", sa.String(length=64), nullable=False),
        sa.Column("hash", sa.String(length=64), nullable=False),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_audit")),
        sa.UniqueConstraint("prev_hash", name=op.f("uq_audit_prev_hash")),
    )
    op.create_index(op.f("ix_audit_cluster_namespace_id"), "audit", ["cluster", "namespace", "id"], unique=False)
    op.create_table(
        "debt_rule",
        sa.Column("cluster", sa.String(length=253), nullable=False),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("debt", sa.String(length=8), nullable=False),
        sa.CheckConstraint("debt IN ('forgive', 'carry')", name=op.f("ck_debt_rule_debt")),
        sa.PrimaryKeyConstraint("cluster", "effective_at", name=op.f("pk_debt_rule")),
    )
    op.create_table(
        "gpu",
        sa.Column("uuid", sa.String(length=253), nullable=False),
        sa.Column("model", sa.String(length=253), nullable=False),
        sa.Column("memory_mib", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("uuid", name=op.f("pk_gpu")),
    )
    op.create_table(
        "namespace",
        sa.Column("id", _ID, nullable=False),
        sa.Column("cluster", sa.String(length=253), nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("name", sa.String(length=253), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("settled_at", sa.BigInteger(), nullable=False),
        sa.Column("version", sa.BigInteger(), nullable=False),
        sa.Column("sealed_until", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("kind", sa.String(length=16), server_default="namespace", nullable=False),
        sa.CheckConstraint("kind IN ('namespace', 'team', 'organisation')", name=op.f("ck_namespace_kind")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_namespace")),
        sa.UniqueConstraint("cluster", "uid", name=op.f("uq_namespace_cluster_uid")),
    )
    op.create_index(op.f("ix_namespace_cluster_name"), "namespace", ["cluster", "name"], unique=False)
    op.create_table(
        "budget_object",
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("uid", sa.String(length=64), nullable=False),
        sa.Column("created_at", sa.BigInteger(), nullable=False),
        sa.Column("generation", sa.BigInteger(), nullable=False),
        sa.Column("parent", sa.String(length=63), nullable=True),
        sa.Column("released_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespace.id"], name=op.f("fk_budget_object_namespace_id_namespace")
        ),
        sa.PrimaryKeyConstraint("namespace_id", name=op.f("pk_budget_object")),
    )
    op.create_table(
        "rate",
        sa.Column("id", _ID, nullable=False),
        sa.Column("model", sa.String(length=253), nullable=False),
        sa.Column("numerator", sa.BigInteger(), nullable=False),
        sa.Column("denominator", sa.BigInteger(), nullable=False),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("source", sa.String(length=16), server_default="settings", nullable=False),
        sa.Column("booked_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("source IN ('settings', 'rest')", name=op.f("ck_rate_source")),
        sa.CheckConstraint("numerator >= 0 AND denominator > 0", name=op.f("ck_rate_ratio")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_rate")),
        sa.UniqueConstraint("model", "effective_at", name=op.f("uq_rate_model_effective_at")),
    )
    op.create_table(
        "usage_hour",
        sa.Column("pod_uid", sa.String(length=64), nullable=False),
        sa.Column("container", sa.String(length=253), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("hour", sa.BigInteger(), nullable=False),
        sa.Column("used_ms", sa.BigInteger(), nullable=True),
        sa.Column("observed_ms", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("pod_uid", "container", "epoch", "hour", name=op.f("pk_usage_hour")),
        postgresql_partition_by="RANGE (hour)",
    )
    op.create_index(op.f("ix_usage_hour_hour"), "usage_hour", ["hour"], unique=False)
    if postgresql:
        op.execute("CREATE TABLE usage_hour_rest PARTITION OF usage_hour DEFAULT")
    op.create_table(
        "watch_mark",
        sa.Column("cluster", sa.String(length=253), nullable=False),
        sa.Column("confirmed_at", sa.BigInteger(), nullable=False),
        sa.PrimaryKeyConstraint("cluster", name=op.f("pk_watch_mark")),
    )
    op.create_table(
        "watermark",
        sa.Column("pod_uid", sa.String(length=64), nullable=False),
        sa.Column("container", sa.String(length=253), nullable=False),
        sa.Column("epoch", sa.BigInteger(), nullable=False),
        sa.Column("seq", sa.BigInteger(), nullable=False),
        sa.Column("used_ms", sa.BigInteger(), nullable=True),
        sa.Column("monotonic_ns", sa.BigInteger(), nullable=False),
        sa.Column("received_at", sa.BigInteger(), nullable=False),
        sa.Column("hour", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("hour_base", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("observed_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("peak_memory_mib", sa.BigInteger(), nullable=True),
        sa.PrimaryKeyConstraint("pod_uid", "container", "epoch", name=op.f("pk_watermark")),
    )
    if postgresql:
        # Room for a row's next version: without it a report moves its row to another page, and three times the log.
        op.execute("ALTER TABLE watermark SET (fillfactor = 50)")
    op.create_table(
        "account",
        sa.Column("id", _ID, nullable=False),
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("balance_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint(
            "kind IN ('issued', 'budget', 'charged', 'over-budget', 'unfunded', 'expired', 'transferred')",
            name=op.f("ck_account_kind"),
        ),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_account_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_account")),
        sa.UniqueConstraint("namespace_id", "kind", name=op.f("uq_account_namespace_id_kind")),
    )
    op.create_table(
        "anchor",
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("at", sa.BigInteger(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_anchor_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("namespace_id", "at", name=op.f("pk_anchor")),
    )
    op.create_table(
        "budget_grant",
        sa.Column("id", _ID, nullable=False),
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("amount_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=1024), nullable=False),
        sa.Column("valid_from", sa.BigInteger(), nullable=False),
        sa.Column("valid_to", sa.BigInteger(), nullable=True),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("booked_at", sa.BigInteger(), nullable=False),
        sa.Column("kind", sa.String(length=16), server_default="grant", nullable=False),
        sa.Column("priority", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("counterpart", sa.String(length=253), server_default="", nullable=False),
        sa.Column("withdrawn_at", sa.BigInteger(), nullable=True),
        sa.Column("taken_back_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.CheckConstraint("kind IN ('grant', 'refund', 'adjustment', 'transfer')", name=op.f("ck_budget_grant_kind")),
        sa.CheckConstraint("amount_ms <> 0", name=op.f("ck_budget_grant_amount")),
        sa.CheckConstraint("valid_to IS NULL OR valid_to > valid_from", name=op.f("ck_budget_grant_validity")),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespace.id"], name=op.f("fk_budget_grant_namespace_id_namespace")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget_grant")),
        sa.UniqueConstraint(
            "namespace_id", "idempotency_key", name=op.f("uq_budget_grant_namespace_id_idempotency_key")
        ),
    )
    op.create_index(op.f("ix_budget_grant_counterpart"), "budget_grant", ["counterpart"], unique=False)
    op.create_index(
        op.f("ix_budget_grant_namespace_id_valid_from"), "budget_grant", ["namespace_id", "valid_from"], unique=False
    )
    op.create_table(
        "budget_rule",
        sa.Column("id", _ID, nullable=False),
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("amount_ms", sa.BigInteger(), nullable=False),
        sa.Column("period", sa.String(length=8), nullable=False),
        sa.Column("time_zone", sa.String(length=64), nullable=False),
        sa.Column("source", sa.String(length=8), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("booked_at", sa.BigInteger(), nullable=False),
        sa.Column("credit_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("rollover_ms", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("status", sa.String(length=16), server_default="active", nullable=False),
        sa.Column("anchor_at", sa.BigInteger(), nullable=True),
        sa.Column("used", sa.String(length=8), server_default="counts", nullable=False),
        sa.CheckConstraint(
            "period IN ('none', 'hour', 'day', 'week', 'month', 'year')", name=op.f("ck_budget_rule_period")
        ),
        sa.CheckConstraint("source IN ('policy', 'own')", name=op.f("ck_budget_rule_source")),
        sa.CheckConstraint("status IN ('active', 'suspended', 'closed')", name=op.f("ck_budget_rule_status")),
        sa.CheckConstraint("used IN ('counts', 'reset')", name=op.f("ck_budget_rule_used")),
        sa.CheckConstraint("amount_ms >= 0", name=op.f("ck_budget_rule_amount")),
        sa.CheckConstraint("credit_ms >= 0 AND rollover_ms >= 0", name=op.f("ck_budget_rule_limits")),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_budget_rule_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_budget_rule")),
    )
    op.create_index(
        op.f("ix_budget_rule_namespace_id_effective_at"), "budget_rule", ["namespace_id", "effective_at"], unique=False
    )
    op.create_table(
        "membership",
        sa.Column("id", _ID, nullable=False),
        sa.Column("child_id", _ID, nullable=False),
        sa.Column("parent_id", _ID, nullable=True),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.ForeignKeyConstraint(["child_id"], ["namespace.id"], name=op.f("fk_membership_child_id_namespace")),
        sa.ForeignKeyConstraint(["parent_id"], ["namespace.id"], name=op.f("fk_membership_parent_id_namespace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_membership")),
    )
    op.create_index(
        op.f("ix_membership_child_id_effective_at"), "membership", ["child_id", "effective_at"], unique=False
    )
    op.create_index(op.f("ix_membership_parent_id"), "membership", ["parent_id"], unique=False)
    op.create_table(
        "reservation",
        sa.Column("id", _ID, nullable=False),
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("pod_uid", sa.String(length=64), nullable=True),
        sa.Column("pod_name", sa.String(length=253), nullable=False),
        sa.Column("amount_ms", sa.BigInteger(), nullable=False),
        sa.Column("span_ms", sa.BigInteger(), nullable=False),
        sa.Column("reason", sa.String(length=1024), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("expires_at", sa.BigInteger(), nullable=True),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("outcome", sa.String(length=16), nullable=False),
        sa.CheckConstraint("outcome IN ('', 'settled', 'released', 'expired')", name=op.f("ck_reservation_outcome")),
        sa.CheckConstraint("(pod_uid IS NULL) <> (expires_at IS NULL)", name=op.f("ck_reservation_holder")),
        sa.CheckConstraint("amount_ms >= 0", name=op.f("ck_reservation_amount")),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_reservation_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_reservation")),
        sa.UniqueConstraint(
            "namespace_id", "idempotency_key", name=op.f("uq_reservation_namespace_id_idempotency_key")
        ),
        sa.UniqueConstraint("pod_uid", name=op.f("uq_reservation_pod_uid")),
    )
    op.create_index(
        op.f("ix_reservation_namespace_id_ended_at"), "reservation", ["namespace_id", "ended_at"], unique=False
    )
    op.create_table(
        "seal",
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("until", sa.BigInteger(), nullable=False),
        sa.Column("sealed_at", sa.BigInteger(), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("last_txn", sa.BigInteger(), nullable=False),
        sa.Column("transactions", sa.BigInteger(), nullable=False),
        sa.Column("balances", sa.Text(), nullable=False),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_seal_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("namespace_id", "until", name=op.f("pk_seal")),
    )
    op.create_table(
        "threshold",
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("period_start", sa.BigInteger(), nullable=False),
        sa.Column("percent", sa.BigInteger(), nullable=False),
        sa.Column("told_at", sa.BigInteger(), nullable=False),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_threshold_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("namespace_id", "period_start", "percent", name=op.f("pk_threshold")),
    )
    op.create_table(
        "txn",
        sa.Column("id", _ID, nullable=False),
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("kind", sa.String(length=16), nullable=False),
        sa.Column("idempotency_key", sa.String(length=512), nullable=False),
        sa.Column("subject", sa.String(length=253), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("effective_at", sa.BigInteger(), nullable=False),
        sa.Column("amount_ms", sa.BigInteger(), nullable=False),
        sa.Column("booked_at", sa.BigInteger(), nullable=False),
        sa.Column("reverses", _ID, nullable=True),
        sa.Column("corrects_at", sa.BigInteger(), nullable=True),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_txn_namespace_id_namespace")),
        sa.ForeignKeyConstraint(["reverses"], ["txn.id"], name=op.f("fk_txn_reverses_txn")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_txn")),
        sa.UniqueConstraint("idempotency_key", name=op.f("uq_txn_idempotency_key")),
        sa.UniqueConstraint("reverses", name=op.f("uq_txn_reverses")),
    )
    op.create_index(op.f("ix_txn_namespace_id_effective_at"), "txn", ["namespace_id", "effective_at"], unique=False)
    op.create_index(
        op.f("ix_txn_namespace_id_subject_effective_at"),
        "txn",
        ["namespace_id", "subject", "effective_at"],
        unique=False,
    )
    op.create_table(
        "workload",
        sa.Column("pod_uid", sa.String(length=64), nullable=False),
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("pod_name", sa.String(length=253), nullable=False),
        sa.Column("node", sa.String(length=253), nullable=False),
        sa.Column("gpus", sa.Text(), nullable=False),
        sa.Column("holders", sa.Text(), nullable=False),
        sa.Column("gpu_class", sa.String(length=32), nullable=False),
        sa.Column("opened_at", sa.BigInteger(), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("end_source", sa.String(length=32), nullable=False),
        sa.Column("flags", sa.Text(), nullable=False),
        sa.Column("heard_at", sa.BigInteger(), nullable=True),
        sa.Column("shares", sa.Text(), nullable=False),
        sa.Column("models", sa.String(length=253), server_default="", nullable=False),
        sa.Column("gpus_ppm", sa.BigInteger(), server_default="0", nullable=False),
        sa.Column("archived_at", sa.BigInteger(), nullable=True),
        sa.Column("used_ms", sa.BigInteger(), nullable=True),
        sa.Column("peak_memory_mib", sa.BigInteger(), nullable=True),
        sa.Column("created_at", sa.BigInteger(), nullable=True),
        sa.Column("closed_at", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("ended_at IS NULL OR ended_at >= started_at", name=op.f("ck_workload_interval")),
        sa.ForeignKeyConstraint(["namespace_id"], ["namespace.id"], name=op.f("fk_workload_namespace_id_namespace")),
        sa.PrimaryKeyConstraint("pod_uid", name=op.f("pk_workload")),
    )
    op.create_index(op.f("ix_workload_archived_at_ended_at"), "workload", ["archived_at", "ended_at"], unique=False)
    op.create_index(
        op.f("ix_workload_namespace_id_ended_at_started_at"),
        "workload",
        ["namespace_id", "ended_at", "started_at"],
        unique=False,
    )
    op.create_index(
        op.f("ix_workload_namespace_id_started_at_pod_uid"),
        "workload",
        ["namespace_id", "started_at", "pod_uid"],
        unique=False,
    )
    op.create_index(
        "ix_workload_running",
        "workload",
        ["pod_uid"],
        unique=False,
        sqlite_where=sa.text("ended_at IS NULL"),
        postgresql_where=sa.text("ended_at IS NULL"),
    )
    op.create_index(op.f("ix_workload_started_at_pod_uid"), "workload", ["started_at", "pod_uid"], unique=False)
    op.create_table(
        "entry",
        sa.Column("id", _ID, nullable=False),
        sa.Column("txn_id", _ID, nullable=False),
        sa.Column("account_id", _ID, nullable=False),
        sa.Column("amount_ms", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("amount_ms <> 0", name=op.f("ck_entry_amount")),
        sa.ForeignKeyConstraint(["account_id"], ["account.id"], name=op.f("fk_entry_account_id_account")),
        sa.ForeignKeyConstraint(["txn_id"], ["txn.id"], name=op.f("fk_entry_txn_id_txn")),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_entry")),
        sa.UniqueConstraint("txn_id", "account_id", name=op.f("uq_entry_txn_id_account_id")),
    )
    op.create_index(op.f("ix_entry_account_id_id"), "entry", ["account_id", "id"], unique=False)
    op.create_table(
        "interval_correction",
        sa.Column("id", _ID, nullable=False),
        sa.Column("namespace_id", _ID, nullable=False),
        sa.Column("pod_uid", sa.String(length=64), nullable=False),
        sa.Column("started_at", sa.BigInteger(), nullable=False),
        sa.Column("ended_at", sa.BigInteger(), nullable=True),
        sa.Column("started_before", sa.BigInteger(), nullable=False),
        sa.Column("ended_before", sa.BigInteger(), nullable=True),
        sa.Column("reason", sa.String(length=1024), nullable=False),
        sa.Column("idempotency_key", sa.String(length=255), nullable=False),
        sa.Column("request_hash", sa.String(length=64), nullable=False),
        sa.Column("actor", sa.String(length=253), nullable=False),
        sa.Column("booked_at", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("ended_at IS NULL OR ended_at >= started_at", name=op.f("ck_interval_correction_interval")),
        sa.ForeignKeyConstraint(
            ["namespace_id"], ["namespace.id"], name=op.f("fk_interval_correction_namespace_id_namespace")
        ),
        sa.ForeignKeyConstraint(
            ["pod_uid"], ["workload.pod_uid"], name=op.f("fk_interval_correction_pod_uid_workload")
        ),
        sa.PrimaryKeyConstraint("id", name=op.f("pk_interval_correction")),
        sa.UniqueConstraint(
            "namespace_id", "idempotency_key", name=op.f("uq_interval_correction_namespace_id_idempotency_key")
        ),
    )
    op.create_index(op.f("ix_interval_correction_pod_uid"), "interval_correction", ["pod_uid"], unique=False)


def downgrade() -> None:
    op.drop_table("interval_correction")
    op.drop_table("entry")
    op.drop_table("workload")
    op.drop_table("txn")
    op.drop_table("threshold")
    op.drop_table("seal")
    op.drop_table("reservation")
    op.drop_table("membership")
    op.drop_table("budget_rule")
    op.drop_table("budget_grant")
    op.drop_table("budget_object")
    op.drop_table("anchor")
    op.drop_table("account")
    op.drop_table("watermark")
    op.drop_table("watch_mark")
    op.drop_table("usage_hour")
    op.drop_table("rate")
    op.drop_table("namespace")
    op.drop_table("gpu")
    op.drop_table("debt_rule")
    op.drop_table("audit")
